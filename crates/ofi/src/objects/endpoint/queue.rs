//! An endpoint's completion queue, in `FI_CQ_FORMAT_DATA`, the shortest format with immediate data.
//!
//! Entries, three times as long as bare contexts, cost a write over shm 2 instructions of 3114.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

use libfabric_sys::{
    FI_CQ_FORMAT_DATA, FI_EAGAIN, FI_WAIT_FD, FI_WAIT_NONE, Padded, fi_cq_attr, fi_cq_data_entry,
    fi_cq_err_entry, fi_cq_open, fi_cq_readerr, fi_getwait, fi_trywait, fid_cq,
};

use crate::error::{check, port_error, refused};
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::object::Object;
use engine::port::{POLL_BATCH, PortError};

/// Memory for the entries of one poll.
#[derive(Debug)]
pub(crate) struct Entries(Box<[MaybeUninit<fi_cq_data_entry>; POLL_BATCH]>);

// SAFETY: plain numbers and addresses, which are not dereferenced here.
unsafe impl Send for Entries {}

impl Entries {
    pub(crate) fn new() -> Self {
        Self(Box::new([const { MaybeUninit::uninit() }; POLL_BATCH]))
    }

    /// Returns the first `count` entries.
    ///
    /// # Safety
    /// They have been written: a read of a queue into these entries has returned at least `count`,
    /// which is at most [`POLL_BATCH`].
    #[inline(always)]
    pub(crate) unsafe fn written(&self, count: usize) -> &[fi_cq_data_entry] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }
}

pub(super) fn open(domain: &Domain, size: usize, wakes: bool) -> Result<Object<fid_cq>, PortError> {
    let mut attr = Padded::<fi_cq_attr>::zeroed();
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
    /// Returns the descriptor that becomes readable when a poll is due, of an endpoint that wakes.
    /// The queue owns it.
    pub(crate) fn descriptor(&self) -> Result<RawFd, PortError> {
        let mut fd: c_int = -1;
        // SAFETY: open; a queue with FI_WAIT_FD writes a descriptor.
        let code = unsafe { fi_getwait(self.queue.as_fid(), (&raw mut fd).cast()) };
        check(self.domain.library(), "fi_control (FI_GETWAIT)", code)?;
        Ok(fd)
    }

    /// Returns true if a thread may sleep until the descriptor is readable, and false if a poll is
    /// due.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    pub(crate) unsafe fn may_sleep(&self) -> bool {
        let mut object = self.queue.as_fid();
        // SAFETY: both are open, and the queue is of this fabric.
        unsafe { fi_trywait(self.domain.fabric.as_ptr(), &raw mut object, 1) == 0 }
    }

    pub(crate) fn queue(&self) -> Result<QueueOps, PortError> {
        // SAFETY: open; its operation table is valid, and does not change.
        let read = unsafe { (*(*self.queue.as_ptr()).ops).read };
        let lacking = || refused("fi_cq_read", String::from("the provider does not have it"));
        Ok(QueueOps { raw: self.queue.as_ptr(), read: read.ok_or_else(lacking)? })
    }

    /// Takes an error, after a read has returned `-FI_EAVAIL`, with the context of the failed
    /// operation, or null. None if there is no error after all.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    #[cold]
    pub(crate) unsafe fn read_error(&self) -> Option<(*mut c_void, PortError)> {
        let (library, queue) = (self.domain.library(), self.queue.as_ptr());
        let mut entry = Padded::<fi_cq_err_entry>::zeroed();
        // SAFETY: open; the entry is padded. With a zero `err_data_size` the provider's details
        // stay in its own memory, valid until the next read of the queue.
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
        let detail = unsafe {
            let describe = (*(*queue).ops).strerror;
            describe.map_or(ptr::null(), |text| text(queue, number, data, room, buffer.len()))
        };
        if !detail.is_null() {
            // SAFETY: a non-null string, valid until the queue is used again.
            let detail = unsafe { CStr::from_ptr(detail) }.to_string_lossy();
            if !detail.is_empty() && *detail != *error.text {
                error.text = format!("{}; the provider: {detail}", error.text);
            }
        }
        Some((entry.op_context, error))
    }
}

/// The function that reads a queue, which `fi_cq_read` looks up at each call.
///
/// It does not keep the queue open; [`crate::data_path::port`] holds both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueOps {
    raw: *mut fid_cq,
    read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
}

// SAFETY: as for `Object`.
unsafe impl Send for QueueOps {}
// SAFETY: as for `Object`.
unsafe impl Sync for QueueOps {}

impl QueueOps {
    /// Creates a stand-in for a queue, which is read by calling a function with an address.
    ///
    /// # Safety
    /// The function may be called with the address, and with memory for that many entries, by
    /// whoever may read this queue, as long as it may be read.
    pub(crate) unsafe fn standing_for(
        address: *mut c_void,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    ) -> Self {
        Self { raw: address.cast(), read }
    }

    /// Reads at most `count` completions into `entries`. Returns what `fi_cq_read` does.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the queue is open. The memory has
    /// `count` entries.
    #[inline(always)]
    pub(crate) unsafe fn read_into(&self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        // SAFETY: open; the queue's format is that of the entries; the rest is the caller's
        // promise.
        unsafe { (self.read)(self.raw, entries.cast(), count) }
    }

    /// Reads a batch of completions. Returns what `fi_cq_read` does.
    ///
    /// # Safety
    /// As [`Self::read_into`].
    #[inline(always)]
    pub(crate) unsafe fn read(&self, entries: &mut Entries) -> isize {
        // SAFETY: there are entries for a batch; the rest is the caller's promise.
        unsafe { self.read_into(entries.0.as_mut_ptr().cast(), POLL_BATCH) }
    }
}
