//! Merged completions of a rail: those of its bulk connections and of its own queue.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, FI_REMOTE_CQ_DATA, fi_cq_data_entry, fid_cq};

use crate::objects::endpoint::queue::QueueOps;
use engine::port::{Failure, POLL_BATCH, PeerAddr};

/// Capacity for immediate data that comes in by a connection, in events of the lane's queue.
pub(super) const INCOMING_MARGIN: usize = 1024;

#[derive(Debug)]
pub(super) enum BulkEvent {
    /// A completion: the fields of its queue entry that the lane uses.
    Completed { context: usize, flags: u64, data: u64 },
    /// A transfer failed, or the connection as a whole.
    Failed(Failure),
    /// End of a [`BulkOp::Probe`](super::connection::BulkOp::Probe), and whether it has connected.
    Probed(PeerAddr, bool),
}

/// The threads' end of the event queue.
#[derive(Clone, Debug)]
pub(super) struct EventSender {
    at: usize,
    done: SyncSender<(usize, BulkEvent)>,
    /// Number of events sent by all threads of a rail, so that a poll that finds nothing is one
    /// load.
    sent: Arc<AtomicU64>,
}

impl EventSender {
    pub(super) fn for_connection(&self, at: usize) -> Self {
        Self { at, ..self.clone() }
    }

