//! Messages of one rail of a port: buffers in use, and messages that have arrived.

use std::ffi::c_void;
use std::slice;

use libfabric_sys::{FI_EAGAIN, FI_ETRUNC, FI_REMOTE_CQ_DATA, fi_cq_data_entry};
use log::debug;

use crate::data_path::host_memory;
use crate::data_path::message_buffers::BufferId;
use crate::data_path::rail::Rail;
use crate::error::{port_error, posted, refused};
use crate::objects::contexts::index_in;
use crate::objects::endpoint::{EndpointOps, MessageBuffer};
use crate::objects::object::Gate;
use engine::ids::WrId;
use engine::port::packet::PacketOf;
use engine::port::{Incoming, POLL_BATCH, PeerAddr, PortError, Posted, Tail};

/// Each buffer is in one list at a time: a send buffer is in `free` or has a work-request id in
/// `sending`; a receive buffer is posted, in `arrived`, in `unposted`, or, once the rail is broken,
/// in none. So no list grows beyond its initial capacity.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Maximum bytes of a message that needs no buffer.
    inject_size: usize,
    ops: EndpointOps,
    /// Unused send buffers.
    free: Vec<u32>,
    /// Work-request id of the message in each send buffer.
    sending: Box<[Option<WrId>]>,
    receives: Box<[Receive]>,
    /// Address of the first one's context, which the others' follow.
    receive_contexts: usize,
    /// Arrivals in the order of the completion queue: at most all receive buffers and a batch of
    /// immediate data without buffer, since the lane takes everything before the next poll. Never
    /// grows.
    arrived: Vec<Arrived>,
    next: usize,
    /// Receive buffers for which the provider had no capacity.
    unposted: Vec<u32>,
    /// Error of a receive buffer that could not be posted, until the next poll reports it.
    broken: Option<PortError>,
    /// Whether `unposted` or `broken` has anything: one flag for each poll to check.
    pub(crate) needs_repost: bool,
}

#[derive(Debug)]
struct Receive {
    buffer: MessageBuffer,
    posted: bool,
}

impl Receive {
    #[inline(always)]
    fn post(&mut self, ops: &EndpointOps, gate: &Gate) -> isize {
        // SAFETY: the port's one thread uses these messages, and the gate, if any, is entered. The
        // rail keeps the endpoint open, and buffer and context until it is closed. Nobody accesses
        // the buffer before it comes back: only the list that it was taken from had it.
        let give = || unsafe { ops.receive(&self.buffer) };
        let code = if gate.is_absent() { give() } else { gate.within(give) };
        self.posted = code == 0;
        code
    }
}

#[derive(Clone, Copy, Debug)]
enum Arrived {
    /// A message of `len` bytes in a receive buffer.
    Message { index: u32, len: u32 },
    /// Immediate data of a peer's write, and the receive buffer that it has consumed, if any.
    ImmediateData { data: u64, taken: Option<u32> },
    /// A failed receive, its error, and the receive buffer that it has consumed, if any.
    Broken { code: i32, taken: Option<u32> },
}

/// Subject of an error completion that is not a segment's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailedOp {
    /// The message sent with this work-request id.
    Sent(WrId),
    /// A receive. It is in `arrived`, and the rail continues.
    Received,
    /// The rail as a whole.
    Rail,
}

impl Messages {
    pub(crate) fn new(rail: &Rail) -> Self {
        let buffers = &rail.message_buffers;
        let (sends, receives) = (buffers.sends, buffers.receives);
        let (longest, desc) = (buffers.longest, rail.messages_desc());
        let all: Box<[Receive]> = (0..receives as u32)
            .filter_map(|index| buffers.buffer(BufferId::Receive(index), longest, desc))
            .map(|buffer| Receive { buffer, posted: false })
            .collect();
        Self {
            inject_size: rail.domain.info.tx_attr().inject_size.min(longest),
            ops: rail.endpoint.ops,
            free: (0..sends as u32).rev().collect(),
            sending: vec![None; sends].into(),
            receive_contexts: all.first().map_or(0, |first| first.buffer.context as usize),
            receives: all,
            arrived: Vec::with_capacity(receives + POLL_BATCH),
            next: 0,
            unposted: (0..receives as u32).rev().collect(),
            broken: None,
            needs_repost: true,
        }
    }

