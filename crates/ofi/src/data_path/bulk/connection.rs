//! A bulk connection: an endpoint, and the progress iteration of its thread.

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL};
use log::debug;

use crate::data_path::bulk::merged_queue::{BulkEvent, EventSender};
use crate::error::port_error;
use crate::objects::contexts::Contexts;
use crate::objects::endpoint::queue::{Entries, QueueOps};
use crate::objects::endpoint::{Endpoint, Rma};
use engine::ids::WrId;
use engine::port::registration::is_unclosed;
use engine::port::{Failure, POLL_BATCH, PeerAddr, PortError};

/// Maximum number of peers with full connections in an iteration; nothing more is posted then.
const MAX_FULL_PEERS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) what: BulkOp,
    pub(super) to: PeerAddr,
    pub(super) wr_id: WrId,
    pub(super) context: usize,
    pub(super) addr: usize,
    pub(super) len: usize,
    pub(super) remote: u64,
    pub(super) key: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BulkOp {
    Write,
    /// With immediate data.
    WriteWithData(u64),
    Read,
    /// Reads a byte from the transfer's remote address, which makes the provider connect to the
    /// peer with this rail address; ends with [`BulkEvent::Probed`].
    Probe(PeerAddr),
}

/// Destination of a probe's byte; its address is the operation's context.
#[derive(Debug)]
#[repr(C, align(64))]
struct ProbeBuffer {
    context: UnsafeCell<[MaybeUninit<u8>; 64]>,
    byte: UnsafeCell<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Iteration {
    /// Something was posted or completed.
    Moved,
    /// Nothing is due: wait for the next event.
    Idle,
    /// Work is due, but waits for capacity of the lane's queue or of the provider.
    Stuck,
}

/// A bulk connection, on its thread's side.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: Arc<Endpoint>,
    queue: QueueOps,
    /// The provider may write to these, and to the buffers in `probes`, until the endpoint is
    /// closed, so they are declared after it.
    contexts: Arc<Contexts>,
    probes: HashMap<usize, (PeerAddr, Box<ProbeBuffer>)>,
    name: String,
    requests: Receiver<Request>,
    /// Requests not posted for lack of capacity; in order for each peer.
    waiting: VecDeque<Request>,
    /// Peers whose connections were full in this iteration.
    full_peers: Vec<PeerAddr>,
    in_flight: u32,
    events: EventSender,
    /// Events for which the lane's queue had no capacity.
    unsent: VecDeque<BulkEvent>,
    entries: Entries,
    /// Whether its queue has failed and is no longer polled.
    is_broken: bool,
}

// SAFETY: only the provider accesses the probe buffers, until the endpoint is closed.
unsafe impl Send for Connection {}

