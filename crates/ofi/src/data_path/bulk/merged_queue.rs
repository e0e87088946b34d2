//! The completions of a rail with connections for bulk: theirs and those of its own queue.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, FI_REMOTE_CQ_DATA, fi_cq_data_entry, fid_cq};

use crate::objects::endpoint::queue::DirectQueue;
use engine::port::{Failure, POLL_BATCH, PeerAddr};

/// What comes in by a connection, as immediate data, that its thread has room to tell of.
pub(super) const COMES_IN: usize = 1024;

/// Report of a thread to the lane.
#[derive(Debug)]
pub(super) enum Done {
    /// A completion: what the lane looks at of an entry of a queue.
    Completed { context: usize, flags: u64, data: u64 },
    /// A transfer, or the connection as a whole.
    Failed(Failure),
    /// Outcome of [`BulkOp::Reach`](super::connection::BulkOp::Reach).
    Reached(PeerAddr, bool),
}

/// The threads' end of the queue.
#[derive(Clone, Debug)]
pub(super) struct Tell {
    at: usize,
    done: SyncSender<(usize, Done)>,
    /// How much all threads of a rail have told: what a poll that finds nothing looks at.
    news: Arc<AtomicU64>,
}

impl Tell {
    pub(super) fn for_connection(&self, at: usize) -> Self {
        Self { at, ..self.clone() }
    }

