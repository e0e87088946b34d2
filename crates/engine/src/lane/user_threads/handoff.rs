//! The queue by which user threads hand operations over to the proxy lane: those on staged memory,
//! and to PEs whose paths have failed.
//!
//! What is staged takes messages, which peers send to proxy lanes only, and copies, which belong to
//! one thread. So user threads hand such operations over, and wait for them where they have to. In
//! one queue, so they are submitted, and fenced, in their order. What finds no room waits for its
//! peer alone: what is behind it for other peers goes past.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::warn;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::lane::user_threads::outstanding::Outstanding;
use crate::patience::Wait;
use crate::request::{OwnedRequest, Request, Touched};
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::fair_queue::FairQueue;
use crate::state::operation::OpId;

const QUEUE: usize = 256;

const WAITING: usize = 4096;

/// The user threads' end.
#[derive(Debug)]
pub struct Outbox {
    sender: Sender<Item>,
    shared: Arc<Shared>,
    warn_after: Option<Duration>,
    fail_after: Option<Duration>,
}

/// The proxy lane's end.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Item>,
    shared: Arc<Shared>,
    /// What was taken and not submitted to its end yet, by the peer that it waits for.
    pub(crate) waiting: FairQueue<Taken>,
    pub(crate) finishing: Vec<Current>,
}

#[derive(Debug)]
struct Shared {
    outstanding: Outstanding<EngineError>,
    /// The proxy lane's first failure: it may take nothing more.
    failure: OnceLock<EngineError>,
}

#[derive(Debug)]
enum Item {
    Transfer(Box<Transfer>),
    Fence(Pe),
}

#[derive(Debug)]
struct Transfer {
    request: OwnedRequest,
    ended: Option<Arc<Ended>>,
}

type Ended = Mutex<Option<Result<(), EngineError>>>;

/// One that the lane has taken.
#[derive(Debug)]
pub(crate) struct Current {
    transfer: Box<Transfer>,
    pub(crate) sent: usize,
    pub(crate) op: OpId,
}

impl Current {
    pub(crate) fn request(&self) -> Request<'_> {
        self.transfer.request.request()
    }
}

/// Something that the lane has taken.
#[derive(Debug)]
pub(crate) enum Taken {
    Transfer(Current),
    Fence(Pe),
}

impl Taken {
    pub(crate) fn pe(&self) -> Pe {
        match self {
            Self::Transfer(current) => current.request().pe,
            Self::Fence(pe) => *pe,
        }
    }
}

impl Inbox {
    /// See [`Lane::audit`]. User threads may be handing something over meanwhile.
    ///
    /// [`Lane::audit`]: crate::lane::Lane::audit
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self) -> Result<(), Discrepancy> {
        self.waiting.audit("operations of user threads that wait")?;
        let taken = self.waiting.len() + self.finishing.len();
        let all = self.shared.outstanding.count() as usize;
        same("operations of user threads", all, all.max(taken))
    }
}

/// Both ends, for a job of so many PEs. Waits are reported and given up as the watchdog does it.
pub fn handover(
    n_pes: u32,
    warn_after: Option<Duration>,
    fail_after: Option<Duration>,
) -> (Outbox, Inbox) {
    let (sender, receiver) = bounded(QUEUE);
    let shared =
        Arc::new(Shared { outstanding: Outstanding::new(n_pes), failure: OnceLock::new() });
    let inbox = Inbox {
        receiver,
        shared: Arc::clone(&shared),
        waiting: FairQueue::default(),
        finishing: Vec::with_capacity(QUEUE),
    };
    (Outbox { sender, shared, warn_after, fail_after }, inbox)
}

impl Outbox {
    /// Hands a put or a get over, and waits for its end if asked to. It allocates a kilobyte, for
    /// the handles; the proxy thread, which copies megabytes for it, frees that.
    ///
    /// # Errors
    /// The proxy lane's error about it, if waited for. That the proxy lane does not take it.
    pub(crate) fn transfer(&self, request: &Request<'_>, wait: bool) -> Result<(), EngineError> {
        let pe = request.pe;
        let ended = wait.then(|| Arc::new(Mutex::new(None)));
        let request = OwnedRequest::of(request);
        let item = Item::Transfer(Box::new(Transfer { request, ended: ended.clone() }));
        self.shared.outstanding.begin(pe);
        self.send(pe, item).inspect_err(|_| self.shared.outstanding.end(pe, None))?;
        let Some(ended) = ended else { return Ok(()) };
        let take = || ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut outcome = None;
        self.wait(pe, || {
            outcome = take();
            outcome.is_some()
        })?;
        outcome.unwrap_or(Ok(()))
    }

    pub(crate) fn fence(&self, pe: Pe) -> Result<(), EngineError> {
        if self.is_quiet(pe) {
            return Ok(());
        }
        self.shared.outstanding.begin_fence();
        self.send(pe, Item::Fence(pe)).inspect_err(|_| self.shared.outstanding.end_fence())
    }

