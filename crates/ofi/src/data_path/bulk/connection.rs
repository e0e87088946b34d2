//! A connection for bulk: an endpoint with its queues, and what its thread does there in an
//! iteration.

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL};
use log::debug;

use crate::data_path::bulk::Plan;
use crate::data_path::bulk::done::{Done, Entry, News};
use crate::data_path::bulk::thread::Moves;
use crate::error::port_error;
use crate::objects::completion_queue::{Entries, Wakes};
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use crate::objects::endpoint::{Endpoint, Rma};
use engine::ids::WrId;
use engine::port::registration::is_unclosed;
use engine::port::{Failure, POLL_BATCH, PeerAddr, PortError};

const COMES_IN: usize = 1024;

const QUEUE_MARGIN: usize = 256;

const REFUSALS: usize = 8;

/// A transfer that the lane hands over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) to: PeerAddr,
    pub(super) wr_id: WrId,
    pub(super) context: usize,
    pub(super) addr: usize,
    pub(super) len: usize,
    pub(super) remote: u64,
    pub(super) key: u64,
}

/// What a transfer is.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
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

/// The lane's ends of a connection.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) requests: SyncSender<Request>,
    pub(super) done: Receiver<Done>,
}

#[derive(Default)]
struct Refusals {
    peers: [Option<PeerAddr>; REFUSALS],
    count: usize,
}

impl Refusals {
    fn has(&self, peer: PeerAddr) -> bool {
        self.count == REFUSALS || self.peers[..self.count].contains(&Some(peer))
    }

    fn add(&mut self, peer: PeerAddr) {
        if let Some(place) = self.peers.get_mut(self.count) {
            *place = Some(peer);
            self.count += 1;
        }
    }
}

/// What came of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Iteration {
    /// Something has moved.
    Moved,
    /// Nothing has, and the next event is waited for.
    Idle,
    /// What is due waits for the lane, or for the provider to make room.
    Stuck,
}

/// A connection, as the thread has it that moves its bytes, or the lane while that waits.
#[derive(Debug)]
pub(super) struct Connection {
    endpoint: Endpoint,
    /// The provider may write to these until the endpoint is closed, which the order of the fields
    /// sees to.
    contexts: Arc<Contexts>,
    name: String,
    requests: Receiver<Request>,
    /// Taken from the queue, and not posted for lack of room, in the order in which they came for
    /// each peer.
    waiting: VecDeque<Request>,
    /// Posted, and not completed.
    under_way: u32,
    tried: HashMap<usize, (PeerAddr, Box<Landing>)>,
    done: SyncSender<Done>,
    /// For which `done` had no room.
    untold: VecDeque<Done>,
    news: Arc<News>,
    entries: Entries,
    outlives_receives: bool,
    /// Its queue answers nothing but errors: nothing more is asked of it.
    is_broken: bool,
}

impl Connection {
    pub(super) fn open(
        domain: &Arc<Domain>,
        plan: &Plan<'_>,
        contexts: &Arc<Contexts>,
        news: &Arc<News>,
    ) -> Result<(Self, Ends), PortError> {
        let depth = plan.depth as usize;
        let completions = depth + QUEUE_MARGIN;
        let endpoint = Endpoint::open(domain, completions, plan.peers, false, Wakes::ByDescriptor)?;
        // Answered by what cannot wake anybody, that is said now.
        endpoint.queue().descriptor()?;
        let (give, requests) = sync_channel(depth.max(1));
        let (done, take) = sync_channel(depth + COMES_IN);
        let connection = Self {
            endpoint,
            contexts: Arc::clone(contexts),
            name: plan.name.to_owned(),
            requests,
            waiting: VecDeque::with_capacity(depth.max(1)),
            under_way: 0,
            tried: HashMap::new(),
            done,
            // What a poll finds, and one that is refused: telling allocates nothing.
            untold: VecDeque::with_capacity(POLL_BATCH + 1),
            news: Arc::clone(news),
            entries: Entries::new(),
            outlives_receives: plan.outlives_receives,
            is_broken: false,
        };
        Ok((connection, Ends { requests: give, done: take }))
    }

    pub(super) fn address(&mut self) -> Vec<u8> {
        self.endpoint.address().to_vec()
    }

    pub(super) fn insert(&mut self, addresses: &[&[u8]]) -> Result<Vec<PeerAddr>, PortError> {
        self.endpoint.vector().insert(addresses, self.endpoint.address().len())
    }

