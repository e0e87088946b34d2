//! The messages of one rail of a port: which buffers are in use, and what has come in.

use std::ffi::c_void;
use std::slice;

use libfabric_sys::{FI_EAGAIN, FI_ETRUNC, FI_REMOTE_CQ_DATA, fi_cq_data_entry};
use log::debug;

use crate::data_path::host_memory;
use crate::data_path::message_buffers::BufferId;
use crate::data_path::rail::Rail;
use crate::error::{port_error, posted, refused};
use crate::objects::endpoint::{Direct, MessageBuffer};
use crate::objects::object::Gate;
use engine::ids::WrId;
use engine::port::packet::PacketOf;
use engine::port::{Incoming, POLL_BATCH, PeerAddr, PortError, Posted, Tail};

/// Every buffer is in one place at a time: a send buffer is in `free` or has a work-request id in
/// `sending`; a receive buffer is posted, in `arrived`, in `unposted`, or, once the rail is broken,
/// nowhere. So the lists never grow beyond the room they are made with.
#[derive(Debug)]
pub(crate) struct Messages {
    /// Longest message that needs no buffer.
    inject_size: usize,
    direct: Direct,
    /// Send buffers that are not in use.
    free: Vec<u32>,
    /// The work-request id of the message in each send buffer.
    sending: Box<[Option<WrId>]>,
    receives: Box<[Receive]>,
    /// What has come in, in the order in which the queue gave it: at most all receive buffers, and
    /// a batch of immediate data that takes none, since the lane takes everything before the next
    /// poll. There is no room for more, and none is made.
    arrived: Vec<Arrived>,
    taken: usize,
    /// Receive buffers that the provider had no room for.
    unposted: Vec<u32>,
    /// Why a receive buffer could not be posted; for the next poll.
    broken: Option<PortError>,
    /// Whether there is anything in `unposted` or `broken`: one flag for the poll to look at.
    unsettled: bool,
}

#[derive(Debug)]
struct Receive {
    buffer: MessageBuffer,
    posted: bool,
}

impl Receive {
    #[inline(always)]
    fn post(&mut self, direct: Direct, gate: &Gate) -> isize {
        // SAFETY: these messages are of the port's one thread, and the gate, if any, is entered.
        // The rail keeps the endpoint open, and buffer and context until that is closed. Nobody
        // touches the buffer before it comes back: only the list it was taken from had it.
        let give = || unsafe { direct.receive(&self.buffer) };
        let code = if gate.is_absent() { give() } else { gate.within(give) };
        self.posted = code == 0;
        code
    }
}

#[derive(Clone, Copy, Debug)]
enum Arrived {
    /// A message of `len` bytes in a receive buffer.
    Message { index: u32, len: u32 },
    /// What came with a peer's write, and the receive buffer that it has taken, where one is taken.
    ImmediateData { data: u64, taken: Option<u32> },
    /// A failed receive, with its error and the receive buffer that it has taken, if any.
    Broken { code: i32, taken: Option<u32> },
}

/// Subject of an error completion that is not a segment's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// A message that was sent with this work-request id.
    Sent(WrId),
    /// Something that has come in. It is taken note of, and the rail goes on.
    Received,
    /// The rail as a whole.
    Rail,
}

impl Messages {
    pub(crate) fn new(rail: &Rail) -> Self {
        let buffers = &rail.message_buffers;
        let (sends, receives) = (buffers.sends(), buffers.receives());
        let (longest, desc) = (buffers.longest(), rail.messages_desc());
        Self {
            inject_size: rail.domain.info.tx_attr().inject_size.min(longest),
            direct: rail.endpoint.direct,
            free: (0..sends as u32).rev().collect(),
            sending: vec![None; sends].into(),
            receives: (0..receives as u32)
                .filter_map(|index| buffers.buffer(BufferId::Receive(index), longest, desc))
                .map(|buffer| Receive { buffer, posted: false })
                .collect(),
            arrived: Vec::with_capacity(receives + POLL_BATCH),
            taken: 0,
            unposted: (0..receives as u32).rev().collect(),
            broken: None,
            unsettled: true,
        }
    }

