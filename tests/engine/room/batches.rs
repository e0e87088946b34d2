//! Batches: over when all of their operations are delivered, whatever else goes on, and not before.

use std::collections::VecDeque;

use engine::atomic::{AtomicOp, Width};
use engine::error::EngineError;
use engine::group::MOST_GROUPS;
use engine::ids::Pe;
use engine::lane::batches::Batch;
use engine::port::Direction;
use engine::rails::Spread;
use engine::request::{PutSignalRequest, Request, ResultPlace};
use sim_fabric::{FakeFabric, Script};
use test_support::seeds::for_seeds;

use crate::job::{Job, Member, Random, Shape, random_words};
use crate::signals::{Targets, race, random_script, random_shape};

/// Nanoseconds that an iteration takes, so that delays are some hundred turns at most.
const TURN: u64 = 200_000;

const PATIENCE: u32 = 8;

/// What must be in memory when a batch is over: a PE, an address, the bytes.
type Effect = (u32, usize, Vec<u8>);

/// Each operation has a place of so many bytes, in the heap of its target and in the scratch memory
/// of its sender: words first, then bytes.
const PLACE: usize = 1024;
const BYTES: usize = 64;
const ADDED: usize = 24;
const TAKEN: usize = 8;

fn scratch_byte(pe: u32, at: usize) -> u8 {
    (at * 7 + pe as usize * 3) as u8 | 1
}

fn heap_byte(pe: u32, at: usize) -> u8 {
    if at % PLACE < BYTES { 0 } else { (at * 5 + pe as usize * 11) as u8 & 0xfe }
}

fn submit(
    random: &mut Random,
    me: u32,
    member: &mut Member,
    targets: &Targets,
    number: usize,
) -> Result<Vec<Effect>, EngineError> {
    let n = targets.0.len();
    let (to, len) = (random.below(n) as u32, [1, 8, 60, 200, 900][random.below(5)]);
    let at = (me as usize * (1 << 17) / n / PLACE + number) * PLACE;
    let (mine, theirs) = (member.scratch + at, targets.0[to as usize].0 + at);
    let local = mine + BYTES;
    let put = targets.part(local, to, at + BYTES, len);
    let data: Vec<u8> = (at + BYTES..at + BYTES + len).map(|at| scratch_byte(me, at)).collect();
    let added = |by: u64| (to, targets.word(to, at + ADDED), by.to_le_bytes().to_vec());
    let lane = &mut member.lane;
    Ok(match random.below(5) {
        0 => {
            lane.start(&put)?;
            vec![(to, theirs + BYTES, data)]
        }
        1 => {
            lane.start(&Request { direction: Direction::Read, ..put })?;
            let read = (at + BYTES..at + BYTES + len).map(|at| heap_byte(to, at)).collect();
            vec![(me, mine + BYTES, read)]
        }
        2 => {
            let signal_word = targets.atomic(to, at + ADDED, AtomicOp::SignalAdd, 7);
            let parts = [put];
            lane.put_signal(&PutSignalRequest { parts: &parts, signal: signal_word })?;
            vec![(to, theirs + BYTES, data), added(7)]
        }
        3 => {
            lane.atomic(&targets.atomic(to, at + ADDED, AtomicOp::Add, 3))?;
            vec![added(3)]
        }
        _ => {
            let mut take = targets.atomic(to, at + ADDED, AtomicOp::FetchAdd, 9);
            let width = if random.below(2) == 0 { Width::Four } else { Width::Eight };
            take.atomic.width = width;
            take.result = Some(ResultPlace { addr: mine + TAKEN, flag: None });
            lane.atomic(&take)?;
            // The word was zero; what is beside its place stays.
            let mut around: Vec<u8> = (at..at + 24).map(|at| scratch_byte(me, at)).collect();
            around[TAKEN..TAKEN + width.bytes()].fill(0);
            vec![added(9), (me, mine, around)]
        }
    })
}

fn check(fabric: &FakeFabric, effects: &[Effect]) {
    for (pe, addr, bytes) in effects {
        assert_eq!(&fabric.load(Pe(*pe), *addr, bytes.len()), bytes, "PE {pe} at {addr:#x}");
    }
}

fn filled_job(seed: u64, shape: &Shape, script: Script) -> Job {
    let job = Job::new(seed, shape, script);
    for pe in 0..shape.n_pes {
        let bytes: Vec<u8> = (0..shape.heap).map(|at| scratch_byte(pe, at)).collect();
        job.fill_scratch(pe, &bytes);
        let bytes: Vec<u8> = (0..shape.heap).map(|at| heap_byte(pe, at)).collect();
        job.fabric.store(Pe(pe), job.members[pe as usize].base, &bytes);
    }
    job
}

