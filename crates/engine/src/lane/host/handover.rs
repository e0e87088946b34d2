//! Handover: the queue through which user threads pass operations to the proxy lane.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::warn;

use crate::core::Continuation;
use crate::error::EngineError;
use crate::group::CompletionId;
use crate::ids::Pe;
use crate::lane::host::outstanding::Outstanding;
use crate::lane::{Lane, Pulse};
use crate::op::{Op, OpKind};
use crate::port::Port;
use crate::request::Request;
use crate::thread_wait::Wait;
use crate::wire::handle::HandleBytes;

/// Maximum number of operations handed over and not taken. A thread with one more waits.
const CAPACITY: usize = 256;

/// Sending end, which any user thread may use at any time.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender<Handover>,
    shared: Arc<HandoverState>,
    warn_after: Option<Duration>,
    fail_after: Option<Duration>,
}

/// Receiving end. It belongs to the proxy lane and its thread.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Handover>,
    shared: Arc<HandoverState>,
    /// Item that waits for a free completion group.
    next: Option<Handover>,
    /// Peers of items that a thread waits for.
    awaited: Vec<(Pe, Weak<HandoverResult>)>,
}

#[derive(Debug)]
struct HandoverState {
    outstanding: Outstanding<EngineError>,
    /// First failure of the proxy lane, which may take nothing more.
    failure: OnceLock<EngineError>,
    /// Iterations of the proxy lane that have looked at what was handed over.
    served: Pulse,
}

#[derive(Debug)]
struct Handover {
    pe: Pe,
    kind: HandoverKind,
    /// Receives the result, for a thread that waits.
    ended: Option<Arc<HandoverResult>>,
}

#[derive(Debug)]
enum HandoverKind {
    Transfer(Box<(Op, HandleBytes)>),
    Fence,
    Quiet,
}

type HandoverResult = Mutex<Option<Result<(), EngineError>>>;

/// Returns both ends for a job of `n_pes`, with the times after which waits warn and fail.
pub fn handover(
    n_pes: u32,
    warn_after: Option<Duration>,
    fail_after: Option<Duration>,
) -> (Outbox, Inbox) {
    let (sender, receiver) = bounded(CAPACITY);
    let outstanding = Outstanding::new(n_pes);
    let (failure, served) = (OnceLock::new(), Pulse::default());
    let shared = Arc::new(HandoverState { outstanding, failure, served });
    let shared_by_inbox = Arc::clone(&shared);
    let inbox = Inbox { receiver, shared: shared_by_inbox, next: None, awaited: Vec::new() };
    (Outbox { sender, shared, warn_after, fail_after }, inbox)
}

impl Outbox {
    /// Hands over a put or a get, and blocks until its end if `wait`.
    ///
    /// # Errors
    /// The proxy lane's error about it, if waited for; or that the proxy lane takes nothing.
    pub(crate) fn transfer(&self, request: &Request<'_>, wait: bool) -> Result<(), EngineError> {
        let Request { direction, pe, remote_handle, remote_addr: remote, local, len } = *request;
        // The proxy lane gives it a completion group.
        let kind = OpKind::Transfer(direction);
        let op = Op { remote, local, len, ..Op::new(kind, CompletionId::NONE) };
        self.hand_over(pe, HandoverKind::Transfer(Box::new((op, *remote_handle))), wait)
    }

    pub(crate) fn fence(&self, pe: Pe) -> Result<(), EngineError> {
        let is_quiet = self.shared.outstanding.is_quiet(pe);
        if is_quiet { Ok(()) } else { self.hand_over(pe, HandoverKind::Fence, false) }
    }

    /// Blocks until everything handed over for the PE so far has ended.
    pub(crate) fn quiet(&self, pe: Pe) -> Result<(), EngineError> {
        if !self.shared.outstanding.is_quiet(pe) {
            self.hand_over(pe, HandoverKind::Quiet, true)?;
        }
        // Failed operations that no thread waits for report here.
        self.shared.outstanding.failure(pe).map_or(Ok(()), Err)
    }

    fn hand_over(&self, pe: Pe, kind: HandoverKind, wait: bool) -> Result<(), EngineError> {
        let ended: Option<Arc<HandoverResult>> = wait.then(Arc::default);
        let mut item = Some(Handover { pe, kind, ended: ended.clone() });
        self.wait(pe, || match item.take().map(|item| self.send(item)) {
            Some(Err(back)) => {
                item = Some(back);
                false
            }
            _ => true,
        })?;
        let Some(ended) = ended else { return Ok(()) };
        let mut outcome = None;
        self.wait(pe, || {
            outcome = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
            outcome.is_some()
        })?;
        outcome.unwrap_or(Ok(()))
    }

