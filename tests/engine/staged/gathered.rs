//! Puts that wait for a bounce buffer leave together: in few copies and messages, ordered as each
//! would be alone.

use super::{ALL, fill, patterned};
use crate::prelude::*;

pub(super) fn shape(shared: bool) -> Shape {
    let shared = if shared { u32::MAX } else { 0 };
    let bounce = (65_536, 4, 4);
    Shape { n_pes: 2, staged: ALL, shared, rails: 1, bounce, heap: 1 << 17, ..PLAIN }
}

pub(super) fn job(shape: &Shape, seed: u64, script: Script) -> Job {
    let mut job = Job::new(seed, shape, script);
    fill(&job, 2);
    for (me, pe) in [(0, 1), (1, 0)] {
        job.put(me, pe, job.heap - 16 - 8 * me as usize, 8).unwrap();
        job.until_quiet(me, pe);
    }
    job
}

const TOKENS: usize = 64;
pub(super) const LEN: usize = 500;

/// Words of tokens in the heap.
const WORDS: usize = 100_000;

fn bytes(at: usize) -> Vec<u8> {
    patterned(0, at..at + LEN)
}

fn place(token: usize) -> usize {
    let slot = token * 29 % TOKENS;
    slot * LEN + slot / 3 * 100
}

/// Iterates the lanes that do not wait for more operations, then lets nanoseconds pass.
fn iterate_after(job: &mut Job, pause: u64) {
    for pe in [0, 1] {
        if !job.lane(pe).is_collecting() {
            job.lane(pe).progress().unwrap();
        }
    }
    job.fabric.pass_time(pause);
}

/// Sends tokens as warps that run at the same time do before layout 4: each a put, a fence, and a
/// signal.
fn send_from_warps(job: &mut Job, warps: usize, seed: u64, mut then: impl FnMut(&mut Job)) {
    let mut random = Random::new(seed);
    // What each warp has left to do, a step of a token at a time.
    let steps = |token| (0..3).map(move |step| (token, step));
    let mut left: Vec<_> =
        (0..warps).map(|warp| (warp..TOKENS).step_by(warps).flat_map(steps)).collect();
    let mut count = 0;
    while count < 3 * TOKENS {
        let Some((token, step)) = left[random.below(warps)].next() else { continue };
        count += 1;
        match step {
            0 => job.put(0, 1, token * LEN, LEN).unwrap(),
            1 => job.fence(0, 1),
            _ => job.amo(0, 1, WORDS + 8 * (token % 8), AtomicOp::SignalAdd, 1).unwrap(),
        }
        then(job);
    }
}

/// The first two leave by themselves, at once; what comes meanwhile together.
#[test]
fn waiting_tokens_take_few_messages() {
    for seed in 1..=80 {
        let script = Script { delay: (1, 3000), ..CALM };
        let mut job = job(&shape(seed % 2 == 0), seed, script);
        job.fabric.trace_calls();
        let before = job.fabric.events().len();
        for token in 0..TOKENS {
            let (at, word) = (place(token), WORDS + 8 * (token % 8));
            job.put_signal(0, 1, &[(at, LEN)], word).unwrap();
        }
        job.until_quiet(0, 1);
        for token in 0..TOKENS {
            assert!(job.heap(1, place(token), LEN) == bytes(place(token)), "token {token}");
            assert_eq!(job.word(1, WORDS + 8 * (token % 8)), 8);
        }
        let moved = job.members.iter().map(|member| member.lane.staged_counters());
        let moved: u64 = moved.map(|of| of.by_fabric + of.in_messages + of.shared).sum();
        // Two values before, and nothing of what describes the puts.
        assert_eq!(moved, (2 * 8 + TOKENS * LEN) as u64);
        let events = job.fabric.events().split_off(before);
        let is_copy = |event: &&Event| matches!(event, Event::Copied { pe: Pe(1), .. });
        assert_eq!(events.iter().filter(is_copy).count(), TOKENS);
        for pe in [0, 1] {
            let (copies, posts) = (job.copies(pe), job.posts(pe));
            assert!(
                (1..=4).contains(&copies),
                "seed {seed}: {copies} calls with copies of PE {pe}"
            );
            assert!((1..=TOKENS / 5).contains(&posts), "seed {seed}: {posts} posts of PE {pe}");
        }
    }
}

