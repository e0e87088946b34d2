//! A connection for bulk: an endpoint, and what its thread does there in an iteration.

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL};
use log::debug;

use crate::data_path::bulk::merged_queue::{Done, Tell};
use crate::error::port_error;
use crate::objects::contexts::Contexts;
use crate::objects::endpoint::queue::{DirectQueue, Entries};
use crate::objects::endpoint::{Endpoint, Rma};
use engine::ids::WrId;
use engine::port::registration::is_unclosed;
use engine::port::{Failure, POLL_BATCH, PeerAddr, PortError};

/// Peers without room that are told apart in an iteration; if there are more, all are left alone.
const REFUSALS: usize = 8;

/// A transfer that the lane hands over.
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

/// Operation of a bulk connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum BulkOp {
    Write,
    /// With immediate data.
    WriteWithData(u64),
    Read,
    /// A byte is read from where the transfer would go, so that the connection is made to the peer,
    /// whose rail this is: see [`Done::Reached`].
    Reach(PeerAddr),
}

/// Where a byte goes by which a peer is reached; its address is the operation's context.
#[repr(C, align(64))]
struct Landing {
    context: UnsafeCell<[MaybeUninit<u8>; 64]>,
    byte: UnsafeCell<u8>,
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Landing")
    }
}

/// Outcome of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Iteration {
    /// Something has moved.
    Moved,
    /// Nothing has, and the next event is waited for.
    Idle,
    /// What is due waits for the lane, or for the provider to make room.
    Stuck,
}

/// A connection, as the thread has it that moves its bytes.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: Arc<Endpoint>,
    queue: DirectQueue,
    /// The provider may write to these, and to the landings in `tried`, until the endpoint is
    /// closed, which the order of the fields sees to.
    contexts: Arc<Contexts>,
    tried: HashMap<usize, (PeerAddr, Box<Landing>)>,
    name: String,
    requests: Receiver<Request>,
    /// Taken from the queue and not posted for lack of room; in order for each peer.
    waiting: VecDeque<Request>,
    /// For whom there was no room in this iteration.
    refusals: Vec<PeerAddr>,
    /// Posted, and not completed.
    under_way: u32,
    tell: Tell,
    /// Reports for which the lane's queue had no space.
    untold: VecDeque<Done>,
    entries: Entries,
    /// Its queue answers nothing but errors: nothing more is asked of it.
    is_broken: bool,
}

// SAFETY: landings are touched by the provider alone, until the endpoint is closed.
unsafe impl Send for Connection {}