    /// Posts what waits and what was handed over. What finds no room waits, with all that follows
    /// for the same peer, whose own connection it may be that has none. Whether anything was
    /// posted.
    fn post_all(&mut self) -> bool {
        let mut moved = false;
        let mut refusals = Refusals::default();
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            moved |= self.try_post(request, &mut refusals);
        }
        // The rail has no more under way than there is room for here.
        while self.untold.is_empty() && self.waiting.len() < self.waiting.capacity() {
            let Ok(request) = self.requests.try_recv() else { break };
            moved |= self.try_post(request, &mut refusals);
        }
        moved
    }

    fn try_post(&mut self, request: Request, refusals: &mut Refusals) -> bool {
        if self.is_broken || refusals.has(request.to) {
            self.waiting.push_back(request);
            return false;
        }
        let code = match request.what {
            What::Reach(peer) => self.reach(&request, peer),
            _ => self.post(&request),
        };
        match code {
            0 => self.under_way += 1,
            code if code == -(FI_EAGAIN as isize) => {
                refusals.add(request.to);
                self.waiting.push_back(request);
                return false;
            }
            code => self.refused(&request, code),
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
        let context = (&raw const *landing) as usize;
        let addr = landing.byte.get() as usize;
        let what = What::Read;
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
        // SAFETY: `&mut self` in `try_post` makes this the only thread, and a domain of these has
        // no gate. The context lives as long as the endpoint. The memory is what the engine
        // registered and keeps until the work-request id comes back, as `Local::Memory` demands, or
        // a landing, which is kept as long.
        unsafe {
            match what {
                What::Write => self.endpoint.write(&op),
                What::WriteWithData(data) => self.endpoint.write_data(&op, data),
                What::Read | What::Reach(_) => self.endpoint.read(&op),
            }
        }
    }

    #[cold]
    fn refused(&mut self, request: &Request, code: isize) {
        let call = match request.what {
            What::Write => "fi_write",
            What::WriteWithData(_) => "fi_writedata",
            What::Read => "fi_read",
            What::Reach(peer) => return self.tell(Done::Reached(peer, false)),
        };
        let error = port_error(self.library(), call, code as i64);
        let wr_id = Some(request.wr_id);
        self.tell(Done::Failed(Failure { wr_id, is_message: false, error }));
    }

    fn poll(&mut self) -> bool {
        if self.is_broken {
            return false;
        }
        // SAFETY: `&mut self` makes this the only thread; the queue is open.
        let code = unsafe { self.endpoint.queue().direct().read(&mut self.entries) };
        if code <= 0 {
            return code != 0 && code != -(FI_EAGAIN as isize) && self.poll_failed(code);
        }
        for at in 0..code as usize {
            // SAFETY: libfabric has written so many entries, at most as many as there is room for.
            let entry = Entry::from(unsafe { &self.entries.written(code as usize)[at] });
            if self.contexts.wr_id(entry.context as *mut c_void).is_some() {
                self.under_way = self.under_way.saturating_sub(1);
            } else if self.has_reached(entry.context, true) {
                continue;
            }
            self.tell(Done::Completed(entry));
        }
        true
    }

    /// As [`Self::poll`], where the answer was an error.
    #[cold]
    fn poll_failed(&mut self, code: isize) -> bool {
        let (wr_id, error) = if code == -(FI_EAVAIL as isize) {
            // SAFETY: `&mut self` makes this the only thread; the queue is open.
            let Some(entry) = (unsafe { self.endpoint.queue().read_error() }) else { return true };
            if self.has_reached(entry.op_context as usize, false) {
                return true;
            }
            (self.contexts.wr_id(entry.op_context), entry.error)
        } else {
            self.is_broken = true;
            (None, port_error(self.library(), "fi_cq_read", code as i64))
        };
        if wr_id.is_some() {
            self.under_way = self.under_way.saturating_sub(1);
        } else if self.outlives_receives && !self.is_broken {
            debug!("{}: {error}", self.name);
            return true;
        }
        self.tell(Done::Failed(Failure { wr_id, is_message: false, error }));
        true
    }

    #[cold]
    fn has_reached(&mut self, context: usize, made: bool) -> bool {
        let Some((peer, _)) = self.tried.remove(&context) else { return false };
        self.under_way = self.under_way.saturating_sub(1);
        self.tell(Done::Reached(peer, made));
        true
    }

    fn tell(&mut self, done: Done) {
        if !self.untold.is_empty() {
            return self.untold.push_back(done);
        }
        match self.done.try_send(done) {
            Ok(()) => self.news.tell(),
            // Nobody takes it any more in the latter case: the port is being dropped.
            Err(TrySendError::Full(done)) => self.untold.push_back(done),
            Err(TrySendError::Disconnected(_)) => {}
        }
    }

    fn tell_untold(&mut self) -> bool {
        while let Some(done) = self.untold.pop_front() {
            match self.done.try_send(done) {
                Ok(()) => self.news.tell(),
                Err(TrySendError::Full(done)) => {
                    self.untold.push_front(done);
                    return false;
                }
                Err(TrySendError::Disconnected(_)) => {}
            }
        }
        true
    }

    fn library(&self) -> &'static libfabric_sys::Library {
        self.endpoint.domain().library()
    }
}

impl Moves for Connection {
    fn descriptor(&self) -> Option<RawFd> {
        if self.is_broken { None } else { self.endpoint.queue().descriptor().ok() }
    }

    fn may_sleep(&mut self) -> bool {
        if let Ok(request) = self.requests.try_recv() {
            self.waiting.push_back(request);
            return false;
        }
        // SAFETY: `&mut self` makes this the only thread.
        self.is_broken || unsafe { self.endpoint.queue().may_sleep() }
    }

    fn is_busy(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    fn iterate(&mut self) -> Iteration {
        if !self.tell_untold() {
            return Iteration::Stuck;
        }
        let moved = self.post_all() | self.poll();
        match moved {
            true => Iteration::Moved,
            false if self.untold.is_empty() && self.waiting.is_empty() => Iteration::Idle,
            false => Iteration::Stuck,
        }
    }

    #[cold]
    fn end(&mut self, error: PortError) {
        self.is_broken = true;
        self.tell(Done::Failed(Failure { wr_id: None, is_message: false, error }));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.endpoint.close();
        if is_unclosed() {
            // What could not be closed may be what writes to these.
            std::mem::forget(Arc::clone(&self.contexts));
            std::mem::forget(std::mem::take(&mut self.tried));
        }
    }
}

#[cfg(test)]
mod tests;