    /// Whether [`Self::settle`] has nothing to do.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        !self.unsettled
    }

    /// Posts the receive buffers that are due, as far as there is room.
    ///
    /// # Errors
    /// A buffer was refused for good, now or since the last call. It is not tried again.
    #[cold]
    pub(crate) fn settle(&mut self, rail: &Rail, gate: &Gate) -> Result<(), PortError> {
        while self.broken.is_none() {
            let Some(index) = self.unposted.pop() else { break };
            if !self.post(rail, gate, index) {
                break;
            }
        }
        self.unsettled = !self.unposted.is_empty();
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// It is longer than the rail's longest, or libfabric refuses it for good.
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
        self.send_from_buffer(rail, gate, to, wr_id, bytes.len(), |room| {
            room.copy_from_slice(bytes);
        })
    }

    /// Sends a message that ends with bytes elsewhere in memory.
    ///
    /// # Errors
    /// As [`Self::send`].
    ///
    /// # Safety
    /// The tail can be read, and whoever owns it keeps it for the call.
    pub(crate) unsafe fn send_with_tail(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        tail: Tail,
    ) -> Result<Posted, PortError> {
        self.send_from_buffer(rail, gate, to, wr_id, head.len() + tail.len, |room| {
            let (first, rest) = room.split_at_mut(head.len());
            first.copy_from_slice(head);
            // SAFETY: as the caller vouches.
            unsafe { host_memory::load(tail.addr, rest) };
        })
    }

    /// Sends a message of `len` bytes that the closure writes into a buffer, which is free again at
    /// once where libfabric copies so many.
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
            return Err(too_long(len, buffers.longest()));
        };
        // SAFETY: the buffer is free, so only this thread, which has the rail's buffers, uses it.
        if let Some(room) = unsafe { buffers.bytes(id) } {
            write(&mut room[..len]);
            if len <= self.inject_size {
                return inject(rail, gate, to, &room[..len]);
            }
        }
        let entered = gate.enter();
        // SAFETY: one thread, the gate is entered. The rail keeps buffer and context until the
        // endpoint is closed, and the buffer is not written to while it is not free.
        let code = unsafe { rail.endpoint.send(&buffer, to.0) };
        drop(entered);
        if code == 0 {
            self.free.pop();
            self.sending[index as usize] = Some(wr_id);
        }
        posted(rail.domain.library(), "fi_sendmsg", code)
    }

    #[inline(always)]
    pub(crate) fn take_message(&mut self, rail: &Rail, entry: &fi_cq_data_entry) -> bool {
        let buffers = &rail.message_buffers;
        let Some(BufferId::Receive(index)) = buffers.of_context(entry.op_context) else {
            return false;
        };
        let is_plain = entry.flags & FI_REMOTE_CQ_DATA == 0 && entry.len <= buffers.longest();
        if !is_plain || !self.taken_back(index) {
            return false;
        }
        self.arrived.push(Arrived::Message { index, len: entry.len as u32 });
        true
    }

    /// Takes note of a completion that is no segment's: of a message, or of a peer's write.
    ///
    /// # Errors
    /// It is none of these either, or there is no room.
    #[inline(never)]
    pub(crate) fn take_entry(
        &mut self,
        rail: &Rail,
        entry: &fi_cq_data_entry,
    ) -> Result<(), PortError> {
        if self.take_message(rail, entry) {
            return Ok(());
        }
        match rail.message_buffers.of_context(entry.op_context) {
            Some(BufferId::Send(index)) => self.sent(index).map(drop).ok_or_else(stranger),
            Some(BufferId::Receive(index)) if self.taken_back(index) => {
                let taken = Some(index);
                self.arrived.push(if entry.flags & FI_REMOTE_CQ_DATA != 0 {
                    // The length is the write's.
                    Arrived::ImmediateData { data: entry.data, taken }
                } else {
                    // Longer than the rail's longest message.
                    Arrived::Broken { code: FI_ETRUNC as i32, taken }
                });
                Ok(())
            }
            // Such a write is no operation of ours, so it has no context unless it takes a receive.
            // Only FI_REMOTE_CQ_DATA is looked at: libfabric before 2.4 omits FI_RMA beside it.
            None if entry.flags & FI_REMOTE_CQ_DATA != 0 => {
                let (data, taken) = (entry.data, None);
                self.came_without_receive(Arrived::ImmediateData { data, taken })
            }
            _ => Err(stranger()),
        }
    }

    fn came_without_receive(&mut self, arrived: Arrived) -> Result<(), PortError> {
        if self.receives.is_empty() {
            return Ok(());
        }
        if self.arrived.len() == self.arrived.capacity() {
            return Err(refused("fi_cq_read", String::from("immediate data that nobody takes")));
        }
        self.arrived.push(arrived);
        Ok(())
    }

    /// Takes note of an error completion that is no segment's.
    ///
    /// What has come in and cannot be received is no failure of the rail where the provider is
    /// known to go on: anybody who reaches it can send what is too long, or break off. A PE whose
    /// message it was finds out by itself. Elsewhere that is known of what is too long alone.
    #[cold]
    pub(crate) fn failed(
        &mut self,
        rail: &Rail,
        context: *mut c_void,
        error: &mut PortError,
    ) -> Failed {
        let (code, goes_on) = (error.code, *rail.domain.profile.outlives_receives);
        match rail.message_buffers.of_context(context) {
            Some(BufferId::Send(index)) => {
                error.call = "sending a message";
                self.sent(index).map_or(Failed::Rail, Failed::Sent)
            }
            Some(BufferId::Receive(index)) => {
                error.call = "receiving a message";
                if !self.taken_back(index) || !goes_on && code != FI_ETRUNC as i32 {
                    return Failed::Rail;
                }
                debug!("rail {}: {error}", rail.name);
                self.arrived.push(Arrived::Broken { code, taken: Some(index) });
                Failed::Received
            }
            // A broken write that takes no receive, or a message of the provider's own protocol.
            None if goes_on => {
                error.call = "receiving something";
                debug!("rail {}: {error}", rail.name);
                match self.came_without_receive(Arrived::Broken { code, taken: None }) {
                    Ok(()) => Failed::Received,
                    Err(_) => Failed::Rail,
                }
            }
            None => Failed::Rail,
        }
    }

    /// Whether [`Self::receive`] has something to give.
    #[inline(always)]
    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    #[inline(always)]
    fn next_arrived(&mut self) -> Option<Arrived> {
        let next = self.arrived.get(self.taken).copied()?;
        self.taken += 1;
        if self.taken == self.arrived.len() {
            self.arrived.clear();
            self.taken = 0;
        }
        Some(next)
    }

    #[inline(always)]
    pub(crate) fn receive<const N: usize>(
        &mut self,
        rail: &Rail,
        gate: &Gate,
        into: &mut PacketOf<N>,
    ) -> Incoming {
        let (index, len) = match self.next_arrived() {
            None => return Incoming::Nothing,
            Some(Arrived::Message { index, len }) => (index, len as usize),
            Some(Arrived::ImmediateData { data, taken }) => {
                taken.map(|index| self.post(rail, gate, index));
                return Incoming::ImmediateData(data);
            }
            Some(Arrived::Broken { code, taken }) => {
                taken.map(|index| self.post(rail, gate, index));
                return Incoming::Broken { code };
            }
        };
        let Some(receive) = self.receives.get_mut(index as usize) else {
            return Incoming::Nothing;
        };
        // SAFETY: the buffer has room for the rail's longest message. The provider has given it
        // back, and it is posted again only below; this thread alone uses the rail's buffers.
        into.fill(unsafe { slice::from_raw_parts(receive.buffer.buf.cast(), len) });
        let code = receive.post(self.direct, gate);
        if code != 0 {
            self.not_posted(rail, index, code);
        }
        Incoming::Message
    }

    #[inline(never)]
    fn post(&mut self, rail: &Rail, gate: &Gate, index: u32) -> bool {
        let Some(receive) = self.receives.get_mut(index as usize) else { return false };
        let code = receive.post(self.direct, gate);
        if code != 0 {
            self.not_posted(rail, index, code);
        }
        code == 0
    }

    #[cold]
    fn not_posted(&mut self, rail: &Rail, index: u32, code: isize) {
        self.unsettled = true;
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
    fn taken_back(&mut self, index: u32) -> bool {
        self.receives
            .get_mut(index as usize)
            .is_some_and(|receive| std::mem::take(&mut receive.posted))
    }
}

/// Sends bytes that libfabric copies, of at most the rail's `inject_size`.
#[inline]
fn inject(rail: &Rail, gate: &Gate, to: PeerAddr, bytes: &[u8]) -> Result<Posted, PortError> {
    let entered = gate.enter();
    // SAFETY: the port's one thread, with the gate entered; the callers have checked the length.
    let code = unsafe { rail.endpoint.direct.inject(bytes, to.0) };
    drop(entered);
    posted(rail.domain.library(), "fi_inject", code)
}

#[cold]
pub(crate) fn too_long(len: usize, longest: usize) -> PortError {
    refused("message", format!("{len} bytes, and a message has at most {longest}"))
}

#[cold]
fn stranger() -> PortError {
    refused("fi_cq_read", String::from("completion with an unknown context"))
}

#[cfg(test)]
mod tests;