impl Connection {
    /// Creates a connection for at most `depth` transfers in flight, and the lane's end of the
    /// request queue.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        contexts: &Arc<Contexts>,
        name: &str,
        depth: usize,
        events: EventSender,
    ) -> Result<(Self, SyncSender<Request>), PortError> {
        let (sender, requests) = sync_channel(depth.max(1));
        let connection = Self {
            endpoint: Arc::clone(endpoint),
            queue: endpoint.queue()?,
            contexts: Arc::clone(contexts),
            probes: HashMap::new(),
            name: name.to_owned(),
            requests,
            waiting: VecDeque::with_capacity(depth.max(1)),
            full_peers: Vec::with_capacity(MAX_FULL_PEERS),
            in_flight: 0,
            events,
            // The completions of a poll and one refusal, so that reporting never allocates.
            unsent: VecDeque::with_capacity(POLL_BATCH + 1),
            entries: Entries::new(),
            is_broken: false,
        };
        Ok((connection, sender))
    }

    /// Posts requests, polls, and reports completions to the lane.
    pub(super) fn iterate(&mut self) -> Iteration {
        if !self.send_unsent() {
            return Iteration::Stuck;
        }
        match self.post_all() | self.poll() {
            true => Iteration::Moved,
            false if self.unsent.is_empty() && self.waiting.is_empty() => Iteration::Idle,
            false => Iteration::Stuck,
        }
    }

    /// Returns the descriptor that becomes readable with the next event.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        if self.is_broken { None } else { self.endpoint.descriptor().ok() }
    }

    /// Returns true if nothing can be done until the descriptor is readable or the lane submits
    /// work.
    pub(super) fn may_sleep(&mut self) -> bool {
        if let Ok(request) = self.requests.try_recv() {
            self.waiting.push_back(request);
            return false;
        }
        // SAFETY: `&mut self` makes this the only thread that reads the queue.
        self.is_broken || unsafe { self.endpoint.may_sleep() }
    }

    /// Returns true if own transfers are in flight or waiting.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0 || !self.waiting.is_empty()
    }

    /// Reports to the lane why the thread ends.
    #[cold]
    pub(super) fn end(&mut self, error: PortError) {
        self.is_broken = true;
        self.report_failure(None, error);
    }

    /// Posts waiting and new requests; returns whether anything was posted. If the provider has no
    /// capacity for a transfer, all later ones for its peer wait too: its connection may be full.
    fn post_all(&mut self) -> bool {
        let mut moved = false;
        self.full_peers.clear();
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            moved |= self.try_post(request);
        }
        // The rail has at most as many transfers in flight as `waiting` can hold.
        while self.unsent.is_empty() && self.waiting.len() < self.waiting.capacity() {
            let Ok(request) = self.requests.try_recv() else { break };
            moved |= self.try_post(request);
        }
        moved
    }

    fn try_post(&mut self, request: Request) -> bool {
        let is_refused =
            self.full_peers.len() == MAX_FULL_PEERS || self.full_peers.contains(&request.to);
        if self.is_broken || is_refused {
            self.waiting.push_back(request);
            return false;
        }
        let code = match request.what {
            BulkOp::Probe(peer) => self.probe(&request, peer),
            _ => self.post(&request),
        };
        if code == -(FI_EAGAIN as isize) {
            self.full_peers.push(request.to);
            self.waiting.push_back(request);
            return false;
        }
        match (code, request.what) {
            (0, _) => self.in_flight += 1,
            (_, BulkOp::Probe(peer)) => self.report(BulkEvent::Probed(peer, false)),
            (_, BulkOp::Write) => self.refused(&request, "fi_write", code),
            (_, BulkOp::WriteWithData(_)) => self.refused(&request, "fi_writedata", code),
            (_, BulkOp::Read) => self.refused(&request, "fi_read", code),
        }
        true
    }

    /// Posts the read of a byte, and holds its buffer while it is in flight.
    #[cold]
    fn probe(&mut self, request: &Request, peer: PeerAddr) -> isize {
        let buffer = Box::new(ProbeBuffer {
            context: UnsafeCell::new([MaybeUninit::uninit(); 64]),
            byte: UnsafeCell::new(0),
        });
        let context = buffer.context.get() as usize;
        let addr = buffer.byte.get() as usize;
        let code = self.post(&Request { context, addr, len: 1, ..*request });
        if code == 0 {
            self.probes.insert(context, (peer, buffer));
        }
        code
    }

    fn post(&self, request: &Request) -> isize {
        let Request { what, to, context, addr, len, remote, key, .. } = *request;
        let op = Rma {
            buf: addr as *mut c_void,
            len,
            desc: ptr::null_mut(),
            peer: to.0,
            remote,
            key,
            context: context as *mut c_void,
        };
        // SAFETY: only this thread posts here, and these domains have no gate. The context lives as
        // long as the endpoint. The engine keeps the registered memory until the work-request id
        // comes back, as `Local::Memory` demands; `probes` keeps a probe's buffer as long.
        unsafe {
            match what {
                BulkOp::Write => self.endpoint.ops.write(&op),
                BulkOp::WriteWithData(data) => self.endpoint.write_data(&op, data),
                BulkOp::Read | BulkOp::Probe(_) => self.endpoint.ops.read(&op),
            }
        }
    }

    #[cold]
    fn refused(&mut self, request: &Request, call: &'static str, code: isize) {
        let error = port_error(self.endpoint.domain.library(), call, code as i64);
        self.report_failure(Some(request.wr_id), error);
    }

    fn poll(&mut self) -> bool {
        if self.is_broken {
            return false;
        }
        // SAFETY: `&mut self` makes this the only thread that reads the queue, which is open.
        let code = unsafe { self.queue.read(&mut self.entries) };
        if code <= 0 {
            return code != 0 && code != -(FI_EAGAIN as isize) && self.poll_failed(code);
        }
        for at in 0..code as usize {
            // SAFETY: libfabric has written `code` entries, at most the capacity of `entries`.
            let entry = unsafe { &self.entries.written(code as usize)[at] };
            let (op_context, flags, data) = (entry.op_context, entry.flags, entry.data);
            let context = op_context as usize;
            if self.contexts.wr_id(op_context).is_some() {
                self.in_flight = self.in_flight.saturating_sub(1);
            } else if self.end_probe(context, true) {
                continue;
            }
            self.report(BulkEvent::Completed { context, flags, data });
        }
        true
    }

    /// Handles an error of [`Self::poll`]. Returns whether anything was reported.
    #[cold]
    fn poll_failed(&mut self, code: isize) -> bool {
        if code != -(FI_EAVAIL as isize) {
            let error = port_error(self.endpoint.domain.library(), "fi_cq_read", code as i64);
            self.end(error);
            return true;
        }
        // SAFETY: `&mut self` makes this the only thread that reads the queue, which is open.
        let Some((context, error)) = (unsafe { self.endpoint.read_error() }) else { return true };
        if self.end_probe(context as usize, false) {
            return true;
        }
        let wr_id = self.contexts.wr_id(context);
        if wr_id.is_some() {
            self.in_flight = self.in_flight.saturating_sub(1);
        } else if *self.endpoint.domain.profile.outlives_receives {
            debug!("{}: {error}", self.name);
            return true;
        }
        self.report_failure(wr_id, error);
        true
    }

    #[cold]
    fn end_probe(&mut self, context: usize, made: bool) -> bool {
        let Some((peer, _)) = self.probes.remove(&context) else { return false };
        self.in_flight = self.in_flight.saturating_sub(1);
        self.report(BulkEvent::Probed(peer, made));
        true
    }

    #[cold]
    fn report_failure(&mut self, wr_id: Option<WrId>, error: PortError) {
        self.report(BulkEvent::Failed(Failure { wr_id, is_message: false, error }));
    }

    fn report(&mut self, done: BulkEvent) {
        self.unsent.push_back(done);
        self.send_unsent();
    }

    /// Sends unsent events to the lane, in order. Returns false if its queue is full.
    fn send_unsent(&mut self) -> bool {
        while let Some(done) = self.unsent.pop_front() {
            if let Err(done) = self.events.try_send(done) {
                self.unsent.push_front(done);
                return false;
            }
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The lane has dropped its reference before.
        if let Some(endpoint) = Arc::get_mut(&mut self.endpoint) {
            endpoint.close();
        }
        if is_unclosed() {
            // The object that could not be closed may still write to these.
            std::mem::forget(Arc::clone(&self.contexts));
            std::mem::forget(std::mem::take(&mut self.probes));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
