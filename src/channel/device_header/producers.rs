//! What producers put into the rings, and what they are told.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use channel_producer::{set_block, set_pause};
use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;

use super::*;
use crate::channel::ring::State;
use crate::channel::ring::descriptor::Descriptor;

/// What `push` and `push_two` bring: all rounds of each thread, in order, in the thread's ring.
struct Expected {
    next: Vec<u64>,
    rounds: u64,
    taken: u64,
}

impl Expected {
    fn new(threads: u64, rounds: u64) -> Self {
        Self { next: vec![0; threads as usize], rounds, taken: 0 }
    }

    fn take(&mut self, rings: &mut [Ring], index: usize, at_most: u64) -> u64 {
        let n_rings = rings.len();
        let ring = &mut rings[index];
        let mut taken = 0;
        while taken < at_most {
            let Some(descriptor) = ring.take() else { break };
            taken += 1;
            let (thread, round) = match descriptor.unwrap() {
                Descriptor::Put { pe: Pe(0), dst, src, bytes: 1 } => (dst.offset(), src.offset()),
                Descriptor::PutSignal { pe: Pe(0), dst, src, bytes: 1, signal, op, value } => {
                    let (thread, round) = (dst.offset(), src.offset());
                    let two = (round ^ thread) % 3 == 0;
                    assert_eq!(value, if two { 1 << 63 | round } else { round });
                    assert_eq!((signal, op), (region_addr(0, 0), AtomicOp::SignalAdd));
                    (thread, round)
                }
                other => panic!("{other:?} was not put in"),
            };
            assert_eq!(self.next[thread as usize], round, "the next of thread {thread}");
            assert_eq!(thread as usize % n_rings, index, "the ring of thread {thread}");
            self.next[thread as usize] += 1;
        }
        self.taken += taken;
        taken
    }

    fn all(&self) -> bool {
        self.taken == self.rounds * self.next.len() as u64
    }

    fn check(&self, rings: &mut [Ring]) {
        assert!(self.next.iter().all(|next| *next == self.rounds), "{:?}", self.next);
        assert!(rings.iter_mut().all(|ring| ring.take().is_none()), "more than was put in");
    }
}

/// Lets `threads` threads push, taking at most `batch` from a ring before publishing room.
fn all_arrive(
    kernel: &'static std::ffi::CStr,
    (n_rings, slots_log2): (u32, u32),
    (threads, rounds): (u64, u64),
    batch: u64,
) {
    let mut bed = Bed::new(n_rings, slots_log2, 0);
    let mut expected = Expected::new(threads, rounds);
    let (status, out) = bed.run(kernel, threads, rounds, |rings, _| {
        for index in 0..rings.len() {
            // As long as there is something in one ring, the others' producers have room.
            while expected.take(rings, index, batch) == batch {
                rings[index].publish_tail();
            }
            rings[index].publish_tail();
        }
        expected.all()
    });
    expected.check(&mut bed.rings);
    assert!(status.iter().all(|status| *status == 0), "{status:?}");
    assert!(out.iter().all(|pushed| *pushed == rounds));
    assert!(bed.error().is_none());
    let taken: Vec<u64> = bed.rings.iter().map(Ring::taken).collect();
    assert_eq!(bed.shared.heads().unwrap(), taken, "slots of the rings");
}

#[test]
fn producers_keep_their_order() {
    for (kernel, ring, producers, batch) in [
        (c"push_two", (1, 6), (16, 20_000), 8),
        // Room for one slot at a time, so that everyone waits for room, and two slots for two.
        (c"push_two", (2, 6), (32, 500), 1),
        (c"push", (4, 12), (64, 10_000_000 / 64), 256),
    ] {
        all_arrive(kernel, ring, producers, batch);
    }
}

#[test]
fn stopped_proxy_is_reported() {
    let (threads, rounds) = (8, 100_000);
    let mut bed = Bed::new(2, 6, 0);
    let mut expected = Expected::new(threads, rounds);
    let (status, out) = bed.run(c"push_two", threads, rounds, |rings, _| {
        for index in 0..rings.len() {
            expected.take(rings, index, 64);
            rings[index].publish_tail();
        }
        let stop = expected.taken > 10_000;
        if stop {
            for ring in rings.iter_mut() {
                ring.publish_state(State::Stopped);
            }
        }
        stop
    });
    // Each of them was stopped when its ring was full, and knows of all that it has put in.
    assert!(status.iter().all(|status| *status == c::NLF_ERROR_STOPPED as i32), "{status:?}");
    for (thread, pushed) in out.iter().enumerate() {
        assert!(*pushed >= expected.next[thread], "thread {thread}");
    }
    let error = bed.error().unwrap();
    assert_eq!(error.code, c::NLF_ERROR_STOPPED);
    let producer = producer(&bed.shared);
    assert_eq!(producer.quiet(), c::NLF_ERROR_STOPPED as i32);
    assert_eq!(producer.quiet_all(), c::NLF_ERROR_STOPPED as i32);
}