/// Several queues of batches, as a proxy thread has them: whatever is reordered, a batch that is
/// over has done all it should, and every batch ends.
#[test]
fn a_batch_that_is_over_has_done_all_it_should() {
    const EACH: usize = 28;
    for_seeds("a_batch_that_is_over_has_done_all_it_should", &[], 80, |seed| {
        let mut random = Random(seed * 0x2545_f491 + 9);
        let shape = Shape { words: random_words(seed), ..random_shape(&mut random) };
        let job = filled_job(seed, &shape, random_script(&mut random));
        let fabric = job.fabric.clone();
        let (_, members) = race(job, seed, |me, member, targets| {
            let mut random = Random(seed ^ (u64::from(me) + 1) << 40);
            let mut rings: [VecDeque<(Batch, Vec<Effect>)>; 3] = Default::default();
            let (mut number, mut turn) = (0, 0);
            while number < EACH || rings.iter().any(|ring| !ring.is_empty()) {
                let ring = random.below(rings.len());
                if number < EACH && rings[ring].len() < 4 {
                    let batch = member.lane.begin_batch().expect("fewer than there may be");
                    member.lane.enter_batch(batch);
                    let mut effects = Vec::new();
                    for _ in 0..1 + random.below(6).min(EACH - number - 1) {
                        effects.extend(submit(&mut random, me, member, targets, number)?);
                        number += 1;
                        if random.below(8) == 0 {
                            member.lane.fence(Pe(random.below(targets.0.len()) as u32))?;
                        }
                        if random.below(16) == 0 {
                            member.lane.fence_all();
                        }
                    }
                    member.lane.enter_batch(Batch::NONE);
                    rings[ring].push_back((batch, effects));
                }
                member.lane.progress()?;
                fabric.step();
                fabric.pass_time(TURN);
                turn += 1;
                if turn % PATIENCE == 0 {
                    member.lane.want_acks();
                }
                for ring in &mut rings {
                    while ring.front().is_some_and(|(batch, _)| member.lane.is_batch_done(*batch)) {
                        let (batch, effects) = ring.pop_front().expect("there is a front");
                        check(&fabric, &effects);
                        member.lane.end_batch(batch);
                    }
                }
            }
            Ok(())
        });
        for mut member in members {
            // What was staged for peers may end after their batches.
            let done = shape.staged != 0 || shape.words != 0 || !member.lane.has_work();
            assert!(done, "all batches are over, so nothing is under way");
            let all = std::iter::from_fn(|| member.lane.begin_batch()).count();
            assert_eq!(all, MOST_GROUPS, "each batch was given back");
        }
    });
}

#[test]
fn a_batch_ends_while_others_go_on() {
    for_seeds("a_batch_ends_while_others_go_on", &[3618120733, 51801627], 40, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 21);
        // Not staged: that takes many trips, and each waits behind all that the others post.
        let shape = Shape { n_pes: 2, staged: 0, ..random_shape(&mut random) };
        // Nor through a queue with one place for everything: that cannot be shared out, and waits
        // for as long as others keep it busy.
        let shape = Shape { depth: shape.depth.max(3), ..shape };
        let script = Script { delay: (1_000, 50_000), ..random_script(&mut random) };
        let job = filled_job(seed, &shape, script);
        let fabric = job.fabric.clone();
        race(job, seed, |me, member, targets| {
            if me == 1 {
                return Ok(());
            }
            let mut random = Random(seed);
            let batch = member.lane.begin_batch().expect("the first");
            member.lane.enter_batch(batch);
            let mut effects = Vec::new();
            for number in 0..6 {
                effects.extend(submit(&mut random, me, member, targets, number)?);
            }
            member.lane.enter_batch(Batch::NONE);
            let mut turns = 0;
            while !member.lane.is_batch_done(batch) {
                let other = targets.part(member.scratch, 1, 64 << 10, 40);
                member.lane.start(&other)?;
                let word = targets.atomic(1, 100 << 10, AtomicOp::Add, 1);
                member.lane.atomic(&word)?;
                member.lane.progress()?;
                fabric.step();
                fabric.pass_time(TURN);
                member.lane.want_ack(Pe(1));
                turns += 1;
                assert!(turns < 20_000, "the batch does not end");
            }
            check(&fabric, &effects);
            member.lane.end_batch(batch);
            member.lane.quiet(Pe(1))
        });
    });
}

#[test]
fn what_waits_in_the_pool_belongs_to_its_own_batch() {
    let spread = Spread { balanced_from: 64, striped_from: 64, segment: 16 };
    let shape = Shape { spread, depth: 4, heap: 1 << 17, ..Shape::default() };
    let mut job = filled_job(5, &shape, Script::default());
    let targets = Targets::of(&job);
    let fabric = job.fabric.clone();
    let Member { lane, scratch, .. } = &mut job.members[0];
    let mut batches = VecDeque::new();
    for (number, len) in [8192, 128, 4096, 64].into_iter().enumerate() {
        let batch = lane.begin_batch().expect("one of a few");
        lane.enter_batch(batch);
        let at = number * (8 << 10);
        let local = *scratch + at;
        lane.start(&targets.part(local, 1, at, len)).expect("it fits into the pool");
        lane.enter_batch(Batch::NONE);
        let data = (at..at + len).map(|at| scratch_byte(0, at)).collect();
        batches.push_back((batch, [(1, targets.0[1].0 + at, data)]));
    }
    assert!(batches.iter().all(|(batch, _)| !lane.is_batch_done(*batch)));
    while let Some((batch, effects)) = batches.pop_front() {
        if lane.is_batch_done(batch) {
            check(&fabric, &effects);
            lane.end_batch(batch);
        } else {
            lane.progress().expect("nothing fails");
            batches.push_back((batch, effects));
        }
    }
    assert!(!lane.has_work());
}

#[test]
fn a_failed_batch_is_not_taken_for_one_that_is_over() {
    let mut job = filled_job(6, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let scratch = job.members[0].scratch;
    job.fabric.fail_next(1);
    let lane = &mut job.members[0].lane;
    let batch = lane.begin_batch().expect("the first");
    lane.enter_batch(batch);
    lane.start(&targets.part(scratch, 1, 0, 64)).expect("it is posted");
    lane.enter_batch(Batch::NONE);
    while !lane.is_batch_done(batch) {
        assert!(lane.failure().is_none(), "while it has not failed it is under way");
        let _ = lane.progress();
        job.fabric.pass_time(1_000);
    }
    let failure = lane.failure().expect("it has failed by the time it looks over");
    assert!(failure.to_string().contains("PE 1"), "{failure}");
}