/// On one host alone, and behind four: the copies of the first overlap at both ends.
#[test]
fn long_operations_join_others_under_way() {
    const LEN: usize = 128 << 10;
    for (shared, is_get, count, joins) in [
        (true, false, 32, true),
        (true, true, 32, true),
        (true, false, 4, false),
        (true, true, 4, false),
        (false, false, 32, false),
        (false, true, 32, false),
    ] {
        let (bounce, all) = ((1 << 20, 4, 4), || 0..count * LEN);
        let shape = Shape { bounce, heap: count * LEN + 4096, ..shape(shared) };
        let mut job = job(&shape, 7, Script { delay: (9000, 9000), ..CALM });
        job.fabric.store(Pe(1), job.members[1].base, &patterned(1, all()));
        job.fabric.trace_calls();
        for at in (0..count).map(|number| number * LEN) {
            if is_get { job.get(0, 1, at, LEN) } else { job.put(0, 1, at, LEN) }.unwrap();
        }
        job.until_quiet(0, 1);
        let (sender, len) = (u32::from(is_get), count * LEN);
        let moved = if is_get { job.scratch(0, 0, len) } else { job.heap(1, 0, len) };
        assert!(moved == patterned(sender, all()), "{shared} {is_get}");
        let (few, posts, copies) = (count / 2, job.posts(sender), job.copies(1 - sender));
        assert_eq!((posts <= few, copies <= few), (joins, joins), "{posts}, {copies}, {is_get}");
    }
}

#[test]
fn warps_at_once_take_few_messages() {
    for seed in 1..=100_u64 {
        let warps = [1, 2, 5, 16][seed as usize % 4];
        let takes_lists = seed % 3 == 0;
        let script = Script { delay: (1, 3000), takes_lists, ..CALM };
        let mut job = job(&shape(seed % 2 == 0), seed, script);
        job.fabric.trace_calls();
        send_from_warps(&mut job, warps, seed, |_| {});
        job.until_quiet(0, 1);
        let expected = patterned(0, 0..TOKENS * LEN);
        assert!(job.heap(1, 0, TOKENS * LEN) == expected, "seed {seed}");
        (0..8).for_each(|word| assert_eq!(job.word(1, WORDS + 8 * word), 8, "seed {seed}"));
        let most = if warps == 1 { TOKENS / 5 } else { 6 };
        assert!(job.posts(0) <= most, "seed {seed}: {} posts", job.posts(0));
        assert!(!takes_lists || job.copies(1) == 1, "seed {seed}: {} calls", job.copies(1));
    }
}

/// While the device copies, puts with ordered signals share lists. Each signal is stored after
/// its put and after the signals before it.
#[test]
fn ordered_signals_share_lists() {
    for (strong, takes_lists) in [(false, false), (false, true), (true, false), (true, true)] {
        let script = Script { delay: (2_000, 3_000), takes_lists, ..CALM };
        let mut job = job(&shape(true), 7, script);
        if strong {
            job.lane(0).order_signals();
        }
        job.fabric.trace_calls();
        let before = job.fabric.events().len();
        let word = |token| WORDS + 8 * (token * 29 % TOKENS);
        for token in 0..TOKENS {
            if strong {
                job.put_signal(0, 1, &[(place(token), LEN)], word(token)).unwrap();
            } else {
                job.put(0, 1, place(token), LEN).unwrap();
                job.fence(0, 1);
                job.amo(0, 1, word(token), AtomicOp::SignalAdd, 1).unwrap();
            }
            iterate_after(&mut job, 300);
        }
        job.until_quiet(0, 1);
        let base = job.members[1].base;
        let mut copied = 0;
        let mut stored = Vec::new();
        for event in job.fabric.events().split_off(before) {
            match event {
                Event::Copied { pe: Pe(1), .. } => copied += 1,
                Event::Applied { pe: Pe(1), addr } => {
                    stored.push(addr - base);
                    assert!(copied >= stored.len(), "{strong}, {takes_lists}: before its put");
                }
                _ => {}
            }
        }
        let expected: Vec<_> = (0..TOKENS).map(word).collect();
        assert_eq!(stored, expected, "strong: {strong}, takes lists: {takes_lists}");
        let posts = job.posts(0);
        assert!(posts <= TOKENS / 3, "strong: {strong}, takes lists: {takes_lists}: {posts} posts");
    }
}

