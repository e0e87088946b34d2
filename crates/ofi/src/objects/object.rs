//! Owner of one libfabric object.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys::{Library, fi_close, fid};
use log::warn;

use crate::error::{check, refused};
use engine::port::PortError;
use engine::port::registration::set_unclosed;

/// Serialises the calls on one domain if its provider requires it.
///
/// Lanes never share a domain, so with `FI_THREAD_COMPLETION` and `FI_THREAD_SAFE` nothing needs
/// serialising: a lane is one thread at a time, and concurrent registration is safe. With
/// `FI_THREAD_DOMAIN` all calls on the domain have to be serialised, also registrations by other
/// threads. Then, and only then, there is a mutex, which each call holds for its own duration. It
/// cannot deadlock: no call under it takes another gate, and libfabric makes no callbacks.
///
/// Without the mutex, entering costs one well-predicted branch.
#[derive(Clone, Debug)]
pub(crate) struct Gate(pub(super) Option<Arc<Mutex<()>>>);

impl Gate {
    /// Returns true if there is no mutex, so that nobody needs to enter.
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

// SAFETY: an address of an object that may move between threads. Calls are serialised by the
// contracts of the unsafe methods and, for safe ones, by the domain's gate.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Opens an object by a call that writes its address.
    ///
    /// # Safety
    /// The call opens a `T`, which begins with a `fid`. The result's owner closes its parent object
    /// after it, and its child objects before it.
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
        // A provider that reports success without an object breaks its contract.
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

    /// Closes the object, unless it is closed.
    ///
    /// # Errors
    /// The object stays open.
    pub(crate) fn close(&mut self) -> Result<(), PortError> {
        if !self.closed {
            let _entered = self.gate.enter();
            // SAFETY: open, and its owner has closed its child objects.
            check(self.library, "fi_close", unsafe { fi_close(self.as_fid()) })?;
            self.closed = true;
        }
        Ok(())
    }

    /// Closes the object for good. Logs a failure; from then on memory that the fabric may still
    /// reach is not freed.
    pub(crate) fn end(&mut self) {
        if let Err(error) = self.close() {
            warn!("a libfabric {} stays open: {error}", self.kind);
            set_unclosed();
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
    use libfabric_sys::fi_ops;

    #[test]
    fn gate_excludes_others_during_calls() {
        let (absent, gate) = (Gate(None), Gate(Some(Arc::default())));
        assert!(absent.is_absent() && absent.enter().is_none() && !gate.is_absent());
        let closed = || gate.0.as_ref().is_some_and(|mutex| mutex.try_lock().is_err());
        assert_eq!(gate.within(|| (closed(), 7)), (true, 7));
        assert_eq!((closed(), absent.within(|| 5)), (false, 5));
    }

    thread_local! {
        static GATE: Gate = Gate(Some(Arc::default()));
    }

    /// Fails outside the gate.
    unsafe extern "C" fn close(_: *mut fid) -> c_int {
        GATE.with(|gate| -c_int::from(gate.0.as_ref().is_some_and(|it| it.try_lock().is_ok())))
    }

    #[test]
    fn objects_open_and_close_gated() {
        let library = Library::load(&crate::options::tests::options().library).unwrap();
        // SAFETY: a table without functions, and an object with this table, which outlives it.
        let opened = unsafe {
            let mut ops = fi_ops { close: Some(close), ..std::mem::zeroed() };
            let mut object = fid { ops: &raw mut ops, ..std::mem::zeroed() };
            let open = |to: *mut *mut fid| {
                *to = &raw mut object;
                close(*to)
            };
            let opened = GATE.with(|gate| Object::open(("fid", "open"), library, gate, open));
            opened.and_then(|mut object| object.close())
        };
        assert_eq!(opened, Ok(()));
    }
}