    pub(crate) fn is_quiet(&self, pe: Pe) -> bool {
        self.shared.outstanding.is_quiet(pe)
    }

    pub(crate) fn quiet(&self, pe: Pe) -> Result<(), EngineError> {
        self.quiet_when(pe, |now| now)
    }

    pub(crate) fn quiet_when(
        &self,
        pe: Pe,
        over: impl Fn(bool) -> bool,
    ) -> Result<(), EngineError> {
        self.wait(pe, || over(self.is_quiet(pe)))?;
        self.shared.outstanding.failure(pe).map_or(Ok(()), Err)
    }

    fn send(&self, pe: Pe, item: Item) -> Result<(), EngineError> {
        let mut item = Some(item);
        self.wait(pe, || match item.take().map(|item| self.sender.try_send(item)) {
            Some(Err(TrySendError::Full(back))) => {
                item = Some(back);
                false
            }
            // Without a lane it stays undone, and is waited for in vain: the deadline says so.
            _ => true,
        })
    }

    pub(crate) fn failure(&self) -> Option<&EngineError> {
        self.shared.failure.get()
    }

    /// Waits for the proxy thread.
    fn wait(&self, pe: Pe, mut done: impl FnMut() -> bool) -> Result<(), EngineError> {
        let mut wait = Wait::new();
        let mut warned = 0;
        while !done() {
            // The proxy thread may be gone for it.
            if let Some(failed) = self.failure() {
                return Err(failed.clone());
            }
            std::thread::yield_now();
            let waited = wait.waited();
            let report = || EngineError::ProxyStill { pe, seconds: waited.as_secs() };
            match self.due(waited, &mut warned) {
                Due::Nothing => {}
                Due::Warning => warn!(target: "TRANSPORT", "{}", report()),
                Due::Failure => return Err(report()),
            }
        }
        Ok(())
    }

    fn due(&self, waited: Duration, warned: &mut u32) -> Due {
        if self.fail_after.is_some_and(|limit| waited >= limit) {
            return Due::Failure;
        }
        if self.warn_after.is_some_and(|limit| waited > limit * (*warned + 1)) {
            *warned += 1;
            return Due::Warning;
        }
        Due::Nothing
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Due {
    Nothing,
    Warning,
    Failure,
}

impl Inbox {
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.shared.outstanding.count() != 0
    }

    /// Takes all that user threads have handed over so far, in its order: it can be looked at then.
    pub(crate) fn take_all(&mut self) {
        // A queue's length is bounded, and so is what this adds to what waits.
        for _ in 0..QUEUE {
            let Some(taken) = self.take() else { return };
            self.waiting.push(taken.pe(), taken);
        }
    }

    pub(crate) fn memory(&self) -> impl Iterator<Item = Touched> + '_ {
        let waiting = self.waiting.iter().filter_map(|(_, taken)| match taken {
            Taken::Transfer(current) => Some(current),
            Taken::Fence(_) => None,
        });
        waiting.chain(&self.finishing).filter_map(|current| current.transfer.request.memory())
    }

    pub(crate) fn next(&mut self) -> Option<Taken> {
        if self.waiting.len() >= WAITING {
            return None;
        }
        self.take()
    }

    fn take(&self) -> Option<Taken> {
        Some(match self.receiver.try_recv().ok()? {
            Item::Fence(pe) => Taken::Fence(pe),
            Item::Transfer(transfer) => {
                Taken::Transfer(Current { transfer, sent: 0, op: OpId::NONE })
            }
        })
    }

    pub(crate) fn fenced(&self) {
        self.shared.outstanding.end_fence();
    }

    pub(crate) fn fail(&self, failed: &EngineError) {
        let _ = self.shared.failure.set(failed.clone());
    }