/// Signals whose puts have left without them share lists with one another, and with later puts.
#[test]
fn interleaved_signals_share_lists() {
    for (warps, takes_lists) in [(2, true), (5, false), (5, true), (16, true)] {
        let script = Script { delay: (2_000, 3_000), takes_lists, ..CALM };
        let mut job = job(&shape(true), 7, script);
        job.fabric.trace_calls();
        send_from_warps(&mut job, warps, 7, |job| iterate_after(job, 200));
        job.until_quiet(0, 1);
        assert!(job.heap(1, 0, TOKENS * LEN) == patterned(0, 0..TOKENS * LEN), "{warps} warps");
        (0..8).for_each(|word| assert_eq!(job.word(1, WORDS + 8 * word), 8, "{warps} warps"));
        assert!(job.posts(0) <= TOKENS / 2, "{warps} warps: {} posts", job.posts(0));
    }
}

/// Signals behind unacknowledged puts leave in one message.
#[test]
fn late_signals_share_a_message() {
    for warps in [1, 8, 99] {
        let mut job = job(&shape(true), 7, CALM);
        job.fabric.trace_calls();
        (0..8).for_each(|token| job.put(0, 1, token * LEN, LEN).unwrap());
        send_all(&mut job);
        let before = job.posts(0);
        for token in 0..16 {
            if token % warps == warps - 1 {
                job.fence(0, 1);
            }
            job.amo(0, 1, WORDS + 8 * token, AtomicOp::SignalAdd, 1).unwrap();
        }
        assert_eq!(job.posts(0), before, "more may be about to come");
        send_all(&mut job);
        assert_eq!(job.posts(0), before + 1, "{warps} at a time");
        job.until_quiet(0, 1);
        (0..16).for_each(|token| assert_eq!(job.word(1, WORDS + 8 * token), 1));
        let before = job.posts(0);
        for _ in 0..2 {
            job.fence(0, 1);
            job.amo(0, 1, WORDS, AtomicOp::SignalAdd, 1).unwrap();
        }
        assert_eq!(job.posts(0), before + 2, "no transfer is in flight");
    }
}

/// Lets PE 0 send what it has. PE 1 finds it all at once.
fn send_all(job: &mut Job) {
    for _ in 0..100 {
        job.lane(0).progress().unwrap();
        job.fabric.pass_time(1000);
    }
}

/// Sends lists of four puts with signal.
fn send_lists(job: &mut Job, count: usize) {
    for token in 0..4 * count {
        job.put_signal(0, 1, &[(place(token), LEN)], WORDS + 8 * token).unwrap();
        if token % 4 == 3 {
            send_all(job);
        }
    }
}

#[test]
fn unordered_lists_share_a_copy() {
    let mut job = job(&shape(true), 7, CALM);
    job.fabric.trace_calls();
    send_lists(&mut job, 3);
    job.until_quiet(0, 1);
    for token in 0..12 {
        assert!(job.heap(1, place(token), LEN) == bytes(place(token)), "token {token}");
        assert_eq!(job.word(1, WORDS + 8 * token), 1);
    }
    assert_eq!((job.copies(0), job.copies(1)), (3, 1));
}

/// A list that cannot be read at first, behind another one, keeps its order.
#[test]
fn list_read_late_keeps_order() {
    for fails in 0..4 {
        let mut job = job(&shape(true), 7, CALM);
        send_lists(&mut job, 1);
        for token in [4, 5] {
            job.put(0, 1, place(token), LEN).unwrap();
            job.fence(0, 1);
            job.amo(0, 1, WORDS + 8 * token, AtomicOp::SignalAdd, 1).unwrap();
            job.fence(0, 1);
        }
        send_all(&mut job);
        let before = job.fabric.events().len();
        job.fabric.fail_calls(PortCall::Load, fails, 1);
        for _ in 0..100 {
            for pe in [0, 1] {
                let _ = job.lane(pe).progress();
            }
            job.fabric.pass_time(1000);
        }
        let first_word = job.members[1].base + WORDS + 8 * 4;
        let events = job.fabric.events().split_off(before);
        let at = |is: &dyn Fn(&Event) -> bool| events.iter().rposition(is);
        let word = at(&|event| matches!(event, Event::Applied { addr, .. } if *addr == first_word));
        let copied = at(&|event| matches!(event, Event::Copied { pe: Pe(1), .. }));
        assert!(word.is_none() || copied > word, "load {fails} fails: {word:?}, {copied:?}");
    }
}