#[test]
fn stuck_proxy_is_reported() {
    let mut bed = Bed::new(1, 6, 200);
    let (status, _) = bed.run(c"push", 4, 1000, |_, shared| shared.is_abandoned());
    assert!(status.iter().all(|status| *status == c::NLF_ERROR_STUCK as i32), "{status:?}");
    assert_eq!(bed.error().unwrap().code, c::NLF_ERROR_STUCK);
    // Later producers find out too, though the ring is taken from again: it has a hole.
    while bed.rings[0].take().is_some() {}
    bed.rings[0].publish_tail();
    let producer = producer(&bed.shared);
    assert_eq!(producer.quiet(), c::NLF_ERROR_STUCK as i32);
}

/// What a consumer does while a producer waits, at each look of that.
type Answer = Box<dyn FnMut(&mut Ring, u32)>;

thread_local! {
    /// The consumer of the ring that this thread waits for, and what it does.
    static ANSWER: RefCell<Option<(Ring, Answer)>> = const { RefCell::new(None) };
}

extern "C" fn answer(looks: u32) {
    ANSWER.with_borrow_mut(|answer| {
        let (ring, answer) = answer.as_mut().unwrap();
        answer(ring, looks);
    });
}

/// Has a consumer answer this thread's waits while `run` runs.
fn answered<T>(ring: Ring, by: impl FnMut(&mut Ring, u32) + 'static, run: impl FnOnce() -> T) -> T {
    ANSWER.set(Some((ring, Box::new(by))));
    set_pause(Some(answer));
    let result = run();
    set_pause(None);
    ANSWER.set(None);
    result
}

fn take_all(ring: &mut Ring) {
    while ring.take().is_some() {}
    ring.publish_tail();
}

/// Fills a ring, then puts in one more of two slots and waits for all of it, while one slot is
/// taken every `period` looks. Returns what that one and the wait were answered.
fn fill_and_wait(spins: u64, period: u32) -> (i32, i32) {
    let mut bed = Bed::new(1, 6, spins);
    let producer = producer(&bed.shared);
    let at = BASE as *mut u8;
    for _ in 0..64 {
        assert_eq!(producer.put_nbi(at, at, 8, 1), 0);
    }
    let takes = move |ring: &mut Ring, looks: u32| {
        if (looks + 1) % period == 0 {
            assert!(ring.take().is_some(), "a full ring");
            ring.publish_tail();
            ring.publish_done(ring.taken());
        }
    };
    answered(bed.rings.remove(0), takes, || {
        let pushed = producer.put_signal_nbi(at, at, 8, at.cast(), u64::MAX, c::NLF_KIND_ADD, 1);
        (pushed, producer.quiet())
    })
}

#[test]
fn waits_without_progress_are_given_up() {
    let stuck = c::NLF_ERROR_STUCK as i32;
    // 65 slots, each of which takes nearly as many looks as nothing may change for, or too many.
    // Without a limit no wait is given up.
    for (spins, period, status) in [(50, 45, 0), (50, 60, stuck), (0, 5000, 0)] {
        assert_eq!(fill_and_wait(spins, period), (status, status), "{spins} {period}");
    }
}

#[test]
fn quiet_waits_for_earlier_slots() {
    let mut bed = Bed::new(1, 6, 0);
    let producer = producer(&bed.shared);
    // No bytes are no operation, wherever.
    let (nowhere, none) = (std::ptr::null_mut(), std::ptr::null());
    assert_eq!(
        (producer.put_nbi(nowhere, none, 0, 1), producer.get_nbi(nowhere, none, 0, 1)),
        (0, 0)
    );
    assert!(bed.rings[0].take().is_none());
    assert_eq!(producer.quiet(), 0, "nothing was put in");
    set_block(0);
    let at = BASE as *mut u8;
    assert_eq!(producer.put_nbi(at, at, 8, 1), 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || producer.quiet());
        let ring = &mut bed.rings[0];
        while ring.take().is_none() {}
        ring.publish_tail();
        assert!(!waiting.is_finished(), "taken is not delivered");
        ring.publish_done(1);
        assert_eq!(waiting.join().unwrap(), 0);
    });
    // The next is of another's slot.
    assert_eq!(producer.quiet(), 0);
}