    /// Posts unposted receive buffers, as far as the provider has capacity.
    ///
    /// # Errors
    /// A buffer was refused for good, now or since the last call, and is not posted again.
    #[cold]
    pub(crate) fn repost(&mut self, rail: &Rail, gate: &Gate) -> Result<(), PortError> {
        while self.broken.is_none() {
            let Some(index) = self.unposted.pop() else { break };
            if !self.post(rail, gate, index) {
                break;
            }
        }
        self.needs_repost = !self.unposted.is_empty();
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The message is too long, or libfabric refuses it for good.
    #[inline]
    pub(crate) fn send(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        if bytes.len() <= self.inject_size {
            return inject(rail, gate, to, bytes);
        }
        self.send_from_buffer(rail, gate, to, wr_id, bytes.len(), |buffer| {
            buffer.copy_from_slice(bytes);
        })
    }

    /// Sends a message that ends with bytes elsewhere in memory.
    ///
    /// # Safety
    /// The tail is readable memory during the call.
    pub(crate) unsafe fn send_with_tail(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        tail: Tail,
    ) -> Result<Posted, PortError> {
        self.send_from_buffer(rail, gate, to, wr_id, head.len() + tail.len, |buffer| {
            let (first, rest) = buffer.split_at_mut(head.len());
            first.copy_from_slice(head);
            // SAFETY: the caller's promise.
            unsafe { host_memory::load(tail.addr, rest) };
        })
    }

    /// Sends a message of `len` bytes that the closure writes into a buffer. If libfabric copies
    /// the bytes, the buffer is free again at once.
    #[inline]
    fn send_from_buffer(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        to: PeerAddr,
        wr_id: WrId,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<Posted, PortError> {
        let Some(&index) = self.free.last() else { return Ok(Posted::Again) };
        let id = BufferId::Send(index);
        let buffers = &rail.message_buffers;
        let Some(buffer) = buffers.buffer(id, len, rail.messages_desc()) else {
            return Err(too_long(len, buffers.longest));
        };
        // SAFETY: the buffer is free, so only this thread uses it.
        if let Some(buffer) = unsafe { buffers.bytes(id) } {
            write(&mut buffer[..len]);
            if len <= self.inject_size {
                return inject(rail, gate, to, &buffer[..len]);
            }
        }
        let entered = gate.enter();
        // SAFETY: one thread, with the gate entered. The rail keeps buffer and context until the
        // endpoint is closed, and the buffer is written to only while it is free.
        let code = unsafe { rail.endpoint.send(&buffer, to.0) };
        drop(entered);
        if code == 0 {
            self.free.pop();
            self.sending[index as usize] = Some(wr_id);
        }
        posted(rail.domain.library(), "fi_sendmsg", code)
    }

    #[inline(always)]
    pub(crate) fn take_message(&mut self, entry: &fi_cq_data_entry) -> bool {
        // Contexts of other operations are not among these.
        let index = index_in(self.receive_contexts, entry.op_context);
        let Some(receive) = self.receives.get_mut(index) else { return false };
        let is_plain = entry.flags & FI_REMOTE_CQ_DATA == 0 && entry.len <= receive.buffer.len;
        if !is_plain || !std::mem::take(&mut receive.posted) {
            return false;
        }
        self.arrived.push(Arrived::Message { index: index as u32, len: entry.len as u32 });
        true
    }

    /// Handles a completion of a message or of a peer's write.
    ///
    /// # Errors
    /// The completion is neither, or `arrived` is full.
    #[inline(never)]
    pub(crate) fn take_entry(
        &mut self,
        rail: &Rail,
        entry: &fi_cq_data_entry,
    ) -> Result<(), PortError> {
        if self.take_message(entry) {
            return Ok(());
        }
        match rail.message_buffers.of_context(entry.op_context) {
            Some(BufferId::Send(index)) => self.sent(index).map(drop).ok_or_else(unknown_context),
            Some(BufferId::Receive(index)) if self.reclaim(index) => {
                let taken = Some(index);
                self.arrived.push(if entry.flags & FI_REMOTE_CQ_DATA != 0 {
                    // The entry's length is that of the write.
                    Arrived::ImmediateData { data: entry.data, taken }
                } else {
                    // The message is longer than the rail's longest.
                    Arrived::Broken { code: FI_ETRUNC as i32, taken }
                });
                Ok(())
            }
            // A peer's write has no context unless it consumes a receive. Only FI_REMOTE_CQ_DATA is
            // checked: libfabric before 2.4 omits FI_RMA beside it.
            None if entry.flags & FI_REMOTE_CQ_DATA != 0 => {
                let (data, taken) = (entry.data, None);
                self.push_without_receive(Arrived::ImmediateData { data, taken })
            }
            _ => Err(unknown_context()),
        }
    }

    fn push_without_receive(&mut self, arrived: Arrived) -> Result<(), PortError> {
        if self.receives.is_empty() {
            return Ok(());
        }
        if self.arrived.len() == self.arrived.capacity() {
            return Err(refused("fi_cq_read", String::from("immediate data that nobody takes")));
        }
        self.arrived.push(arrived);
        Ok(())
    }

    /// Handles an error completion of a message.
    ///
    /// A failed receive does not fail the rail if the provider is known to continue: anybody who
    /// reaches it can send a message that is too long, or break off. If a PE sent the message, it
    /// detects the loss itself. Other providers are known to continue only after a truncation.
    #[cold]
    pub(crate) fn failed(
        &mut self,
        rail: &Rail,
        context: *mut c_void,
        error: &mut PortError,
    ) -> FailedOp {
        let (code, goes_on) = (error.code, *rail.domain.profile.outlives_receives);
        match rail.message_buffers.of_context(context) {
            Some(BufferId::Send(index)) => {
                error.call = "sending a message";
                self.sent(index).map_or(FailedOp::Rail, FailedOp::Sent)
            }
            Some(BufferId::Receive(index)) => {
                error.call = "receiving a message";
                if !self.reclaim(index) || !goes_on && code != FI_ETRUNC as i32 {
                    return FailedOp::Rail;
                }
                debug!("rail {}: {error}", rail.name);
                self.arrived.push(Arrived::Broken { code, taken: Some(index) });
                FailedOp::Received
            }
            // A broken write that consumes no receive, or a message of the provider's own protocol.
            None if goes_on => {
                error.call = "receiving something";
                debug!("rail {}: {error}", rail.name);
                match self.push_without_receive(Arrived::Broken { code, taken: None }) {
                    Ok(()) => FailedOp::Received,
                    Err(_) => FailedOp::Rail,
                }
            }
            None => FailedOp::Rail,
        }
    }

    /// Returns true if [`Self::receive`] may have an arrival to return. False once it had none.
    #[inline(always)]
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    #[inline(always)]
    fn next_arrived(&mut self) -> Option<Arrived> {
        let next = self.arrived.get(self.next).copied();
        self.next += 1;
        if next.is_none() {
            self.arrived.clear();
            self.next = 0;
        }
        next
    }

    #[inline(always)]
    pub(crate) fn receive<const N: usize>(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        into: &mut PacketOf<N>,
    ) -> Incoming {
        let Some(next) = self.next_arrived() else { return Incoming::Nothing };
        let Arrived::Message { index, len } = next else {
            return self.receive_other(rail, gate, next);
        };
        let Some(receive) = self.receives.get_mut(index as usize) else {
            return Incoming::Nothing;
        };
        // SAFETY: the buffer has the bytes of the rail's longest message. The provider has returned
        // it, and it is posted again only below; only this thread uses the rail's buffers.
        into.fill(unsafe { slice::from_raw_parts(receive.buffer.buf.cast(), len as usize) });
        let code = receive.post(&self.ops, gate);
        if code != 0 {
            self.not_posted(rail, index, code);
        }
        Incoming::Message
    }

    #[inline(never)]
    fn receive_other(&mut self, rail: &Rail, gate: &Gate, arrived: Arrived) -> Incoming {
        let (taken, incoming) = match arrived {
            Arrived::Message { .. } => return Incoming::Nothing,
            Arrived::ImmediateData { data, taken } => (taken, Incoming::ImmediateData(data)),
            Arrived::Broken { code, taken } => (taken, Incoming::Broken { code }),
        };
        taken.map(|index| self.post(rail, gate, index));
        incoming
    }

    fn post(&mut self, rail: &Rail, gate: &Gate, index: u32) -> bool {
        let Some(receive) = self.receives.get_mut(index as usize) else { return false };
        let code = receive.post(&self.ops, gate);
        if code != 0 {
            self.not_posted(rail, index, code);
        }
        code == 0
    }

    #[cold]
    fn not_posted(&mut self, rail: &Rail, index: u32, code: isize) {
        self.needs_repost = true;
        if code == -(FI_EAGAIN as isize) {
            self.unposted.push(index);
        } else {
            self.broken = Some(port_error(rail.domain.library(), "fi_recv", code as i64));
        }
    }

    #[inline]
    fn sent(&mut self, index: u32) -> Option<WrId> {
        let wr_id = self.sending[index as usize].take()?;
        self.free.push(index);
        Some(wr_id)
    }

    #[inline]
    fn reclaim(&mut self, index: u32) -> bool {
        self.receives
            .get_mut(index as usize)
            .is_some_and(|receive| std::mem::take(&mut receive.posted))
    }
}

/// Sends at most the rail's `inject_size` bytes, which libfabric copies.
#[inline]
fn inject(rail: &Rail, gate: &Gate, to: PeerAddr, bytes: &[u8]) -> Result<Posted, PortError> {
    let entered = gate.enter();
    // SAFETY: the port's one thread, with the gate entered; the callers have checked the length.
    let code = unsafe { rail.endpoint.ops.inject(bytes, to.0) };
    drop(entered);
    posted(rail.domain.library(), "fi_inject", code)
}

#[cold]
pub(crate) fn too_long(len: usize, longest: usize) -> PortError {
    refused("message", format!("{len} bytes, and a message has at most {longest}"))
}

#[cold]
fn unknown_context() -> PortError {
    refused("fi_cq_read", String::from("completion with an unknown context"))
}

#[cfg(test)]
mod tests;
