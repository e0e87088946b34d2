//! Order at the target: what is behind a fence or is a signal leaves at once where messages ask for
//! it, and the target carries it out in order.

use std::collections::HashMap;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::port::{Access, Direction};
use engine::request::{LocalSide, PutSignalRequest, Request, ResultPlace};
use sim_fabric::{Delivery, Event, Script};
use test_support::seeds::for_seeds;

use super::job::{Job, Member, Random, Shape, random_words};
use super::signals::{Targets, race, random_script, random_shape};

const ALL: u32 = u32::MAX;

const LEN: usize = 1000;

/// As many as a peer has order groups to close: a further one waits for an answer.
const FENCES: usize = 15;

fn staged(shape: Shape) -> Shape {
    Shape { staged: ALL, bounce: (1024, 8, 8), ..shape }
}

fn iterate(job: &mut Job, pe: usize) {
    for _ in 0..2000 {
        job.members[pe].lane.progress().unwrap();
        job.fabric.pass_time(1000);
    }
}

/// What PE 0 does, to PE 1.
type Program = fn(&mut Member, &Targets);

fn put(member: &mut Member, targets: &Targets, at: usize, len: usize) {
    member.lane.start(&targets.part(member.scratch + at, 1, at, len)).unwrap();
}

fn amo(member: &mut Member, targets: &Targets, at: usize, op: AtomicOp) {
    member.lane.atomic(&targets.atomic(1, at, op, 7)).unwrap();
}

fn signal(member: &mut Member, targets: &Targets, at: usize, lens: &[usize]) {
    let part = |number: usize, len| {
        let at = at + 8 + number * LEN;
        targets.part(member.scratch + at, 1, at, len)
    };
    let parts: Vec<_> = lens.iter().enumerate().map(|(number, len)| part(number, *len)).collect();
    let signal = targets.atomic(1, at, AtomicOp::SignalSet, 7);
    member.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
}

/// PE 0 need not hear of one before it sends the next: once all has left, PE 1 brings it to its end
/// alone.
#[test]
fn what_is_in_order_leaves_without_an_answer() {
    let programs: [(&str, usize, Program); 7] = [
        ("put, fence, put", 2, |member, targets| {
            put(member, targets, 0, LEN);
            member.lane.fence(Pe(1)).unwrap();
            put(member, targets, 1024, LEN);
        }),
        ("put, fence, atomic, again and again", 8, |member, targets| {
            for at in (0..8192).step_by(2048) {
                put(member, targets, at + 8, LEN);
                member.lane.fence(Pe(1)).unwrap();
                amo(member, targets, at, AtomicOp::Set);
            }
        }),
        ("few bytes, fences between them", FENCES, |member, targets| {
            for at in (0..100 * FENCES).step_by(100) {
                put(member, targets, at, 50);
                member.lane.fence(Pe(1)).unwrap();
            }
        }),
        ("put with signal", 2, |member, targets| signal(member, targets, 0, &[LEN])),
        ("two parts, one of them few bytes, with a signal, twice", 6, |member, targets| {
            signal(member, targets, 0, &[220, LEN]);
            signal(member, targets, 4096, &[LEN, 220]);
        }),
        ("put, and a signal apart from it", 3, |member, targets| {
            put(member, targets, 8, LEN);
            put(member, targets, 2048, 50);
            amo(member, targets, 0, AtomicOp::SignalSet);
        }),
        ("words of any kind, fences between them", 3, |member, targets| {
            amo(member, targets, 0, AtomicOp::Set);
            member.lane.fence(Pe(1)).unwrap();
            let mut fetch = targets.atomic(1, 8, AtomicOp::FetchAdd, 1);
            fetch.result = Some(ResultPlace { addr: member.scratch, flag: None });
            member.lane.atomic(&fetch).unwrap();
            member.lane.fence(Pe(1)).unwrap();
            amo(member, targets, 16, AtomicOp::Add);
        }),
    ];
    for (what, effects, program) in programs {
        for (rails, fast) in [(1, false), (1, true), (4, false), (4, true)] {
            let shape = staged(Shape { rails, fast, ..Shape::default() });
            let script = Script { delay: (1_000, 100_000), ..Script::default() };
            let mut job = Job::new(7, &shape, script);
            let targets = Targets::of(&job);
            program(&mut job.members[0], &targets);
            iterate(&mut job, 0);
            iterate(&mut job, 1);
            let there = |event: &&Event| {
                matches!(event, Event::Copied { pe: Pe(1), .. } | Event::Applied { pe: Pe(1), .. })
            };
            let events = job.fabric.events();
            assert_eq!(events.iter().filter(there).count(), effects, "{what}, {rails} rail(s)");
            // And PE 0 hears of it.
            for _ in 0..3 {
                let _ = job.members[0].lane.is_quiet(Pe(1));
                iterate(&mut job, 0);
                iterate(&mut job, 1);
            }
            assert!(job.members[0].lane.is_quiet(Pe(1)).unwrap(), "{what}, {rails} rail(s)");
        }
    }
}

