//! The completions of a rail with connections for bulk: those of its own queue, then theirs.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, FI_REMOTE_CQ_DATA, fi_cq_data_entry, fid_cq};

use crate::data_path::bulk::done::{Done, News};
use crate::objects::completion_queue::DirectQueue;
use engine::port::{Failure, POLL_BATCH, PeerAddr};

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
    news: Arc<News>,
    taken: u64,
    ends: Vec<End>,
    turn: usize,
    /// Taken out of a queue, and not told yet.
    failure: Option<Failure>,
    /// Which connections have reached whom, or have tried in vain.
    reached: Vec<(usize, PeerAddr, bool)>,
}

#[derive(Debug)]
struct End {
    done: Receiver<Done>,
    /// Transfers given to it, and not found done.
    under_way: u32,
}

impl Merged {
    pub(super) fn new(own: DirectQueue) -> (Self, Arc<News>) {
        let news = Arc::new(News::default());
        let ends = Vec::new();
        let told = Arc::clone(&news);
        let reached = Vec::new();
        let inner = Inner { own, news: told, taken: 0, ends, turn: 0, failure: None, reached };
        let place = Box::leak(Box::new(UnsafeCell::new(inner)));
        (Self(NonNull::from(place)), news)
    }

    pub(super) fn add(&mut self, done: Receiver<Done>) {
        self.inner().ends.push(End { done, under_way: 0 });
    }

    pub(super) fn direct(&self) -> DirectQueue {
        // SAFETY: who may read the queue is the lane's one thread, as the port has the rail for
        // itself, and it does not while it calls anything else of this value. The port has both
        // together, so what is at the address is there as long as the queue is read.
        unsafe { DirectQueue::standing_for(self.0.as_ptr().cast(), read) }
    }

    fn inner(&mut self) -> &mut Inner {
        // SAFETY: live, and `&mut self` makes this the lane's only thread, which does not read the
        // queue meanwhile.
        unsafe { &mut *(*self.0.as_ptr()).get() }
    }

    pub(super) fn under_way(&self, at: usize) -> u32 {
        // SAFETY: live; nothing is changed but by the lane's thread, whose call this is.
        let inner = unsafe { &*(*self.0.as_ptr()).get() };
        inner.ends.get(at).map_or(u32::MAX, |end| end.under_way)
    }

    pub(super) fn gave(&mut self, at: usize) {
        if let Some(end) = self.inner().ends.get_mut(at) {
            end.under_way += 1;
        }
    }

    /// Why the last read has answered `-FI_EAVAIL`, unless that is of the rail's own queue.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        self.inner().failure.take()
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
    /// As `fi_cq_read` of the rail's own queue, and of the others with the room that is left.
    ///
    /// # Safety
    /// As [`DirectQueue::read_into`].
    unsafe fn read(&mut self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        if self.failure.is_some() {
            return -(FI_EAVAIL as isize);
        }
        let has_news = self.news.told() != self.taken;
        // The rail's own completions may fill every poll; half of one is for the others then.
        let room = if has_news { count - count / 2 } else { count };
        // SAFETY: the caller's promise, for no more entries.
        let own = unsafe { self.own.read_into(entries, room) };
        if own < 0 && own != -(FI_EAGAIN as isize) {
            return own;
        }
        let mut found = own.max(0) as usize;
        if has_news {
            found = self.take(found, count, |at, entry| {
                // SAFETY: below `count`, for which the caller vouches.
                unsafe { entries.add(at).write(entry) };
            });
        }
        match found {
            0 if self.failure.is_some() => -(FI_EAVAIL as isize),
            0 => own.min(-(FI_EAGAIN as isize)),
            found => found as isize,
        }
    }

