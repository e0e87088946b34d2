//! Functions of an endpoint's tables, resolved once for the hot path.

use std::ffi::c_void;

use libfabric_sys::{FI_ADDR_UNSPEC, FI_EAGAIN, fi_addr_t, fid_ep};

use super::{MessageBuffer, Rma};
use crate::error::refused;
use crate::objects::domain::Domain;
use engine::port::PortError;
use engine::port::packet::MAX_MESSAGE;

/// Functions for an endpoint's writes, reads, injected messages and receives, which `fi_write` and
/// the others look up at each call.
///
/// It does not keep the endpoint open; [`crate::data_path::port`] holds both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointOps {
    raw: *mut fid_ep,
    pub(crate) write: Write,
    pub(crate) read: Read,
    pub(crate) inject: Inject,
    pub(crate) inject_size: usize,
    pub(crate) receive: Receive,
}

type Mem = *mut c_void;

/// The provider's `fi_recv`.
type Receive = unsafe extern "C" fn(*mut fid_ep, Mem, usize, Mem, fi_addr_t, Mem) -> isize;

/// The provider's `fi_inject`.
type Inject = unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize;

/// The provider's `fi_write`.
type Write =
    unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Mem, fi_addr_t, u64, u64, Mem) -> isize;

/// The provider's `fi_read`.
type Read = unsafe extern "C" fn(*mut fid_ep, Mem, usize, Mem, fi_addr_t, u64, u64, Mem) -> isize;

// SAFETY: as for `Object`.
unsafe impl Send for EndpointOps {}
// SAFETY: as for `Object`.
unsafe impl Sync for EndpointOps {}

impl EndpointOps {
    pub(super) fn new(raw: *mut fid_ep, domain: &Domain) -> Result<Self, PortError> {
        // SAFETY: open; its operation tables are valid, and do not change.
        let (rma, msg) = unsafe { (&*(*raw).rma, &*(*raw).msg) };
        let lacks = |call| move || refused(call, String::from("the provider does not have it"));
        Ok(Self {
            raw,
            write: rma.write.ok_or_else(lacks("fi_write"))?,
            read: rma.read.ok_or_else(lacks("fi_read"))?,
            inject: msg.inject.ok_or_else(lacks("fi_inject"))?,
            inject_size: domain.info.tx_attr().inject_size.min(MAX_MESSAGE),
            receive: msg.recv.ok_or_else(lacks("fi_recv"))?,
        })
    }

    /// Returns functions that refuse writes, reads and injected messages, for an endpoint whose
    /// gate is to be entered first.
    pub(crate) fn refusing(self) -> Self {
        macro_rules! refuse {
            ($($argument:ty),*) => {{
                unsafe extern "C" fn refuse($(_: $argument),*) -> isize {
                    -(FI_EAGAIN as isize)
                }
                refuse
            }};
        }
        Self {
            write: refuse!(*mut fid_ep, *const c_void, usize, Mem, fi_addr_t, u64, u64, Mem),
            read: refuse!(*mut fid_ep, Mem, usize, Mem, fi_addr_t, u64, u64, Mem),
            inject: refuse!(*mut fid_ep, *const c_void, usize, fi_addr_t),
            inject_size: 0,
            ..self
        }
    }

    /// Sends a message that is copied before this returns, and never completes. No provider has to
    /// report a later failure, which the sender detects by missing acknowledgements.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the endpoint is open. The message is
    /// at most as long as the transmit attributes' `inject_size`: providers copy a longer one over
    /// their own memory.
    #[inline(always)]
    pub(crate) unsafe fn inject(&self, bytes: &[u8], peer: fi_addr_t) -> isize {
        // SAFETY: the caller's promise.
        unsafe { (self.inject)(self.raw, bytes.as_ptr().cast(), bytes.len(), peer) }
    }

    /// Posts a receive buffer for a message from any peer.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the endpoint is open. Until the
    /// operation completes or the endpoint is closed, buffer and context are valid, and nobody
    /// accesses the buffer.
    #[inline(always)]
    pub(crate) unsafe fn receive(&self, buffer: &MessageBuffer) -> isize {
        let MessageBuffer { buf, len, desc, context } = *buffer;
        // SAFETY: the caller's promise.
        unsafe { (self.receive)(self.raw, buf, len, desc, FI_ADDR_UNSPEC, context) }
    }

    /// Posts a write with the endpoint's own flags, `FI_DELIVERY_COMPLETE`.
    ///
    /// `fi_write` takes the flags of `tx_attr.op_flags`: the fi_endpoint man page says so, and the
    /// tests of this layer check it for tcp, tcp;ofi_rxm and shm. docs/providers.md has what is
    /// known of other providers.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the endpoint is open. The buffer and
    /// the context are valid until the operation completes or the endpoint is closed.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, op: &Rma) -> isize {
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: the caller's promise.
        unsafe { (self.write)(self.raw, buf, len, desc, peer, remote, key, context) }
    }

    /// Posts a read.
    ///
    /// # Safety
    /// As [`Self::write`].
    #[inline(always)]
    pub(crate) unsafe fn read(&self, op: &Rma) -> isize {
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: the caller's promise.
        unsafe { (self.read)(self.raw, buf, len, desc, peer, remote, key, context) }
    }
}
