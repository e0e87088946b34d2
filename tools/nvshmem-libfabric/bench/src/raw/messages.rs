//! Messages between a PE and its peers, as a ping-pong sends them.
//!
//! At most one message to each peer is on its way, and one from each is waited for. What fits goes
//! out with `fi_inject`, as in libfabric's own ping-pong and in the plugin.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use libfabric_sys as fi;

use super::object::{RawError, refused};
use super::{POLL_BATCH, Promise, Raw};

/// An endpoint for messages.
pub(crate) struct Messages {
    raw: Raw,
    /// Where messages are received: one slot for each peer, from this offset on.
    slots: u64,
    /// Bytes of a slot.
    slot_bytes: usize,
    inject_size: usize,
    /// Per peer: whether the provider still has the message to it.
    sending: Vec<bool>,
    /// Slots that hold a message.
    arrived: Vec<usize>,
}

impl Messages {
    /// Takes an endpoint that is connected to all of its peers, in the way of [`Promise::Default`],
    /// with a window of twice their number, and posts a receive buffer for each: `slots` is the
    /// offset of the first in the memory registered, and each has `slot_bytes`.
    ///
    /// # Safety
    /// The slots are inside that memory. Nobody else touches them while this value lives, except
    /// between [`Self::take`] and [`Self::give_back`].
    pub(crate) unsafe fn new(raw: Raw, slots: u64, slot_bytes: usize) -> Result<Self, RawError> {
        let peers = raw.peers.len();
        if raw.promise != Promise::Default || raw.contexts.len() != 2 * peers {
            return Err(refused("messages", "an endpoint that was opened for something else"));
        }
        // SAFETY: the info's parts exist and live as long as it does.
        let inject_size = unsafe { (*(*raw.info.raw.as_ptr()).tx_attr).inject_size };
        let mut messages = Self {
            raw,
            slots,
            slot_bytes,
            inject_size,
            sending: vec![false; peers],
            arrived: Vec::with_capacity(peers),
        };
        (0..peers).try_for_each(|slot| messages.give_back(slot))?;
        Ok(messages)
    }

    /// Sends `len` bytes of the memory registered, from `offset` on, to a peer. The one before must
    /// have gone: this waits until the provider has let go of it.
    ///
    /// # Safety
    /// The bytes are inside that memory, and do not change until the peer has answered.
    pub(crate) unsafe fn send(
        &mut self,
        peer: usize,
        offset: u64,
        len: usize,
    ) -> Result<(), RawError> {
        while self.sending[peer] {
            self.turn()?;
        }
        let buf = (self.raw.memory + offset as usize) as *const c_void;
        let (ep, to) = (self.raw.endpoint.as_ptr(), self.raw.peers[peer].address);
        let injected = len <= self.inject_size;
        let context = ptr::from_mut(&mut self.raw.contexts[peer]).cast::<c_void>();
        let desc = self.raw.desc as *mut c_void;
        loop {
            // SAFETY: the endpoint is enabled, the caller vouches for the bytes, and no operation
            // in flight has this context.
            let code = unsafe {
                if injected {
                    fi::fi_inject(ep, buf, len, to)
                } else {
                    fi::fi_send(ep, buf, len, desc, to, context)
                }
            };
            if self.raw.taken("sending", code)? {
                self.sending[peer] = !injected;
                return Ok(());
            }
            self.turn()?;
        }
    }

    /// Takes completions once.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<(), RawError> {
        let mut entries = [const { MaybeUninit::uninit() }; POLL_BATCH];
        let base = self.raw.contexts.as_ptr() as usize;
        let peers = self.sending.len();
        for entry in self.raw.poll(&mut entries)? {
            let index =
                (entry.op_context as usize).wrapping_sub(base) / size_of::<super::Context>();
            if index < peers {
                self.sending[index] = false;
            } else if index < 2 * peers {
                self.arrived.push(index - peers);
            } else {
                return Err(refused("fi_cq_read", "a completion of nothing that was posted"));
            }
        }
        Ok(())
    }

    /// A slot in which a message has arrived.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.arrived.pop()
    }

    fn offset(&self, slot: usize) -> u64 {
        self.slots + (slot * self.slot_bytes) as u64
    }

    /// Posts a slot's buffer again.
    pub(crate) fn give_back(&mut self, slot: usize) -> Result<(), RawError> {
        let buf = (self.raw.memory + self.offset(slot) as usize) as *mut c_void;
        let (ep, len) = (self.raw.endpoint.as_ptr(), self.slot_bytes);
        let context = &mut self.raw.contexts[self.sending.len() + slot];
        let context = ptr::from_mut(context).cast::<c_void>();
        let desc = self.raw.desc as *mut c_void;
        // SAFETY: the endpoint is enabled. The slot is inside the memory registered and nobody
        // else's, by `new`; no operation in flight has this context, because the slot's last one
        // has completed.
        let code = unsafe { fi::fi_recv(ep, buf, len, desc, fi::FI_ADDR_UNSPEC, context) };
        match self.raw.taken("fi_recv", code)? {
            true => Ok(()),
            // There is one for each peer, fewer than any queue holds.
            false => Err(refused("fi_recv", "the provider has no room")),
        }
    }
}