impl Connection {
    /// One with so many transfers under way at most, and the lane's end of their queue.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        contexts: &Arc<Contexts>,
        name: &str,
        depth: usize,
        tell: Tell,
    ) -> Result<(Self, SyncSender<Request>), PortError> {
        let (give, requests) = sync_channel(depth.max(1));
        let connection = Self {
            endpoint: Arc::clone(endpoint),
            queue: endpoint.queue()?,
            contexts: Arc::clone(contexts),
            tried: HashMap::new(),
            name: name.to_owned(),
            requests,
            waiting: VecDeque::with_capacity(depth.max(1)),
            refusals: Vec::with_capacity(REFUSALS),
            under_way: 0,
            tell,
            // What a poll finds, and one that is refused: telling allocates nothing.
            untold: VecDeque::with_capacity(POLL_BATCH + 1),
            entries: Entries::new(),
            is_broken: false,
        };
        Ok((connection, give))
    }

    /// Posts what was handed over, polls, and tells what is done.
    pub(super) fn iterate(&mut self) -> Iteration {
        if !self.tell_untold() {
            return Iteration::Stuck;
        }
        match self.post_all() | self.poll() {
            true => Iteration::Moved,
            false if self.untold.is_empty() && self.waiting.is_empty() => Iteration::Idle,
            false => Iteration::Stuck,
        }
    }

    /// The descriptor that tells of the next event.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        if self.is_broken { None } else { self.endpoint.descriptor().ok() }
    }

    /// Whether nothing can be done until the descriptor is readable or the lane hands over work.
    pub(super) fn may_sleep(&mut self) -> bool {
        if let Ok(request) = self.requests.try_recv() {
            self.waiting.push_back(request);
            return false;
        }
        // SAFETY: `&mut self` makes this the only thread that reads the queue.
        self.is_broken || unsafe { self.endpoint.may_sleep() }
    }

    /// Whether transfers of ours are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    /// Tells the lane why the thread ends, should it still be there.
    #[cold]
    pub(super) fn end(&mut self, error: PortError) {
        self.is_broken = true;
        self.tell_failed(None, error);
    }

    /// Posts what waits and what was handed over; returns whether anything was posted. A transfer
    /// without room waits with all later ones for its peer, whose connection may be the full one.
    fn post_all(&mut self) -> bool {
        let mut moved = false;
        self.refusals.clear();
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            moved |= self.try_post(request);
        }
        // The rail has no more under way than there is room for here.
        while self.untold.is_empty() && self.waiting.len() < self.waiting.capacity() {
            let Ok(request) = self.requests.try_recv() else { break };
            moved |= self.try_post(request);
        }
        moved
    }

    fn try_post(&mut self, request: Request) -> bool {
        let is_refused = self.refusals.len() == REFUSALS || self.refusals.contains(&request.to);
        if self.is_broken || is_refused {
            self.waiting.push_back(request);
            return false;
        }
        let code = match request.what {
            BulkOp::Reach(peer) => self.reach(&request, peer),
            _ => self.post(&request),
        };
        if code == -(FI_EAGAIN as isize) {
            self.refusals.push(request.to);
            self.waiting.push_back(request);
            return false;
        }
        match (code, request.what) {
            (0, _) => self.under_way += 1,
            (_, BulkOp::Reach(peer)) => self.tell(Done::Reached(peer, false)),
            (_, BulkOp::Write) => self.refused(&request, "fi_write", code),
            (_, BulkOp::WriteWithData(_)) => self.refused(&request, "fi_writedata", code),
            (_, BulkOp::Read) => self.refused(&request, "fi_read", code),
        }
        true
    }

    /// Reads a byte, and notes where it goes if that is under way.
    #[cold]
    fn reach(&mut self, request: &Request, peer: PeerAddr) -> isize {
        let landing = Box::new(Landing {
            context: UnsafeCell::new([MaybeUninit::uninit(); 64]),
            byte: UnsafeCell::new(0),
        });
        let context = landing.context.get() as usize;
        let addr = landing.byte.get() as usize;
        let what = BulkOp::Read;
        let code = self.post(&Request { what, context, addr, len: 1, ..*request });
        if code == 0 {
            self.tried.insert(context, (peer, landing));
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
        // SAFETY: this thread alone posts here, and a domain of these has no gate. The context
        // lives as long as the endpoint. The engine keeps the memory that it registered until the
        // work-request id comes back, as `Local::Memory` demands; a landing is kept as long.
        unsafe {
            match what {
                BulkOp::Write => self.endpoint.direct.write(&op),
                BulkOp::WriteWithData(data) => self.endpoint.write_data(&op, data),
                BulkOp::Read | BulkOp::Reach(_) => self.endpoint.direct.read(&op),
            }
        }
    }

    #[cold]
    fn refused(&mut self, request: &Request, call: &'static str, code: isize) {
        let error = port_error(self.endpoint.domain.library(), call, code as i64);
        self.tell_failed(Some(request.wr_id), error);
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
            // SAFETY: libfabric has written so many entries, at most as many as there is room for.
            let entry = unsafe { &self.entries.written(code as usize)[at] };
            let (op_context, flags, data) = (entry.op_context, entry.flags, entry.data);
            let context = op_context as usize;
            if self.contexts.wr_id(op_context).is_some() {
                self.under_way = self.under_way.saturating_sub(1);
            } else if self.has_reached(context, true) {
                continue;
            }
            self.tell(Done::Completed { context, flags, data });
        }
        true
    }

    /// As [`Self::poll`], where the answer was an error.
    #[cold]
    fn poll_failed(&mut self, code: isize) -> bool {
        if code != -(FI_EAVAIL as isize) {
            let error = port_error(self.endpoint.domain.library(), "fi_cq_read", code as i64);
            self.end(error);
            return true;
        }
        // SAFETY: `&mut self` makes this the only thread that reads the queue, which is open.
        let Some((context, error)) = (unsafe { self.endpoint.read_error() }) else { return true };
        if self.has_reached(context as usize, false) {
            return true;
        }
        let wr_id = self.contexts.wr_id(context);
        if wr_id.is_some() {
            self.under_way = self.under_way.saturating_sub(1);
        } else if *self.endpoint.domain.profile.outlives_receives {
            debug!("{}: {error}", self.name);
            return true;
        }
        self.tell_failed(wr_id, error);
        true
    }

    #[cold]
    fn has_reached(&mut self, context: usize, made: bool) -> bool {
        let Some((peer, _)) = self.tried.remove(&context) else { return false };
        self.under_way = self.under_way.saturating_sub(1);
        self.tell(Done::Reached(peer, made));
        true
    }

    #[cold]
    fn tell_failed(&mut self, wr_id: Option<WrId>, error: PortError) {
        self.tell(Done::Failed(Failure { wr_id, is_message: false, error }));
    }

    fn tell(&mut self, done: Done) {
        self.untold.push_back(done);
        self.tell_untold();
    }

    /// Tells the lane what is done, in order, as far as there is room. Whether that was all.
    fn tell_untold(&mut self) -> bool {
        while let Some(done) = self.untold.pop_front() {
            if let Err(done) = self.tell.try_tell(done) {
                self.untold.push_front(done);
                return false;
            }
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The lane has given it up.
        if let Some(endpoint) = Arc::get_mut(&mut self.endpoint) {
            endpoint.close();
        }
        if is_unclosed() {
            // What could not be closed may be what writes to these.
            std::mem::forget(Arc::clone(&self.contexts));
            std::mem::forget(std::mem::take(&mut self.tried));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