    /// Sends an event to the lane; returns it if the queue is full.
    pub(super) fn try_send(&self, done: BulkEvent) -> Result<(), BulkEvent> {
        match self.done.try_send((self.at, done)) {
            Ok(()) => {
                self.sent.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Err(TrySendError::Full((_, done))) => Err(done),
            // Nobody receives it any longer: the port is being dropped.
            Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

/// Completion queue of a rail with bulk connections, which the lane's thread reads through
/// [`MergedQueue::queue_ops`].
///
/// It is heap-allocated, so that its address is constant: the lane reads it by the same call as the
/// queue of a rail without bulk connections.
#[derive(Debug)]
pub(super) struct MergedQueue(NonNull<UnsafeCell<Inner>>);

// SAFETY: it owns the value that it points to, which is `Send`.
unsafe impl Send for MergedQueue {}
// SAFETY: shared access reads only counts, and the lane has one thread; see `MergedQueue::inner`.
unsafe impl Sync for MergedQueue {}

#[derive(Debug)]
struct Inner {
    own: QueueOps,
    done: Receiver<(usize, BulkEvent)>,
    sent: Arc<AtomicU64>,
    taken: u64,
    /// Transfers in flight of each connection.
    in_flight: Vec<u32>,
    /// Failure taken from the queue, until the lane takes it.
    failure: Option<Failure>,
    /// Ended probes: connection, peer, and whether it is connected.
    probed: Vec<(usize, PeerAddr, bool)>,
}

impl MergedQueue {
    /// Creates a queue for `connections` with `depth` transfers in flight each.
    pub(super) fn new(own: QueueOps, connections: usize, depth: usize) -> (Self, EventSender) {
        let (send, done) = sync_channel(connections * (depth + INCOMING_MARGIN));
        let sender = EventSender { at: 0, done: send, sent: Arc::default() };
        let inner = Inner {
            own,
            done,
            sent: Arc::clone(&sender.sent),
            taken: 0,
            in_flight: vec![0; connections],
            failure: None,
            probed: Vec::new(),
        };
        (Self(NonNull::from(Box::leak(Box::new(UnsafeCell::new(inner))))), sender)
    }

    pub(super) fn queue_ops(&self) -> QueueOps {
        // SAFETY: only the lane's one thread reads the queue, since the port owns the rail, and not
        // while it calls another method of this value. The port holds both, so the address is valid
        // as long as the queue is read.
        unsafe { QueueOps::standing_for(self.0.as_ptr().cast(), read) }
    }

    fn inner(&mut self) -> &mut Inner {
        // SAFETY: live; `&mut self` is the lane's only thread, which does not read the queue now.
        unsafe { &mut *(*self.0.as_ptr()).get() }
    }

    pub(super) fn in_flight(&mut self, at: usize) -> u32 {
        self.inner().in_flight[at]
    }

    pub(super) fn count_posted(&mut self, at: usize) {
        self.inner().in_flight[at] += 1;
    }

    /// Takes the failure for which the last read returned `-FI_EAVAIL`; None if it is of the rail's
    /// own queue.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.inner().failure.take()
    }

    /// Takes the events of threads, without the queue of completions.
    #[cfg(test)]
    pub(super) fn told(&self) -> impl Iterator<Item = BulkEvent> {
        // SAFETY: live, and no thread reads the queue in tests that call this.
        let inner = unsafe { &*(*self.0.as_ptr()).get() };
        inner.done.try_iter().map(|(_, done)| done)
    }

    pub(super) fn next_probed(&mut self) -> Option<(usize, PeerAddr, bool)> {
        self.inner().probed.pop()
    }
}

impl Drop for MergedQueue {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once, here; nobody reads it any longer.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Inner {
    /// Writes completions of connections to at most half of the entries, then, as `fi_cq_read`
    /// does, those of the rail's own queue, which could fill every poll.
    ///
    /// # Safety
    /// As [`QueueOps::read_into`].
    unsafe fn read(&mut self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        if self.failure.is_some() {
            return -(FI_EAVAIL as isize);
        }
        let mut found = 0;
        if self.sent.load(Ordering::Acquire) != self.taken {
            found = self.take(count / 2, |at, entry| {
                // SAFETY: below `count`, by the caller's promise.
                unsafe { entries.add(at).write(entry) };
            });
        }
        // SAFETY: the caller's promise, for the remaining entries.
        let own = unsafe { self.own.read_into(entries.add(found), count - found) };
        match found as isize + own.max(0) {
            0 if self.failure.is_some() => -(FI_EAVAIL as isize),
            0 if own == 0 => -(FI_EAGAIN as isize),
            // The next read finds an error of the rail's own queue again.
            0 => own,
            found => found,
        }
    }

    #[inline(never)]
    fn take(&mut self, room: usize, mut put: impl FnMut(usize, fi_cq_data_entry)) -> usize {
        let mut found = 0;
        while found < room && self.failure.is_none() {
            let Ok((at, done)) = self.done.try_recv() else { break };
            self.taken += 1;
            let in_flight = &mut self.in_flight[at];
            match done {
                BulkEvent::Completed { context, flags, data } => {
                    if flags & FI_REMOTE_CQ_DATA == 0 {
                        *in_flight = in_flight.saturating_sub(1);
                    }
                    let (op_context, buf) = (context as *mut c_void, ptr::null_mut());
                    put(found, fi_cq_data_entry { op_context, flags, len: 0, buf, data });
                    found += 1;
                }
                // Once for each peer and connection.
                BulkEvent::Probed(peer, made) => self.probed.push((at, peer, made)),
                BulkEvent::Failed(failure) => {
                    *in_flight = in_flight.saturating_sub(u32::from(failure.wr_id.is_some()));
                    self.failure = Some(failure);
                }
            }
        }
        found
    }
}

// Each poll has entries for both queues.
const _: () = assert!(POLL_BATCH > 1);

unsafe extern "C" fn read(inner: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    let inner = inner.cast::<UnsafeCell<Inner>>();
    // SAFETY: the address is that of `MergedQueue::queue_ops`, and this is the lane's only thread.
    let inner = unsafe { &mut *(*inner).get() };
    // SAFETY: the caller has memory for `count` entries.
    unsafe { inner.read(entries.cast(), count) }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;
    use crate::error::refused;
    use engine::ids::WrId;

    const AGAIN: isize = -(FI_EAGAIN as isize);
    const BROKEN: isize = -(libc::EPIPE as isize);
    const ERROR: isize = -(FI_EAVAIL as isize);

    /// The rail's own queue: gives so many entries of context 1, again and again, or the code.
    unsafe extern "C" fn own(raw: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
        // SAFETY: what `bed` gives.
        let answer = unsafe { *raw.cast::<isize>() }.min(count as isize);
        let (op_context, buf) = (ptr::without_provenance_mut(1), ptr::null_mut());
        for at in 0..answer.max(0) as usize {
            let entry = fi_cq_data_entry { op_context, flags: 0, len: 0, buf, data: 7 };
            // SAFETY: below the count.
            unsafe { entries.cast::<fi_cq_data_entry>().add(at).write(entry) };
        }
        answer
    }

    fn bed(answer: &'static isize) -> (MergedQueue, EventSender) {
        let address = (&raw const *answer).cast_mut().cast();
        // SAFETY: the function takes such an address, which lasts.
        MergedQueue::new(unsafe { QueueOps::standing_for(address, own) }, 2, 64)
    }

    fn complete(sender: &EventSender, at: usize, context: usize, flags: u64) {
        let done = BulkEvent::Completed { context, flags, data: 7 };
        sender.for_connection(at).try_send(done).expect("room");
    }

    fn fail(sender: &EventSender, at: usize, wr_id: Option<u32>) {
        let error = refused("a test", String::from("as told"));
        let failure = Failure { wr_id: wr_id.map(WrId), is_message: false, error };
        sender.for_connection(at).try_send(BulkEvent::Failed(failure)).expect("room");
    }

    fn read(merged: &MergedQueue, count: usize) -> Result<Vec<usize>, isize> {
        let mut entries = [const { MaybeUninit::<fi_cq_data_entry>::uninit() }; 8];
        // SAFETY: there is room for as many; this is the only thread.
        let code = unsafe { merged.queue_ops().read_into(entries.as_mut_ptr().cast(), count) };
        if code < 0 {
            return Err(code);
        }
        // SAFETY: so many were written.
        let context = |entry: &MaybeUninit<_>| unsafe {
            let entry: &fi_cq_data_entry = entry.assume_init_ref();
            entry.op_context as usize
        };
        Ok(entries[..code as usize].iter().map(context).collect())
    }

    #[test]
    fn busy_rail_leaves_room_for_bulk() {
        let (mut merged, sender) = bed(&8);
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]), "all is the rail's while there is no other");
        (10..16).for_each(|context| complete(&sender, context % 2, context, 0));
        assert_eq!(read(&merged, 8), Ok(vec![10, 11, 12, 13, 1, 1, 1, 1]));
        assert_eq!(read(&merged, 8), Ok(vec![14, 15, 1, 1, 1, 1, 1, 1]));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
        // A failure, too, is told although the rail has more.
        fail(&sender, 0, Some(3));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
        assert_eq!(read(&merged, 8), Err(ERROR));
        assert_eq!(merged.take_failure().map(|failure| failure.wr_id), Some(Some(WrId(3))));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
    }

    #[test]
    fn transfers_count_until_they_end() {
        let (mut merged, sender) = bed(&AGAIN);
        (0..3).for_each(|_| merged.count_posted(1));
        complete(&sender, 1, 10, 0);
        (0..2).for_each(|_| complete(&sender, 1, 0, FI_REMOTE_CQ_DATA));
        fail(&sender, 1, Some(3));
        fail(&sender, 1, None);
        sender.for_connection(1).try_send(BulkEvent::Probed(PeerAddr(7), true)).expect("room");
        assert_eq!(merged.in_flight(1), 3, "nobody has looked");
        assert_eq!(read(&merged, 8), Ok(vec![10, 0, 0]));
        for wr_id in [Some(WrId(3)), None] {
            assert_eq!(read(&merged, 8), Err(ERROR));
            assert_eq!(merged.take_failure().map(|failure| failure.wr_id), Some(wr_id));
        }
        assert_eq!((merged.in_flight(0), merged.in_flight(1)), (0, 1));
        assert_eq!(read(&merged, 8), Err(AGAIN));
        assert_eq!(merged.next_probed(), Some((1, PeerAddr(7), true)));
        assert_eq!(merged.next_probed(), None, "once");
    }

    #[test]
    fn rail_queue_answers_pass_through() {
        for (answer, code) in [(&0, AGAIN), (&AGAIN, AGAIN), (&BROKEN, BROKEN), (&ERROR, ERROR)] {
            let (mut merged, sender) = bed(answer);
            assert_eq!(read(&merged, 8), Err(code));
            complete(&sender, 1, 11, 0);
            assert_eq!(read(&merged, 8), Ok(vec![11]), "a connection's come first");
            assert_eq!(read(&merged, 8), Err(code));
            assert!(merged.take_failure().is_none(), "the error is the rail's own");
        }
    }
}