#[test]
fn words_of_host_memory_are_ordered_by_their_target() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    for at in 0..FENCES {
        job.members[0].lane.atomic(&targets.atomic(1, 8 * at, AtomicOp::Add, 1)).unwrap();
        job.members[0].lane.fence(Pe(1)).unwrap();
    }
    iterate(&mut job, 0);
    iterate(&mut job, 1);
    assert_eq!(job.heap(1, 8 * (FENCES - 1), 8), 1u64.to_le_bytes());
}

/// What the target has no say in, it cannot order: a write by the fabric is delivered before
/// anything behind a fence leaves, and leaves when everything before its own fence is delivered.
#[test]
fn writes_by_the_fabric_wait_for_delivery_as_ever() {
    // PE 1's heap is staged, another region of its is not.
    let mut job = Job::new(3, &staged(Shape { rails: 2, ..Shape::default() }), Script::default());
    let targets = Targets::of(&job);
    let direct = job.fabric.alloc(Pe(1), 4096);
    let handle = job.members[1].regions.register(direct, 4096, Access::LocalAndRemote).unwrap();
    let put = Request {
        direction: Direction::Write,
        pe: Pe(1),
        remote_handle: &handle,
        remote_addr: direct as u64,
        local: LocalSide::Value(9),
        len: 8,
    };
    let delivered = |job: &Job| {
        let is_put = |d: &&Delivery| d.direction == Direction::Write && d.to == Pe(1);
        job.fabric.deliveries().iter().filter(is_put).count()
    };
    job.fabric.stall(Pe(1));
    job.members[0].lane.start(&put).unwrap();
    job.members[0].lane.fence(Pe(1)).unwrap();
    amo(&mut job.members[0], &targets, 0, AtomicOp::Set);
    iterate(&mut job, 0);
    job.fabric.resume(Pe(1));
    job.fabric.pass_time(1_000_000_000);
    iterate(&mut job, 1);
    assert_eq!((delivered(&job), job.heap(1, 0, 8)), (1, vec![0; 8]), "the atomic was not sent");
    iterate(&mut job, 0);
    job.fabric.stall(Pe(0));
    iterate(&mut job, 1);
    assert_eq!(job.heap(1, 0, 8), 7u64.to_le_bytes());
    // The word is there, and PE 0 has not heard of it.
    job.members[0].lane.fence(Pe(1)).unwrap();
    job.members[0].lane.start(&put).unwrap();
    // Behind that, requests wait as well: it would wait for them without end.
    amo(&mut job.members[0], &targets, 8, AtomicOp::Set);
    for _ in 0..100 {
        job.members[0].lane.progress().unwrap();
    }
    assert_eq!(delivered(&job), 1, "only an answer tells that it may leave");
    job.fabric.resume(Pe(0));
    for _ in 0..4 {
        iterate(&mut job, 1);
        iterate(&mut job, 0);
    }
    assert_eq!((delivered(&job), job.heap(1, 8, 8)), (2, 7u64.to_le_bytes().to_vec()));
}