#[test]
fn delivered_operations_survive_failure() {
    let mut bed = Bed::new(1, 6, 0);
    let producer = producer(&bed.shared);
    let at = BASE as *mut u8;
    assert_eq!(producer.put_nbi(at, at, 8, 1), 0);
    assert!(bed.rings[0].take().is_some());
    bed.rings[0].publish_done(1);
    bed.rings[0].publish_state(State::Failed);
    assert_eq!(producer.quiet(), 0);
    assert_eq!(producer.put_nbi(at, at, 8, 1), 0, "there is room");
    assert_eq!(producer.quiet(), c::NLF_ERROR_FAILED as i32);
}

#[test]
fn consumer_takes_every_operation() {
    let mut bed = Bed::new(1, 6, 0);
    let producer = producer(&bed.shared);
    let at = |offset: u64| (BASE + offset) as *mut u8;
    let word = |offset: u64| (BASE + offset) as *mut u64;
    let half = |offset: u64| (BASE + offset) as *mut u32;
    let last = REGION_BYTES - 8;
    let (pe, wide) = (Pe(1), u64::MAX - 5);
    let mut check = |status: i32, descriptor: Descriptor| {
        assert_eq!(status, 0, "{descriptor:?}");
        assert_eq!(bed.rings[0].take(), Some(Ok(descriptor)));
        assert_eq!(bed.rings[0].take(), None);
        bed.rings[0].publish_tail();
    };
    let (dst, src, signal) = (region_addr(0, 16), region_addr(0, last), region_addr(0, 64));
    check(producer.put_nbi(at(16), at(last), 8, 1), Descriptor::Put { pe, dst, src, bytes: 8 });
    check(producer.get_nbi(at(last), at(16), 8, 1), Descriptor::Get { pe, dst, src, bytes: 8 });
    for value in [0, 1, c::NLF_MAX_INLINE, c::NLF_MAX_INLINE + 1, wide] {
        for (bytes, mask) in [(1, 0xff), (2, 0xffff), (4, 0xffff_ffff), (8, u64::MAX)] {
            let put = Descriptor::PutValue { pe, dst, bytes, value: value & mask };
            check(producer.p(at(16), value, bytes, 1), put);
        }
    }
    for value in [0, 1, c::NLF_MAX_INLINE, c::NLF_MAX_INLINE + 1, wide] {
        for (kind, op, plain) in [
            (c::NLF_KIND_SET, AtomicOp::SignalSet, AtomicOp::Set),
            (c::NLF_KIND_ADD, AtomicOp::SignalAdd, AtomicOp::Add),
        ] {
            let put = producer.put_signal_nbi(at(16), at(last), 8, word(64), value, kind, 1);
            let bytes = 8;
            check(put, Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value });
            let alone = Descriptor::Atomic {
                pe,
                dst: signal,
                width: Width::Eight,
                op: plain,
                value,
                compare: 0,
                fetch: None,
            };
            check(producer.signal(word(64), value, kind, 1), alone);
            check(producer.put_signal_nbi(at(16), at(16), 0, word(64), value, kind, 1), alone);
        }
    }
    let fetching = [
        (c::NLF_KIND_ADD, AtomicOp::FetchAdd),
        (c::NLF_KIND_AND, AtomicOp::FetchAnd),
        (c::NLF_KIND_OR, AtomicOp::FetchOr),
        (c::NLF_KIND_XOR, AtomicOp::FetchXor),
        (c::NLF_KIND_SWAP, AtomicOp::Swap),
        (c::NLF_KIND_COMPARE_SWAP, AtomicOp::CompareSwap),
    ];
    let fetch = Some(region_addr(0, 128));
    for (kind, op) in fetching {
        let compare = if op == AtomicOp::CompareSwap { 77 } else { 0 };
        let (dst, value) = (signal, wide);
        let expected =
            Descriptor::Atomic { pe, dst, width: Width::Eight, op, value, compare, fetch };
        check(producer.atomic64_nbi(kind, word(128), word(64), wide, compare, 1), expected);
        let value = wide & 0xffff_ffff;
        let width = Width::Four;
        let expected = Descriptor::Atomic { pe, dst, width, op, value, compare, fetch };
        let compare = compare as u32;
        check(producer.atomic32_nbi(kind, half(128), half(64), wide as u32, compare, 1), expected);
    }
    check(producer.fence(1), Descriptor::Fence { pe: Some(pe) });
    check(producer.fence_all(), Descriptor::Fence { pe: None });
}