    /// Tells the lane, if there is room.
    pub(super) fn try_tell(&self, done: Done) -> Result<(), Done> {
        match self.done.try_send((self.at, done)) {
            Ok(()) => {
                self.news.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Err(TrySendError::Full((_, done))) => Err(done),
            // Nobody takes it any more: the port is being dropped.
            Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

/// Stands for a completion queue, by [`Merged::direct`], which is read by the lane's thread alone.
///
/// It lies at an address that does not change, in memory of its own, so that the lane reads it by
/// the same call as the queue of a rail without connections for bulk.
#[derive(Debug)]
pub(super) struct Merged(NonNull<UnsafeCell<Inner>>);

// SAFETY: it owns what it points to, which is of values that may be sent.
unsafe impl Send for Merged {}
// SAFETY: shared access reads counts alone, and the lane has one thread; see `Merged::inner`.
unsafe impl Sync for Merged {}

#[derive(Debug)]
struct Inner {
    own: DirectQueue,
    done: Receiver<(usize, Done)>,
    news: Arc<AtomicU64>,
    taken: u64,
    /// Transfers given to each connection, and not found done.
    under_way: Vec<u32>,
    /// Taken out of the queue, and not told yet.
    failure: Option<Failure>,
    /// Which connections have reached whom, or have tried in vain.
    reached: Vec<(usize, PeerAddr, bool)>,
}

impl Merged {
    /// For so many connections, each with so many transfers under way.
    pub(super) fn new(own: DirectQueue, connections: usize, depth: usize) -> (Self, Tell) {
        let (send, done) = sync_channel(connections * (depth + COMES_IN));
        let tell = Tell { at: 0, done: send, news: Arc::default() };
        let inner = Inner {
            own,
            done,
            news: Arc::clone(&tell.news),
            taken: 0,
            under_way: vec![0; connections],
            failure: None,
            reached: Vec::new(),
        };
        (Self(NonNull::from(Box::leak(Box::new(UnsafeCell::new(inner))))), tell)
    }

    pub(super) fn direct(&self) -> DirectQueue {
        // SAFETY: who may read the queue is the lane's one thread, as the port has the rail for
        // itself, and it does not while it calls anything else of this value. The port has both
        // together, so what is at the address is there as long as the queue is read.
        unsafe { DirectQueue::standing_for(self.0.as_ptr().cast(), read) }
    }

    fn inner(&mut self) -> &mut Inner {
        // SAFETY: live, and `&mut self` is the lane's only thread, not reading the queue meanwhile.
        unsafe { &mut *(*self.0.as_ptr()).get() }
    }

    pub(super) fn under_way(&mut self, at: usize) -> u32 {
        self.inner().under_way[at]
    }

    pub(super) fn gave(&mut self, at: usize) {
        self.inner().under_way[at] += 1;
    }

    /// Why the last read has answered `-FI_EAVAIL`, unless that is of the rail's own queue.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.inner().failure.take()
    }

    /// Reports of threads, taken past the queue of completions.
    #[cfg(test)]
    pub(super) fn told(&self) -> impl Iterator<Item = Done> {
        // SAFETY: live, and no thread reads the queue in tests that call this.
        let inner = unsafe { &*(*self.0.as_ptr()).get() };
        inner.done.try_iter().map(|(_, done)| done)
    }

    pub(super) fn next_reached(&mut self) -> Option<(usize, PeerAddr, bool)> {
        self.inner().reached.pop()
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once; nobody reads it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Inner {
    /// Gives completions of connections in at most half of the room, then as `fi_cq_read` those of
    /// the rail's own queue, which may fill every poll.
    ///
    /// # Safety
    /// As [`DirectQueue::read_into`].
    unsafe fn read(&mut self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        if self.failure.is_some() {
            return -(FI_EAVAIL as isize);
        }
        let mut found = 0;
        if self.news.load(Ordering::Acquire) != self.taken {
            found = self.take(count / 2, |at, entry| {
                // SAFETY: below `count`, for which the caller vouches.
                unsafe { entries.add(at).write(entry) };
            });
        }
        // SAFETY: the caller's promise, for no more entries.
        let own = unsafe { self.own.read_into(entries.add(found), count - found) };
        match found as isize + own.max(0) {
            0 if self.failure.is_some() => -(FI_EAVAIL as isize),
            0 if own == 0 => -(FI_EAGAIN as isize),
            // An error of the rail's own is there again at the next read.
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
            let under_way = &mut self.under_way[at];
            match done {
                Done::Completed { context, flags, data } => {
                    if flags & FI_REMOTE_CQ_DATA == 0 {
                        *under_way = under_way.saturating_sub(1);
                    }
                    let (op_context, buf) = (context as *mut c_void, ptr::null_mut());
                    put(found, fi_cq_data_entry { op_context, flags, len: 0, buf, data });
                    found += 1;
                }
                // Once for each peer and connection.
                Done::Reached(peer, made) => self.reached.push((at, peer, made)),
                Done::Failed(failure) => {
                    *under_way = under_way.saturating_sub(u32::from(failure.wr_id.is_some()));
                    self.failure = Some(failure);
                }
            }
        }
        found
    }
}

// Both queues have room in each poll.
const _: () = assert!(POLL_BATCH > 1);

/// Reader of [`Merged::direct`].
unsafe extern "C" fn read(inner: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    let inner = inner.cast::<UnsafeCell<Inner>>();
    // SAFETY: the address is that of `Merged::direct`, and this is the lane's only thread.
    let inner = unsafe { &mut *(*inner).get() };
    // SAFETY: the caller has room for so many entries.
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

    fn bed(answer: &'static isize) -> (Merged, Tell) {
        let address = (&raw const *answer).cast_mut().cast();
        // SAFETY: the function takes such an address, which lasts.
        Merged::new(unsafe { DirectQueue::standing_for(address, own) }, 2, 64)
    }

    fn complete(tell: &Tell, at: usize, context: usize, flags: u64) {
        let done = Done::Completed { context, flags, data: 7 };
        tell.for_connection(at).try_tell(done).expect("room");
    }

    fn fail(tell: &Tell, at: usize, wr_id: Option<u32>) {
        let error = refused("a test", String::from("as told"));
        let failure = Failure { wr_id: wr_id.map(WrId), is_message: false, error };
        tell.for_connection(at).try_tell(Done::Failed(failure)).expect("room");
    }

    /// The contexts that a poll finds.
    fn read(merged: &Merged, count: usize) -> Result<Vec<usize>, isize> {
        let mut entries = [const { MaybeUninit::<fi_cq_data_entry>::uninit() }; 8];
        // SAFETY: there is room for as many; this is the only thread.
        let code = unsafe { merged.direct().read_into(entries.as_mut_ptr().cast(), count) };
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
        let (mut merged, tell) = bed(&8);
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]), "all is the rail's while there is no other");
        (10..16).for_each(|context| complete(&tell, context % 2, context, 0));
        assert_eq!(read(&merged, 8), Ok(vec![10, 11, 12, 13, 1, 1, 1, 1]));
        assert_eq!(read(&merged, 8), Ok(vec![14, 15, 1, 1, 1, 1, 1, 1]));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
        // A failure, too, is told although the rail has more.
        fail(&tell, 0, Some(3));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
        assert_eq!(read(&merged, 8), Err(ERROR));
        assert_eq!(merged.take_failure().map(|failure| failure.wr_id), Some(Some(WrId(3))));
        assert_eq!(read(&merged, 8), Ok(vec![1; 8]));
    }

    #[test]
    fn transfers_count_until_they_end() {
        let (mut merged, tell) = bed(&AGAIN);
        (0..3).for_each(|_| merged.gave(1));
        complete(&tell, 1, 10, 0);
        complete(&tell, 1, 0, FI_REMOTE_CQ_DATA);
        fail(&tell, 1, Some(3));
        fail(&tell, 1, None);
        tell.for_connection(1).try_tell(Done::Reached(PeerAddr(7), true)).expect("room");
        assert_eq!(merged.under_way(1), 3, "nobody has looked");
        assert_eq!(read(&merged, 8), Ok(vec![10, 0]));
        for wr_id in [Some(WrId(3)), None] {
            assert_eq!(read(&merged, 8), Err(ERROR));
            assert_eq!(merged.take_failure().map(|failure| failure.wr_id), Some(wr_id));
        }
        assert_eq!((merged.under_way(0), merged.under_way(1)), (0, 1));
        assert_eq!(read(&merged, 8), Err(AGAIN));
        assert_eq!(merged.next_reached(), Some((1, PeerAddr(7), true)));
        assert_eq!(merged.next_reached(), None, "once");
    }

    #[test]
    fn rail_queue_answers_pass_through() {
        for (answer, code) in [(&0, AGAIN), (&AGAIN, AGAIN), (&BROKEN, BROKEN), (&ERROR, ERROR)] {
            let (mut merged, tell) = bed(answer);
            assert_eq!(read(&merged, 8), Err(code));
            complete(&tell, 1, 11, 0);
            assert_eq!(read(&merged, 8), Ok(vec![11]), "a connection's come first");
            assert_eq!(read(&merged, 8), Err(code));
            assert!(merged.take_failure().is_none(), "the error is the rail's own");
        }
    }
}