#[test]
fn nothing_comes_behind_what_was_refused() {
    let shape = Shape { n_pes: 3, bounce: (1024, 8, 2), ..staged(Shape::default()) };
    for seed in 1..=20 {
        let mut job = Job::new(seed, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fill_scratch(0, &[1; 8192]);
        job.fill_scratch(2, &[2; 8192]);
        for at in [0, 1024, 2048] {
            put(&mut job.members[0], &targets, at, LEN);
            job.members[0].lane.fence(Pe(1)).unwrap();
        }
        amo(&mut job.members[0], &targets, 4096, AtomicOp::Set);
        iterate(&mut job, 0);
        // Of the copies at PE 1 the first fails.
        job.fabric.fail_copies(0, 1);
        for _ in 0..2000 {
            let _ = job.members[0].lane.progress();
            job.members[1].lane.progress().unwrap();
        }
        assert!(job.quiet(0, 1).is_err(), "seed {seed}");
        for at in [0, 1024, 2048, 4096] {
            assert_eq!(job.heap(1, at, 8), [0; 8], "seed {seed}: at {at}");
        }
        put(&mut job.members[2], &targets, 0, 8000);
        for _ in 0..4 {
            iterate(&mut job, 2);
            iterate(&mut job, 1);
        }
        assert!(job.members[2].lane.is_quiet(Pe(1)).unwrap(), "seed {seed}");
        assert_eq!(job.heap(1, 0, 8000), [2; 8000], "seed {seed}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(usize),
    PutSignal(usize),
    Signal,
    Add,
    Fetch,
    Fence,
}

const STEPS: usize = 48;
const PLACE: usize = 1024;

fn steps(seed: u64, sender: u32, lens: &[usize]) -> Vec<Step> {
    let mut random = Random(seed * 0x2545_f491 + u64::from(sender) * 7919 + 1);
    let step = |_| {
        let len = lens[random.below(lens.len())];
        match random.below(12) {
            0..=2 => Step::Put(len),
            3 | 4 => Step::PutSignal(len),
            5 => Step::Signal,
            6 => Step::Add,
            7 => Step::Fetch,
            _ => Step::Fence,
        }
    };
    (0..STEPS).map(step).collect()
}

fn take(step: Step, member: &mut Member, targets: &Targets, at: usize) -> Result<(), EngineError> {
    let part = |len| targets.part(member.scratch + 8 + at % 4096, 0, at + 8, len);
    match step {
        Step::Put(len) => member.lane.start(&part(len)),
        Step::PutSignal(len) => {
            let signal = targets.atomic(0, at, AtomicOp::SignalAdd, 1);
            member.lane.put_signal(&PutSignalRequest { parts: &[part(len)], signal })
        }
        Step::Signal => member.lane.atomic(&targets.atomic(0, at, AtomicOp::SignalAdd, 1)),
        Step::Add => member.lane.atomic(&targets.atomic(0, at, AtomicOp::Add, 1)),
        Step::Fetch => {
            let mut fetch = targets.atomic(0, at, AtomicOp::FetchAdd, 1);
            fetch.result = Some(ResultPlace { addr: member.base, flag: None });
            member.lane.atomic(&fetch)
        }
        Step::Fence => member.lane.fence(Pe(0)),
    }
}

/// When the word of a place changed, and when its data came: first and last.
type Moments = (Option<usize>, Option<(usize, usize)>);

/// When what took effect at PE 0, held against what each sender has done in which order.
fn check_order(events: &[Event], base: usize, senders: u32, steps: impl Fn(u32) -> Vec<Step>) {
    let mut moments: HashMap<usize, Moments> = HashMap::new();
    for (moment, event) in events.iter().enumerate() {
        let (Event::Copied { pe: Pe(0), addr, .. } | Event::Applied { pe: Pe(0), addr }) = *event
        else {
            continue;
        };
        let Some(offset) = addr.checked_sub(base) else { continue };
        let (word, data) = moments.entry(offset / PLACE).or_default();
        if offset % PLACE == 0 {
            assert_eq!(word.replace(moment), None, "a word changes once");
        } else {
            let (first, _) = data.unwrap_or((moment, moment));
            *data = Some((first, moment));
        }
    }
    for sender in 1..senders {
        let (mut before, mut current, mut puts) = (None, None, None);
        for (number, step) in steps(sender).into_iter().enumerate() {
            let what = format!("PE {sender}, step {number}: {step:?}");
            let (word, data) =
                moments.get(&(sender as usize * STEPS + number)).copied().unwrap_or_default();
            let (has_data, has_word) = match step {
                Step::Put(_) => (true, false),
                Step::PutSignal(_) => (true, true),
                Step::Signal | Step::Add | Step::Fetch => (false, true),
                Step::Fence => {
                    before = before.max(current);
                    continue;
                }
            };
            assert_eq!((data.is_some(), word.is_some()), (has_data, has_word), "{what}");
            let first = data.map(|(first, _)| first).or(word);
            assert!(before < first, "{what} came before what is before its fence");
            let last = data.map(|(_, last)| last);
            assert!(word.is_none() || last < word, "{what}: the signal came before its data");
            if let Step::Signal = step {
                assert!(puts < word, "{what} came before the data of a put before it");
            }
            puts = puts.max(last);
            current = current.max(last).max(word);
        }
    }
}

/// Fences, signals and puts to staged memory of all kinds, by several senders at once, under every
/// misbehaviour, with one bounce buffer for each direction: everything takes effect once and in
/// order, and it ends.
#[test]
fn what_is_ordered_by_its_target_is_in_order() {
    const LENS: [usize; 5] = [1, 60, 210, 240, 700];
    for_seeds("what_is_ordered_by_its_target_is_in_order", &[], 300, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 31);
        let shape = Shape { heap: 1 << 18, ..random_shape(&mut random) };
        let staged = [ALL, ALL, ALL, !0b10, 0b11][random.below(5)];
        let shape = Shape { staged, by_fabric: 0, words: random_words(seed), ..shape };
        let script = random_script(&mut random);
        let again_percent = script.again_percent.min(50);
        let script = Script { slow_rails: Vec::new(), again_percent, ..script };
        let job = Job::new(seed, &shape, script);
        let (base, targets) = (job.members[0].base, Targets::of(&job));
        let place = |sender: u32, number: usize| (sender as usize * STEPS + number) * PLACE;
        let (fabric, members) = race(job, seed, |me, member, targets| {
            if me == 0 {
                return Ok(());
            }
            for (number, step) in steps(seed, me, &LENS).into_iter().enumerate() {
                take(step, member, targets, place(me, number))?;
            }
            member.lane.quiet(Pe(0))
        });
        assert!(members.iter().all(|member| !member.lane.has_work()));
        let events = targets.in_heaps(shape.heap, fabric.events());
        check_order(&events, base, shape.n_pes, |sender| steps(seed, sender, &LENS));
    });
}
