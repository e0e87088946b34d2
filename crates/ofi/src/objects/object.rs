//! The owner of one object of libfabric.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys::{Library, fi_close, fid};
use log::warn;

use crate::error::{check, refused};
use engine::port::PortError;
use engine::port::registration::note_unclosed;

/// Serialises the calls on one domain where its provider asks for that.
///
/// Lanes never share a domain, so with `FI_THREAD_COMPLETION` and `FI_THREAD_SAFE` nothing needs
/// serialising: a lane is one thread at a time, and registration is safe beside it. With
/// `FI_THREAD_DOMAIN` every call on the domain counts, registration from other threads included.
/// Then, and only then, there is a mutex, which each call holds for its own duration. It cannot
/// deadlock: no call is made under it that takes another gate, and libfabric calls nothing back.
///
/// Without the mutex, entering costs one branch that always goes the same way.
#[derive(Clone, Debug)]
pub(crate) struct Gate(pub(super) Option<Arc<Mutex<()>>>);

impl Gate {
    /// Whether there is no mutex, so that nobody need enter.
    #[inline(always)]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        call()
    }

    #[inline]
    pub(crate) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        // The mutex guards no data, so a panic elsewhere leaves nothing inconsistent.
        self.0.as_ref().map(|mutex| mutex.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Owner of a `fid_*`, which closes it inside its domain's gate.
#[derive(Debug)]
pub(crate) struct Object<T> {
    raw: NonNull<T>,
    /// Name of the object in the log.
    kind: &'static str,
    closed: bool,
    gate: Gate,
    library: &'static Library,
}

// SAFETY: an address of an object that may move between threads; who calls when is settled by the
// contracts of the unsafe methods and, for safe ones, by the domain's gate.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Opens an object by a call that writes its address.
    ///
    /// # Safety
    /// The call opens a `T`, which begins with a `fid`, and whoever owns the result keeps what it
    /// was made from open for longer, and closes before it what is made from it.
    pub(crate) unsafe fn open(
        (kind, call): (&'static str, &'static str),
        library: &'static Library,
        gate: &Gate,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Self, PortError> {
        let mut raw = ptr::null_mut();
        let entered = gate.enter();
        let code = open(&raw mut raw);
        drop(entered);
        check(library, call, code)?;
        // A provider that opens nothing breaks its contract: an error, and no null pointer later.
        let nothing = || refused(call, String::from("success without an object"));
        let raw = NonNull::new(raw).ok_or_else(nothing)?;
        Ok(Self { raw, kind, closed: false, gate: gate.clone(), library })
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.as_ptr().cast()
    }

    /// Closes the object, unless that was done.
    ///
    /// # Errors
    /// It stays open.
    pub(crate) fn close(&mut self) -> Result<(), PortError> {
        if !self.closed {
            let _entered = self.gate.enter();
            // SAFETY: open, and its owner has closed what was made from it.
            check(self.library, "fi_close", unsafe { fi_close(self.as_fid()) })?;
            self.closed = true;
        }
        Ok(())
    }

    /// Closes the object for good. Of a failure the log is told, and memory is not freed from then
    /// on that the fabric may still reach.
    pub(crate) fn end(&mut self) {
        if let Err(error) = self.close() {
            warn!("a libfabric {} stays open: {error}", self.kind);
            note_unclosed();
            self.closed = true;
        }
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_excludes_others_during_calls() {
        let (absent, gate) = (Gate(None), Gate(Some(Arc::default())));
        assert!(absent.is_absent() && absent.enter().is_none() && !gate.is_absent());
        let closed = || gate.0.as_ref().is_some_and(|mutex| mutex.try_lock().is_err());
        assert_eq!(gate.within(|| (closed(), 7)), (true, 7));
        assert_eq!((closed(), absent.within(|| 5)), (false, 5));
    }
}
