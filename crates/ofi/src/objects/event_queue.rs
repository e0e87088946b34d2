//! An event queue: where a provider puts what has gone wrong with an endpoint and belongs to none
//! of its operations.
//!
//! Providers that have such errors end the process when they have nowhere to put them.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{
    FI_EAVAIL, FI_WAIT_NONE, Padded, fi_eq_attr, fi_eq_err_entry, fi_eq_open, fi_eq_read,
    fi_eq_readerr, fid, fid_eq,
};

use crate::error::{check, port_error};
use crate::objects::fabric::{Fabric, close, opened};
use engine::port::PortError;

const ENTRIES: usize = 64;

/// Owner of a `fid_eq`.
#[derive(Debug)]
pub(crate) struct EventQueue {
    raw: NonNull<fid_eq>,
    fabric: Arc<Fabric>,
}

// SAFETY: an event queue may be used from any thread; those of the providers have a lock of their
// own.
unsafe impl Send for EventQueue {}
// SAFETY: as above.
unsafe impl Sync for EventQueue {}

impl EventQueue {
    pub(crate) fn open(fabric: &Arc<Fabric>) -> Result<Self, PortError> {
        let mut attr = Padded::<fi_eq_attr>::new();
        attr.size = ENTRIES;
        attr.wait_obj = FI_WAIT_NONE;
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is open; the attributes are padded for newer libraries.
        let code =
            unsafe { fi_eq_open(fabric.as_ptr(), attr.as_mut_ptr(), &mut raw, ptr::null_mut()) };
        check(fabric.library(), "fi_eq_open", code)?;
        Ok(Self { raw: opened(raw, "fi_eq_open")?, fabric: Arc::clone(fabric) })
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.raw.as_ptr().cast()
    }

    pub(crate) fn error(&self) -> Option<PortError> {
        // The largest event that is no error has an address behind it, which is not wanted.
        let mut event = [0_u64; 16];
        for _ in 0..ENTRIES {
            let mut kind = 0;
            // SAFETY: open; the room is as long as is said, and aligned for every event.
            let code = unsafe {
                let into = event.as_mut_ptr().cast::<c_void>();
                fi_eq_read(self.raw.as_ptr(), &mut kind, into, size_of_val(&event), 0)
            };
            if code == -(FI_EAVAIL as isize) {
                return self.read_error();
            }
            if code < 0 {
                // There is nothing more, or no way to learn of it.
                return None;
            }
        }
        None
    }

    #[cold]
    fn read_error(&self) -> Option<PortError> {
        let mut entry = Padded::<fi_eq_err_entry>::new();
        // SAFETY: open; the entry is padded. A zero `err_data_size` asks for no details.
        let code = unsafe { fi_eq_readerr(self.raw.as_ptr(), entry.as_mut_ptr(), 0) };
        if code < 0 {
            return None;
        }
        let mut error = port_error(self.fabric.library(), "the endpoint", entry.err.into());
        // The provider's own text for its code is asked of a completion queue, and the one for
        // events takes it for a `fi_errno`.
        error.text = format!("{}; the provider's code: {}", error.text, entry.prov_errno);
        Some(error)
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        // SAFETY: open, and what was bound to it is closed: an endpoint owns its queue, which is a
        // field of it.
        unsafe { close(self.fabric.library(), "event queue", self.as_fid()) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use libfabric_sys::FI_EAGAIN;

    use super::*;
    use crate::data_path::some_rail;
    use crate::objects::tables;
    use crate::provider::Provider;

    thread_local! {
        static EVENTS: RefCell<Vec<isize>> = const { RefCell::new(Vec::new()) };
        static ERROR: Cell<isize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn read(
        _: *mut fid_eq,
        _: *mut u32,
        _: *mut c_void,
        len: usize,
        _: u64,
    ) -> isize {
        assert!(len >= 64, "no event is longer");
        EVENTS.with_borrow_mut(|events| events.pop()).unwrap_or(-(FI_EAGAIN as isize))
    }

    unsafe extern "C" fn readerr(_: *mut fid_eq, entry: *mut fi_eq_err_entry, _: u64) -> isize {
        // SAFETY: room for an entry.
        unsafe { ((*entry).err, (*entry).prov_errno) = (libc::EIO, 4711) };
        ERROR.get()
    }

    #[test]
    fn errors_are_told_and_other_events_are_dropped() {
        let rail = some_rail(Provider::TcpRxm);
        let queue = EventQueue::open(rail.domain().fabric()).expect("a queue");
        assert_eq!(queue.error(), None, "nothing has happened");
        // SAFETY: open, and of this thread.
        unsafe {
            tables::change(&raw mut (*queue.raw.as_ptr()).ops, |table| {
                table.read = Some(read);
                table.readerr = Some(readerr);
            });
        }
        let told = |events: Vec<isize>, error| {
            EVENTS.set(events);
            ERROR.set(error);
            queue.error()
        };
        let (again, there_is_one) = (-(FI_EAGAIN as isize), -(FI_EAVAIL as isize));
        let error = told(vec![there_is_one, 16, 0], 48).expect("behind two events");
        assert_eq!(error.code, libc::EIO);
        assert!(error.text.ends_with("; the provider's code: 4711"), "{error}");
        assert!(told(vec![there_is_one], 0).is_some());
        assert_eq!(told(vec![there_is_one], again), None, "somebody else has taken it");
        assert_eq!(told(vec![there_is_one, again], 48), None, "nothing more for now");
        assert_eq!(told(vec![there_is_one, -5], 48), None, "no way to learn of it");
        assert_eq!(told(vec![16; ENTRIES + 1], 48), None);
        assert_eq!(EVENTS.take().len(), 1, "no more than there is room for at a time");
    }
}