    pub(crate) fn end(&self, current: Current, outcome: Result<(), EngineError>) {
        let pe = current.request().pe;
        let Transfer { ended, .. } = *current.transfer;
        let failed = match ended {
            Some(ended) => {
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                None
            }
            None => outcome.err(),
        };
        self.shared.outstanding.end(pe, failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Direction;
    use crate::request::LocalSide;
    use crate::wire::handle::{HANDLE_BYTES, HandleBytes};

    const HANDLE: HandleBytes = [0; HANDLE_BYTES];

    fn put(pe: u32, addr: usize) -> Request<'static> {
        Request {
            direction: Direction::Write,
            pe: Pe(pe),
            remote_handle: &HANDLE,
            remote_addr: 0,
            local: LocalSide::Memory(addr),
            len: 8,
        }
    }

    fn take(inbox: &mut Inbox) -> Option<Current> {
        match inbox.next()? {
            Taken::Transfer(current) => Some(current),
            Taken::Fence(pe) => panic!("a fence for {pe}"),
        }
    }

    fn failure(pe: u32) -> EngineError {
        EngineError::NoSuchPe { pe: Pe(pe), n_pes: 3 }
    }

    #[test]
    fn who_finds_the_queue_full_waits_and_loses_nothing() {
        let (outbox, mut inbox) = handover(2, None, Some(Duration::ZERO));
        assert!(!inbox.has_work());
        for at in 0..QUEUE {
            outbox.transfer(&put(1, at), false).unwrap();
        }
        let full = outbox.transfer(&put(1, QUEUE), false);
        assert!(matches!(full, Err(EngineError::ProxyStill { pe: Pe(1), .. })), "{full:?}");
        assert!(inbox.has_work() && !outbox.is_quiet(Pe(1)) && outbox.is_quiet(Pe(0)));
        assert!(outbox.fence(Pe(1)).is_err());
        let outstanding = inbox.shared.outstanding.count();
        assert_eq!(outstanding, QUEUE as u32, "of what was handed over alone");
        while let Some(current) = take(&mut inbox) {
            inbox.end(current, Ok(()));
        }
        assert!(outbox.is_quiet(Pe(1)) && !inbox.has_work());

        let (outbox, mut inbox) = handover(2, None, None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..3 * QUEUE {
                    outbox.transfer(&put(1, at), false).unwrap();
                }
                outbox.fence(Pe(0)).unwrap();
                outbox.quiet(Pe(1)).unwrap();
            });
            for at in 0..3 * QUEUE {
                let current = loop {
                    if let Some(current) = take(&mut inbox) {
                        break current;
                    }
                    std::thread::yield_now();
                };
                let local = LocalSide::Memory(at);
                assert_eq!(format!("{:?}", current.request().local), format!("{local:?}"));
                inbox.end(current, Ok(()));
            }
        });
        assert!(!inbox.has_work() && inbox.next().is_none(), "no fence for PE 0");
    }

    #[test]
    fn a_failure_is_told_to_who_waits_for_it_or_for_its_pe() {
        let (outbox, mut inbox) = handover(3, None, None);
        for (pe, number) in [(1, 11), (0, 10), (1, 12)] {
            outbox.transfer(&put(pe, 0), false).unwrap();
            let current = take(&mut inbox).unwrap();
            inbox.end(current, Err(failure(number)));
        }
        assert_eq!(outbox.quiet(Pe(1)), Err(failure(11)), "the first");
        assert_eq!(outbox.quiet(Pe(0)), Err(failure(10)));
        assert_eq!(outbox.quiet(Pe(2)), Ok(()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| outbox.transfer(&put(2, 0), true));
            let current = loop {
                if let Some(current) = take(&mut inbox) {
                    break current;
                }
                std::thread::yield_now();
            };
            inbox.end(current, Err(failure(7)));
            assert_eq!(waits.join().unwrap(), Err(failure(7)));
        });
        assert_eq!(outbox.quiet(Pe(2)), Ok(()), "it was told already");
    }

    #[test]
    fn no_more_is_taken_than_may_wait() {
        let (outbox, mut inbox) = handover(2, None, None);
        outbox.transfer(&put(1, 0), false).unwrap();
        (0..WAITING).for_each(|_| inbox.waiting.push(Pe(1), Taken::Fence(Pe(1))));
        assert!(inbox.next().is_none());
        inbox.waiting.pop(Pe(1));
        assert!(inbox.next().is_some());
    }

    #[test]
    fn who_waits_is_warned_each_time_as_long_and_gives_up_in_the_end() {
        let (outbox, _inbox) =
            handover(2, Some(Duration::from_secs(2)), Some(Duration::from_secs(7)));
        let mut warned = 0;
        let told = (0..=14).filter_map(|half| {
            let waited = Duration::from_millis(500 * half);
            let due = outbox.due(waited, &mut warned);
            (due != Due::Nothing).then_some((half, due))
        });
        let expected =
            [(5, Due::Warning), (9, Due::Warning), (13, Due::Warning), (14, Due::Failure)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        let (patient, _inbox) = handover(2, None, None);
        assert_eq!(patient.due(Duration::from_secs(1 << 20), &mut warned), Due::Nothing);
    }

    #[test]
    fn nobody_waits_for_a_lane_that_has_failed() {
        let (outbox, mut inbox) = handover(2, None, None);
        outbox.transfer(&put(1, 0), false).unwrap();
        outbox.fence(Pe(1)).unwrap();
        assert!(take(&mut inbox).is_some());
        assert!(matches!(inbox.next(), Some(Taken::Fence(Pe(1)))));
        assert_eq!(inbox.shared.outstanding.count(), 2);
        inbox.fenced();
        assert_eq!(inbox.shared.outstanding.count(), 1);
        inbox.fail(&failure(1));
        inbox.fail(&failure(2));
        assert_eq!(outbox.quiet(Pe(1)), Err(failure(1)));
        assert_eq!(outbox.transfer(&put(1, 0), true), Err(failure(1)));
        assert_eq!(outbox.quiet(Pe(0)), Ok(()));
    }
}