    /// Counts and sends an item; returns it, uncounted, if the queue is full.
    fn send(&self, item: Handover) -> Result<(), Handover> {
        let pe = item.pe;
        // Counted before it is sent: the proxy thread may end it before `try_send` returns.
        self.shared.outstanding.begin(pe);
        match self.sender.try_send(item) {
            Err(TrySendError::Full(back)) => {
                self.shared.outstanding.end(pe, None);
                Err(back)
            }
            // Without a lane the item never ends, which the deadline reports.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    pub(crate) fn failure(&self) -> Option<&EngineError> {
        self.shared.failure.get()
    }

    fn wait(&self, pe: Pe, mut done: impl FnMut() -> bool) -> Result<(), EngineError> {
        let (mut wait, mut warned, mut served) = (Wait::new(), 0, 0);
        while !done() {
            // A proxy lane that iterates has a deadline of its own for each operation.
            if served != self.shared.served.count() {
                (wait, warned, served) = (Wait::new(), 0, self.shared.served.count());
            }
            if let Some(failed) = self.failure() {
                return Err(failed.clone());
            }
            // The proxy thread may need this core to end the item.
            std::thread::yield_now();
            let waited = wait.waited();
            let report = || EngineError::ProxyStalled { pe, seconds: waited.as_secs() };
            if self.fail_after.is_some_and(|limit| waited >= limit) {
                return Err(report());
            }
            if self.warn_after.is_some_and(|limit| waited > limit * (warned + 1)) {
                warned += 1;
                warn!(target: "TRANSPORT", "{}", report());
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct ActiveHandover {
    pub(crate) pe: Pe,
    shared: Arc<HandoverState>,
    ended: Option<Arc<HandoverResult>>,
}

impl ActiveHandover {
    pub(crate) fn end(self, failed: Option<EngineError>) {
        let Self { pe, shared, ended } = self;
        // A failure goes to the thread that waits; without one, to the next quiet.
        let lost = match ended {
            Some(ended) => {
                let outcome = failed.map_or(Ok(()), Err);
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                None
            }
            None => failed,
        };
        shared.outstanding.end(pe, lost);
    }
}

impl Inbox {
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        !self.shared.outstanding.is_empty()
    }

    /// Lets all waiting threads return with the lane's failure.
    pub(crate) fn fail(&self, failed: &EngineError) {
        let _ = self.shared.failure.set(failed.clone());
    }
}

impl<P: Port> Lane<P> {
    /// Submits what user threads have handed over. Returns whether there was anything.
    pub(crate) fn serve_inbox(&mut self) -> bool {
        let Some(mut inbox) = self.inbox.take() else { return false };
        inbox.shared.served.beat();
        let mut moved = false;
        // A submitter would wait for space, and the proxy thread must not wait for one peer.
        while !self.has_saturated_peer() {
            let Some(item) = inbox.next.take().or_else(|| inbox.receiver.try_recv().ok()) else {
                break;
            };
            match self.submit_handover(&mut inbox, item) {
                Ok(()) => moved = true,
                Err(item) => {
                    inbox.next = Some(item);
                    break;
                }
            }
        }
        if let Some(failed) = self.core.failures.first() {
            inbox.fail(failed);
        }
        inbox.awaited.retain(|(pe, ended)| {
            let waits = ended.upgrade().is_some_and(|ended| {
                ended.lock().unwrap_or_else(PoisonError::into_inner).is_none()
            });
            if waits {
                // Not with each message that is sent meanwhile: one request at a time.
                self.core.request_first_ack(*pe);
            }
            waits
        });
        self.inbox = Some(inbox);
        moved
    }

    /// Submits an item; returns it if all completion groups are in use.
    fn submit_handover(&mut self, inbox: &mut Inbox, item: Handover) -> Result<(), Handover> {
        if let HandoverKind::Fence = item.kind {
            let _ = self.fence(item.pe);
            ActiveHandover { pe: item.pe, shared: Arc::clone(&inbox.shared), ended: item.ended }
                .end(None);
            return Ok(());
        }
        let Some(group) = self.core.groups.start() else { return Err(item) };
        let Handover { pe, kind, ended } = item;
        let handed = ActiveHandover { pe, shared: Arc::clone(&inbox.shared), ended };
        if let Err(failed) = self.core.reach_peer(pe) {
            self.core.groups.finish(group);
            handed.end(Some(failed));
            return Ok(());
        }
        inbox.awaited.extend(handed.ended.as_ref().map(|ended| (pe, Arc::downgrade(ended))));
        // The item's own count keeps the group from ending before it is submitted.
        self.core.groups.begin(group);
        self.core.groups.set_continuation(group, Continuation::Handover(handed));
        let failed = if let HandoverKind::Transfer(transfer) = kind {
            let (op, handle) = *transfer;
            self.submit(pe, Op { completion: group, ..op }, &handle).err()
        } else {
            self.mark_quiet(pe, group);
            None
        };
        if let (Some(failed), true) = (failed, self.core.peers.get(pe).error.is_none()) {
            // Refused with nothing in flight: the error is this item's alone.
            if let Some(Continuation::Handover(handed)) = self.core.groups.take_continuation(group)
            {
                handed.end(Some(failed));
            }
            let _ = self.core.groups.end(group, 1);
            self.core.groups.finish(group);
            return Ok(());
        }
        self.core.end_in_group(group);
        Ok(())
    }
}