#[test]
fn repeated_bytes_are_copied_once() {
    const EXPERTS: usize = 4;
    for seed in 1..=20 {
        let mut job = job(&shape(seed % 2 == 0), seed, CALM);
        let before = job.fabric.world().copies_out;
        for number in 0..TOKENS {
            let from = job.members[0].scratch + number / EXPERTS * LEN;
            let put = job.targets.part(from, 1, place(number), LEN);
            job.members[0].lane.start(&put).unwrap();
        }
        job.until_quiet(0, 1);
        for number in 0..TOKENS {
            let expected = bytes(number / EXPERTS * LEN);
            assert!(job.heap(1, place(number), LEN) == expected, "seed {seed}: put {number}");
        }
        // The first ones left alone, before others came.
        let out = job.fabric.world().copies_out - before;
        assert!(out <= TOKENS / EXPERTS + 4, "seed {seed}: {out} copies out");
    }
}

/// A kernel queues an operation each 600 ns, and the proxy thread asks many times in between.
#[test]
fn spaced_puts_share_lists() {
    let mut job = job(&shape(true), 7, CALM);
    job.fabric.trace_calls();
    for token in 0..TOKENS {
        job.put(0, 1, place(token), LEN).unwrap();
        for _ in 0..6 {
            if !job.lane(0).is_collecting() {
                job.lane(0).progress().unwrap();
            }
            job.fabric.pass_time(100);
        }
    }
    job.until_quiet(0, 1);
    assert_eq!(job.copies(0), 3, "the first, and two lists");
}

#[test]
fn waiting_puts_keep_their_memory() {
    let mut job = job(&shape(true), 5, CALM);
    (0..TOKENS).for_each(|token| job.put(0, 1, place(token), LEN).unwrap());
    let from = job.members[0].scratch;
    assert!(!job.lane(0).is_collecting(), "as many as go to the device together");
    for token in [0, 1, 2, TOKENS - 1] {
        assert!(job.lane(0).check_unused(from + place(token), LEN).is_err(), "token {token}");
    }
    for _ in 0..100 {
        // Behind the third one, of three side by side.
        job.lane(0).check_unused(from + 3 * LEN, 100).unwrap();
        job.iterate_some(&[0], 1);
    }
    job.until_quiet(0, 1);
    job.lane(0).check_unused(from, TOKENS * LEN).unwrap();
    for follow in [false, true] {
        (0..3).for_each(|token| job.put(0, 1, place(token), LEN).unwrap());
        assert_eq!(job.lane(0).is_collecting(), follow, "others may follow, but for the first");
    }
}

#[test]
fn copied_memory_stays_registered() {
    // To copy takes longer than anybody waits.
    let slow_rails = vec![(RailId(u8::MAX), 1_000_000_000)];
    let script = Script { delay: (1000, 1000), slow_rails, ..CALM };
    let mut job = job(&shape(true), 5, script);
    for (number, from) in [job.members[0].scratch, job.members[0].base].into_iter().enumerate() {
        let put = job.targets.part(from, 1, number * 1000, LEN);
        job.members[0].lane.start(&put).unwrap();
    }
    job.quiet(0, 1).unwrap_err();
    let member = &mut job.members[0];
    for handle in [member.scratch_handle, member.handle] {
        let released = member.regions.release(&handle);
        assert!(released.is_err_and(|error| error.is_in_use()));
    }
}

/// A put that follows a signal alone follows the puts before it as well: its bytes remain.
#[test]
fn puts_follow_joined_signals() {
    for places in [[0, 500], [500, 0]] {
        let mut job = job(&shape(true), 5, CALM);
        for (fill, at) in (1..).zip(places) {
            let from = job.members[0].scratch + 1000 * usize::from(fill);
            job.fabric.store(Pe(0), from, &[fill; 1000]);
            job.members[0].lane.start(&job.targets.part(from, 1, at, 1000)).unwrap();
            job.fence(0, 1);
            job.amo(0, 1, 4096, AtomicOp::SignalAdd, 1).unwrap();
        }
        job.until_quiet(0, 1);
        assert_eq!(job.heap(1, places[1], 1000), [2; 1000]);
    }
}

#[test]
fn copies_of_calls_are_bounded() {
    let mut job = Job::with(Shape { n_pes: 4, ..shape(true) });
    job.fabric.trace_calls();
    for (pe, at) in (1..4).flat_map(|pe| (0..128).map(move |number| (pe, 512 * number))) {
        job.put(0, pe, at, 300).unwrap();
    }
    (1..4).for_each(|pe| job.until_quiet(0, pe));
    assert_eq!(job.copies(0), 2);
}
