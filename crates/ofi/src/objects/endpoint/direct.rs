//! What an endpoint's table of functions says, resolved once for the calls of the hot path.

use std::ffi::c_void;

use libfabric_sys::{FI_ADDR_UNSPEC, FI_ENOSYS, fi_addr_t, fid_ep};

use super::{Endpoint, MessageBuffer, Rma};
use engine::port::packet::MAX_MESSAGE;

impl Endpoint {
    pub(crate) fn direct(&self) -> Direct {
        // SAFETY: open, and so are its tables of operations, which do not change.
        let (write, read) = unsafe {
            let table = (*self.as_ptr()).rma;
            ((*table).write, (*table).read)
        };
        // SAFETY: as above.
        let (inject, receive) = unsafe {
            let table = (*self.as_ptr()).msg;
            ((*table).inject, (*table).recv)
        };
        Direct {
            raw: self.as_ptr(),
            write: write.unwrap_or(no_write),
            read: read.unwrap_or(no_read),
            inject: inject.unwrap_or(no_inject),
            inject_size: self.domain.info().inject_size().min(MAX_MESSAGE),
            receive: receive.unwrap_or(no_receive),
        }
    }
}

/// The way of an endpoint's writes and reads, resolved once: what [`Endpoint::write`] and
/// [`Endpoint::read`] look up at each call.
///
/// It does not keep the endpoint open; [`crate::data_path::port`] keeps both together.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    raw: *mut fid_ep,
    write: Write,
    read: Read,
    inject: Inject,
    inject_size: usize,
    receive: Receive,
}

/// `fi_recv` as the provider has it.
type Receive = unsafe extern "C" fn(
    *mut fid_ep,
    *mut c_void,
    usize,
    *mut c_void,
    fi_addr_t,
    *mut c_void,
) -> isize;

/// `fi_inject` as the provider has it.
type Inject = unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize;

/// `fi_write` as the provider has it.
type Write = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    *mut c_void,
) -> isize;

/// `fi_read` as the provider has it.
type Read = unsafe extern "C" fn(
    *mut fid_ep,
    *mut c_void,
    usize,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    *mut c_void,
) -> isize;

/// Stands in for a call that the provider does not have.
unsafe extern "C" fn no_write(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

/// As [`no_write`].
unsafe extern "C" fn no_read(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

// SAFETY: as for `Endpoint`.
unsafe impl Send for Direct {}
// SAFETY: as for `Endpoint`.
unsafe impl Sync for Direct {}

/// As [`no_write`].
unsafe extern "C" fn no_inject(_: *mut fid_ep, _: *const c_void, _: usize, _: fi_addr_t) -> isize {
    -(FI_ENOSYS as isize)
}

/// As [`no_write`].
unsafe extern "C" fn no_receive(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

impl Direct {
    /// Longest message for [`Direct::inject`].
    #[inline(always)]
    pub(crate) fn inject_size(&self) -> usize {
        self.inject_size
    }

    /// As [`Endpoint::inject`].
    ///
    /// # Safety
    /// As for [`Endpoint::inject`], and the endpoint is open.
    #[inline(always)]
    pub(crate) unsafe fn inject(&self, bytes: &[u8], peer: fi_addr_t) -> isize {
        // SAFETY: the caller's promise.
        unsafe { (self.inject)(self.raw, bytes.as_ptr().cast(), bytes.len(), peer) }
    }

    /// Posts a buffer for a message from anybody.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the endpoint is open. Nobody touches
    /// the buffer, and it and the context are valid, until the operation completes or the endpoint
    /// is closed.
    #[inline(always)]
    pub(crate) unsafe fn receive(&self, buffer: &MessageBuffer) -> isize {
        let MessageBuffer { buf, len, desc, context } = *buffer;
        // SAFETY: the caller's promise.
        unsafe { (self.receive)(self.raw, buf, len, desc, FI_ADDR_UNSPEC, context) }
    }

    /// As [`Endpoint::write`]: `fi_write`, by the function of the endpoint's own table.
    ///
    /// # Safety
    /// As for [`Endpoint::write`], and the endpoint is open.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, op: &Rma) -> isize {
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: the caller's promise.
        unsafe { (self.write)(self.raw, buf, len, desc, peer, remote, key, context) }
    }

    /// As [`Endpoint::read`].
    ///
    /// # Safety
    /// As for [`Endpoint::read`], and the endpoint is open.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, op: &Rma) -> isize {
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: the caller's promise.
        unsafe { (self.read)(self.raw, buf, len, desc, peer, remote, key, context) }
    }
}