#[test]
fn wrong_calls_are_refused() {
    let outside = (BASE + REGION_BYTES) as *mut u8;
    let at = BASE as *mut u8;
    let word = BASE as *mut u64;
    let null = std::ptr::null_mut();
    type Call<'a> = &'a dyn Fn(&Producer) -> i32;
    let wrong: [(&str, u32, Call<'_>); 13] = [
        ("a PE past the last", c::NLF_ERROR_PE, &|p| p.put_nbi(at, at, 8, 2)),
        ("a negative PE", c::NLF_ERROR_PE, &|p| p.fence(-1)),
        ("a target outside", c::NLF_ERROR_ADDRESS, &|p| p.put_nbi(outside, at, 8, 1)),
        ("a source outside", c::NLF_ERROR_ADDRESS, &|p| p.put_nbi(at, outside, 8, 1)),
        ("an end outside", c::NLF_ERROR_ADDRESS, &|p| p.get_nbi(at, outside.wrapping_sub(8), 9, 1)),
        ("before the region", c::NLF_ERROR_ADDRESS, &|p| p.put_nbi(at.wrapping_sub(1), at, 8, 1)),
        ("too long", c::NLF_ERROR_LENGTH, &|p| p.put_nbi(at, at, 1 << 32, 1)),
        ("a signal across words", c::NLF_ERROR_ALIGNMENT, &|p| {
            p.signal(word.wrapping_byte_add(4), 1, 1, 1)
        }),
        ("a signal of no kind", c::NLF_ERROR_KIND, &|p| p.signal(word, 1, 2, 1)),
        ("an atomic of no kind", c::NLF_ERROR_KIND, &|p| p.atomic64_nbi(8, word, word, 1, 0, 1)),
        ("a swap that fetches nothing", c::NLF_ERROR_KIND, &|p| {
            p.atomic64_nbi(c::NLF_KIND_SWAP, null, word, 1, 0, 1)
        }),
        ("a set that fetches", c::NLF_ERROR_KIND, &|p| {
            p.atomic64_nbi(c::NLF_KIND_SET, word, word, 1, 0, 1)
        }),
        ("a result outside", c::NLF_ERROR_ADDRESS, &|p| {
            p.atomic64_nbi(c::NLF_KIND_ADD, outside.cast(), word, 1, 0, 1)
        }),
    ];
    for (what, code, call) in wrong {
        let mut bed = Bed::new(4, 6, 0);
        let producer = producer(&bed.shared);
        set_block(6);
        assert_eq!(call(&producer), code as i32, "{what}");
        let error = bed.error().unwrap();
        assert_eq!(error.code, code, "{what}");
        if what == "a target outside" {
            assert_eq!((error.op, error.pe, error.ring), (c::NLF_OP_PUT, 1, 2));
            assert_eq!((error.addr, error.bytes), (BASE + REGION_BYTES, 8));
        }
        assert_eq!(bed.shared.heads().unwrap(), [0; 4], "{what}");
        // The first one stays, however many come.
        // SAFETY: a word of the context, which this thread alone uses.
        let claims = unsafe { &mut *(*bed.context()).error_claims };
        assert_eq!(std::mem::replace(claims, u32::MAX), 1);
        for _ in 0..3 {
            assert_eq!(producer.put_nbi(at, at, 8, 9), c::NLF_ERROR_PE as i32);
        }
        assert_eq!(bed.error().unwrap().code, code, "{what}");
        // The context goes on.
        assert_eq!(producer.put_nbi(at, at, 8, 1), 0);
        assert!(bed.rings[2].take().is_some(), "{what}");
    }
}

#[test]
fn other_versions_are_refused() {
    let bed = Bed::new(1, 6, 0);
    // SAFETY: nobody uses the context yet.
    unsafe { (*bed.context()).version += 1 };
    let producer = producer(&bed.shared);
    let at = BASE as *mut u8;
    let refused = c::NLF_ERROR_VERSION as i32;
    assert_eq!(producer.put_nbi(at, at, 8, 1), refused);
    assert_eq!(producer.signal(at.cast(), 1, 1, 1), refused);
    assert_eq!(producer.put_signal_nbi(at, at, 8, at.cast(), 1, 1, 1), refused);
    assert_eq!(producer.fence(1), refused);
    assert_eq!(producer.quiet(), refused);
    assert_eq!(producer.quiet_all(), refused);
}

/// Whatever block a thread is, a ring that it names is the one used, round and round.
#[test]
fn named_ring_is_used() {
    let mut bed = Bed::new(4, 6, 0);
    let producer = producer(&bed.shared);
    let at = BASE as *mut u8;
    set_block(1);
    for ring in [0, 3, 2, 6] {
        assert_eq!(producer.put_in_ring(ring, at, at, 8, 1), 0);
        let index = ring as usize % 4;
        let taken: Vec<_> = bed.rings.iter_mut().map(|ring| ring.take().is_some()).collect();
        assert_eq!(taken, (0..4).map(|other| other == index).collect::<Vec<_>>(), "ring {ring}");
        let taken = bed.rings[index].taken();
        bed.rings[index].publish_done(taken);
        assert_eq!(producer.quiet_ring(ring), 0);
    }
    // The block's own was never used, so nothing is waited for there.
    assert_eq!(producer.quiet(), 0);
}

#[test]
fn quiet_of_one_pe_ends() {
    type Says = fn(&mut Ring);
    let answers: [(u64, Says); 3] = [
        (6, |ring| ring.publish_quiet(ring.taken() - 1)),
        // One that came later has been told, with the same word.
        (2, |ring| ring.publish_quiet(ring.taken() + 3)),
        (5, |ring| ring.publish_done(ring.taken())),
    ];
    for (before, says) in answers {
        let mut bed = Bed::new(1, 6, 1000);
        let producer = producer(&bed.shared);
        let at = BASE as *mut u8;
        for _ in 0..before {
            assert_eq!(producer.put_nbi(at, at, 8, 1), 0);
        }
        let has_ended = Rc::new(Cell::new(false));
        let over = Rc::clone(&has_ended);
        let by = move |ring: &mut Ring, _| {
            take_all(ring);
            // Another one's word is no answer, nor is what its own was before.
            if over.get() { ring.publish_quiet(ring.taken()) } else { says(ring) }
        };
        answered(bed.rings.remove(0), by, || {
            assert_eq!(producer.quiet_pe(1), 0, "{before} before");
            has_ended.set(true);
            assert_eq!(producer.quiet_pe(1), c::NLF_ERROR_STUCK as i32, "{before} before");
        });
    }
}

#[test]
fn landings_are_reused() {
    let mut bed = Bed::new(1, 6, 300);
    let producer = producer(&bed.shared);
    // SAFETY: the context lives.
    let (own, counts) =
        unsafe { ((*bed.context()).own.cast_mut(), (*bed.context()).own_producers) };
    let value_of = |at: u64| 0x9e37_79b9 * (at + 1);
    for landing in 0..u64::from(c::NLF_LANDINGS) {
        // SAFETY: words that this thread alone uses.
        unsafe { (*own).landed[landing as usize] = value_of(landing) };
    }
    let by = |ring: &mut Ring, _| {
        take_all(ring);
        ring.publish_done(ring.taken());
    };
    answered(bed.rings.remove(0), by, || {
        for turn in 0..2 * u64::from(c::NLF_LANDINGS) {
            let mut value = 0;
            assert_eq!(producer.g(&mut value, BASE as *const u64, 1), 0);
            assert_eq!(value, value_of(turn % u64::from(c::NLF_LANDINGS)));
        }
        // SAFETY: as before.
        unsafe { (*counts).landing_claims[0] = 1 };
        let mut value = 5;
        let waited = producer.g(&mut value, BASE as *const u64, 1);
        assert_eq!((waited, value), (c::NLF_ERROR_STUCK as i32, 5), "somebody has it");
    });
}

/// The count of barriers wraps. A peer that is one barrier behind is waited for before and after
/// that, until the proxy ends, and one that is ahead is not.
#[test]
fn barrier_count_wraps() {
    let mut bed = Bed::new(1, 6, 0);
    let producer = producer(&bed.shared);
    // SAFETY: the context lives.
    let (own, counts) =
        unsafe { ((*bed.context()).own.cast_mut(), (*bed.context()).own_producers) };
    bed.rings[0].publish_state(State::Stopped);
    for before in (0..4).map(|barrier| (u64::MAX - 2).wrapping_add(barrier)) {
        for (ahead, status) in [(0, c::NLF_ERROR_STOPPED), (1, c::NLF_OK), (2, c::NLF_OK)] {
            // SAFETY: words that this thread alone uses.
            unsafe {
                (*counts).barriers = before;
                (*own).arrived[0] = before.wrapping_add(ahead);
            }
            assert_eq!(producer.sync_all(), status as i32, "{before} barriers, {ahead} ahead");
        }
    }
}