    #[inline(never)]
    fn take(
        &mut self,
        mut found: usize,
        count: usize,
        mut put: impl FnMut(usize, fi_cq_data_entry),
    ) -> usize {
        let ends = self.ends.len();
        let mut empty = 0;
        while found < count && empty < ends && self.failure.is_none() {
            let at = self.turn % ends;
            self.turn = at + 1;
            let end = &mut self.ends[at];
            let Ok(done) = end.done.try_recv() else {
                empty += 1;
                continue;
            };
            empty = 0;
            self.taken += 1;
            match done {
                Done::Completed(entry) => {
                    if entry.flags & FI_REMOTE_CQ_DATA == 0 {
                        end.under_way = end.under_way.saturating_sub(1);
                    }
                    put(found, entry.into());
                    found += 1;
                }
                // Once for each peer and connection.
                Done::Reached(peer, made) => self.reached.push((at, peer, made)),
                Done::Failed(failure) => {
                    let is_transfer = failure.wr_id.is_some();
                    end.under_way = end.under_way.saturating_sub(u32::from(is_transfer));
                    self.failure = Some(failure);
                }
            }
        }
        found
    }
}

// Both queues have room in each poll.
const _: () = assert!(POLL_BATCH > 1);

/// What [`Merged::direct`] is read by.
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
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;
    use crate::data_path::bulk::done::Entry;
    use crate::error::refused;
    use engine::ids::WrId;

    /// The rail's own queue: gives so many entries of context 1, again and again, or the code.
    unsafe extern "C" fn own(raw: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
        // SAFETY: what `bed` gives.
        let answer = unsafe { *raw.cast::<isize>() };
        let answer = answer.min(count as isize);
        for at in 0..answer.max(0) as usize {
            // SAFETY: below the count.
            unsafe { entries.cast::<fi_cq_data_entry>().add(at).write(entry(1, 0)) };
        }
        answer
    }

    fn entry(context: usize, flags: u64) -> fi_cq_data_entry {
        Entry { context, flags, data: 7 }.into()
    }

    struct Bed {
        merged: Merged,
        news: Arc<News>,
        ends: Vec<SyncSender<Done>>,
    }

    impl Bed {
        fn new(answer: &'static isize) -> Self {
            // SAFETY: the function takes such an address, which lasts.
            let queue =
                unsafe { DirectQueue::standing_for((&raw const *answer).cast_mut().cast(), own) };
            let (mut merged, news) = Merged::new(queue);
            let mut ends = Vec::new();
            for _ in 0..2 {
                let (end, done) = sync_channel(64);
                merged.add(done);
                ends.push(end);
            }
            Self { merged, news, ends }
        }

        fn complete(&mut self, at: usize, context: usize, flags: u64) {
            self.ends[at].send(Done::Completed((&entry(context, flags)).into())).unwrap();
            self.news.tell();
        }

        fn fail(&self, at: usize, wr_id: Option<u32>) {
            let error = refused("a test", String::from("as told"));
            let wr_id = wr_id.map(WrId);
            self.ends[at].send(Done::Failed(Failure { wr_id, is_message: false, error })).unwrap();
            self.news.tell();
        }

        fn read(&self, count: usize) -> Result<Vec<usize>, isize> {
            let mut entries = [const { MaybeUninit::<fi_cq_data_entry>::uninit() }; 8];
            // SAFETY: there is room for as many; this is the only thread.
            let code =
                unsafe { self.merged.direct().read_into(entries.as_mut_ptr().cast(), count) };
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
    }

    const AGAIN: isize = -(FI_EAGAIN as isize);
    static NOTHING: isize = AGAIN;
    const BROKEN: isize = -(libc::EPIPE as isize);
    const ERROR: isize = -(FI_EAVAIL as isize);

    #[test]
    fn those_of_the_rail_come_first_and_no_more_than_there_is_room_for() {
        let mut bed = Bed::new(&2);
        for context in 10..14 {
            bed.complete(context % 2, context, 0);
        }
        assert_eq!(bed.read(5), Ok(vec![1, 1, 10, 11, 12]));
        assert_eq!(bed.read(5), Ok(vec![1, 1, 13]));
        assert_eq!(bed.read(5), Ok(vec![1, 1]));
        let bed = Bed::new(&AGAIN);
        assert_eq!(bed.read(5), Err(AGAIN));
    }

    #[test]
    fn busy_rail_leaves_room_for_bulk() {
        let mut bed = Bed::new(&8);
        let polls = |bed: &Bed| (0..10).flat_map(|_| bed.read(8).unwrap()).collect::<Vec<_>>();
        assert_eq!(polls(&bed), [1; 80], "all of it is the rail's while there is nothing else");
        (10..30).for_each(|context| bed.complete(context % 2, context, 0));
        let found = polls(&bed).into_iter().filter(|context| *context != 1).count();
        assert_eq!(found, 20);
        // A failure, too, is told although the rail has more.
        bed.fail(0, Some(3));
        assert_eq!(bed.read(8).map(|found| found.len()), Ok(4));
        assert_eq!(bed.read(8), Err(ERROR));
        assert_eq!(bed.merged.take_failure().unwrap().wr_id, Some(WrId(3)));
        assert_eq!(polls(&bed), [1; 80]);
    }

    #[test]
    fn what_is_under_way_is_what_was_given_and_has_not_ended() {
        let mut bed = Bed::new(&AGAIN);
        (0..3).for_each(|_| bed.merged.gave(1));
        bed.complete(1, 10, 0);
        bed.complete(1, 0, FI_REMOTE_CQ_DATA);
        bed.fail(1, Some(3));
        bed.fail(1, None);
        assert_eq!(bed.merged.under_way(1), 3, "nobody has looked");
        assert_eq!(bed.read(8), Ok(vec![10, 0]));
        assert_eq!(bed.read(8), Err(ERROR));
        assert_eq!(bed.merged.take_failure().unwrap().wr_id, Some(WrId(3)));
        assert_eq!(bed.merged.under_way(1), 1);
        assert_eq!(bed.read(8), Err(ERROR));
        assert_eq!(bed.merged.take_failure().unwrap().wr_id, None);
        assert_eq!((bed.merged.under_way(0), bed.merged.under_way(1)), (0, 1));
        assert_eq!(bed.read(8), Err(AGAIN));
    }

    #[test]
    fn what_is_not_looked_at_stays_and_news_of_it_too() {
        let mut bed = Bed::new(&2);
        bed.complete(0, 10, 0);
        bed.complete(0, 11, 0);
        assert_eq!(bed.read(2), Ok(vec![1, 10]));
        assert_eq!(bed.read(3), Ok(vec![1, 1, 11]));
        for (answer, code) in [(&0, AGAIN), (&NOTHING, AGAIN), (&BROKEN, BROKEN)] {
            assert_eq!(Bed::new(answer).read(8), Err(code), "{answer}");
        }
        let mut bed = Bed::new(&0);
        bed.complete(1, 11, 0);
        assert_eq!(bed.read(8), Ok(vec![11]));
        let mut bed = Bed::new(&BROKEN);
        bed.complete(1, 11, 0);
        assert_eq!(bed.read(8), Err(BROKEN), "nothing is asked of a rail that is broken");
    }

    #[test]
    fn who_has_reached_whom_is_told_once_and_takes_no_place() {
        let mut bed = Bed::new(&AGAIN);
        bed.merged.gave(1);
        for (peer, made) in [(7, true), (8, false)] {
            bed.ends[1].send(Done::Reached(PeerAddr(peer), made)).unwrap();
            bed.news.tell();
        }
        assert_eq!(bed.read(8), Err(AGAIN));
        assert_eq!(bed.merged.under_way(1), 1, "these are no transfers of the lane's");
        let mut told: Vec<_> = std::iter::from_fn(|| bed.merged.next_reached()).collect();
        told.sort_unstable_by_key(|told| told.1.0);
        assert_eq!(told, [(1, PeerAddr(7), true), (1, PeerAddr(8), false)]);
        let Bed { merged, news, .. } = bed;
        drop(merged);
        assert_eq!(Arc::strong_count(&news), 1, "it has gone as a whole");
    }

    #[test]
    fn an_error_of_the_rail_is_its_own() {
        let mut bed = Bed::new(&ERROR);
        bed.fail(0, Some(3));
        assert_eq!(bed.read(8), Err(ERROR));
        assert!(bed.merged.take_failure().is_none(), "the rail's own comes first");
    }
}
