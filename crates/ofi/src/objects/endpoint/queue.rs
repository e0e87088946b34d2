//! An endpoint's completion queue, in `FI_CQ_FORMAT_DATA`, the shortest format with immediate data.
//!
//! Its entries, three times as long as bare contexts, cost a write over shm 2 instructions of 3114.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

use libfabric_sys::{
    FI_CQ_FORMAT_DATA, FI_EAGAIN, FI_WAIT_FD, FI_WAIT_NONE, Padded, fi_cq_attr, fi_cq_data_entry,
    fi_cq_err_entry, fi_cq_open, fi_cq_readerr, fi_cq_strerror, fi_getwait, fi_trywait, fid_cq,
};

use crate::error::{check, port_error, refused};
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::object::Object;
use engine::port::{POLL_BATCH, PortError};

/// Room for the entries of one poll.
#[derive(Debug)]
pub(crate) struct Entries(Box<[MaybeUninit<fi_cq_data_entry>; POLL_BATCH]>);

// SAFETY: plain numbers and addresses; nothing is done with the addresses here.
unsafe impl Send for Entries {}

impl Entries {
    pub(crate) fn new() -> Self {
        Self(Box::new([const { MaybeUninit::uninit() }; POLL_BATCH]))
    }

    /// The first `count` entries.
    ///
    /// # Safety
    /// They have been written: a read of a queue into this room has answered at least `count`,
    /// which is at most [`POLL_BATCH`].
    #[inline(always)]
    pub(crate) unsafe fn written(&self, count: usize) -> &[fi_cq_data_entry] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }
}

pub(super) fn open(domain: &Domain, size: usize, wakes: bool) -> Result<Object<fid_cq>, PortError> {
    let mut attr = Padded::<fi_cq_attr>::new();
    attr.size = size;
    attr.format = FI_CQ_FORMAT_DATA;
    attr.wait_obj = if wakes { FI_WAIT_FD } else { FI_WAIT_NONE };
    // SAFETY: the domain is open and held by the queue's endpoint; the attributes are padded.
    unsafe {
        let kind = ("completion queue", "fi_cq_open");
        Object::open(kind, domain.library(), &domain.gate, |queue| {
            fi_cq_open(domain.as_ptr(), attr.as_mut_ptr(), queue, ptr::null_mut())
        })
    }
}

impl Endpoint {
    /// The descriptor that can be read when there is something to do, of an endpoint that wakes. It
    /// is the queue's, and open as long as that is.
    pub(crate) fn descriptor(&self) -> Result<RawFd, PortError> {
        let mut fd: c_int = -1;
        // SAFETY: open; a queue with FI_WAIT_FD writes a descriptor.
        let code = unsafe { fi_getwait(self.queue.as_fid(), (&raw mut fd).cast()) };
        check(self.domain.library(), "fi_control (FI_GETWAIT)", code)?;
        Ok(fd)
    }

    /// Whether a thread may sleep until the descriptor can be read; else there is something to do.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    pub(crate) unsafe fn may_sleep(&self) -> bool {
        let mut object = self.queue.as_fid();
        // SAFETY: both open, and of one another.
        unsafe { fi_trywait(self.domain.fabric.as_ptr(), &raw mut object, 1) == 0 }
    }

    pub(crate) fn queue(&self) -> Result<DirectQueue, PortError> {
        // SAFETY: open, and so is its table of operations, which does not change.
        let read = unsafe { (*(*self.queue.as_ptr()).ops).read };
        let lacking = || refused("fi_cq_read", String::from("the provider does not have it"));
        Ok(DirectQueue { raw: self.queue.as_ptr(), read: read.ok_or_else(lacking)? })
    }

    /// Takes an error, after a read has answered `-FI_EAVAIL`, with the context of the operation
    /// that failed, null where none is meant. None when there is no error after all.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    #[cold]
    pub(crate) unsafe fn read_error(&self) -> Option<(*mut c_void, PortError)> {
        let (library, queue) = (self.domain.library(), self.queue.as_ptr());
        let mut entry = Padded::<fi_cq_err_entry>::new();
        // SAFETY: open; the entry is padded. A zero `err_data_size` leaves the provider's details
        // in its own memory, valid until the queue is read next.
        let code = unsafe { fi_cq_readerr(queue, entry.as_mut_ptr(), 0) };
        if code == -(FI_EAGAIN as isize) || code == 0 {
            return None;
        }
        if code < 0 {
            let error = port_error(library, "fi_cq_readerr", code as i64);
            return Some((ptr::null_mut(), error));
        }
        let mut error = port_error(library, "completion", entry.err.into());
        let mut buffer = [0 as c_char; 256];
        let (number, data, room) = (entry.prov_errno, entry.err_data, buffer.as_mut_ptr());
        // SAFETY: open; err_data comes from the entry just read; the buffer has the size given.
        let detail = unsafe { fi_cq_strerror(queue, number, data, room, buffer.len()) };
        if !detail.is_null() {
            // SAFETY: not null; a string that lives at least until the queue is used again.
            let detail = unsafe { CStr::from_ptr(detail) }.to_string_lossy();
            if !detail.is_empty() && *detail != *error.text {
                error.text = format!("{}; the provider: {detail}", error.text);
            }
        }
        Some((entry.op_context, error))
    }
}

/// The way to read a queue, resolved once: what `fi_cq_read` looks up at each call.
///
/// It does not keep the queue open; [`crate::data_path::port`] keeps both together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectQueue {
    raw: *mut fid_cq,
    read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
}

// SAFETY: as for `Object`.
unsafe impl Send for DirectQueue {}
// SAFETY: as for `Object`.
unsafe impl Sync for DirectQueue {}

impl DirectQueue {
    /// Something else that is read as a queue is, at an address that the function is given.
    ///
    /// # Safety
    /// The function may be called with the address, and with room for that many entries, by
    /// whoever may read this queue, as long as it may be read.
    pub(crate) unsafe fn standing_for(
        address: *mut c_void,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    ) -> Self {
        Self { raw: address.cast(), read }
    }

    /// Takes completions into room for `count` entries. Returns what `fi_cq_read` does.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the queue is open; and there is room.
    #[inline(always)]
    pub(crate) unsafe fn read_into(&self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        // SAFETY: open; the queue's format is that of the entries; else as the caller says.
        unsafe { (self.read)(self.raw, entries.cast(), count) }
    }

    /// As [`Self::read_into`], a batch.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, entries: &mut Entries) -> isize {
        // SAFETY: there is room for a batch; the rest is the caller's promise.
        unsafe { self.read_into(entries.0.as_mut_ptr().cast(), POLL_BATCH) }
    }
}
