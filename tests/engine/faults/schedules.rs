//! Random schedules of faults: calls of the port that fail, completions that are lost, PEs that
//! stop, rails and links that go down, beside all that a script does. What a quiet has promised is
//! there. What it has not promised is there, or is not, or in part; it is nothing else, it is
//! nowhere else, and everybody comes to an end.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::batches::Batch;
use engine::port::{Access, Direction};
use engine::request::{FetchTarget, LocalSide, PutSignalRequest, Request};
use engine::wire::staging::MAX_PAYLOAD;
use sim_fabric::{FakeFabric, PortCall, Script};
use test_support::seeds::{campaign, for_seeds, single};

use super::fault::Fault;
use crate::job::{Job, Member, Shape, Targets};
use crate::race::{Random, race, random_script, random_shape, random_words};

/// Operations of each PE.
const OPS: usize = 12;
/// The part of a heap that one operation has for itself: a word for the signal, its data, and bytes
/// that stay zero.
const SLOT: usize = 256;
const DATA: usize = 200;
/// Where words for sums are, by sender; and bytes to get, which nobody changes.
const SUMS: usize = 4 * OPS * SLOT;
const SOURCE: usize = SUMS + 64;
const HEAP: usize = SOURCE + DATA;

/// Three PEs' transfers through one bounce buffer, over a rail that is 50 times slower, take 13 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// No schedule has as many faults that are waited for one after the other.
const LAST: Duration = Duration::from_secs(1000);

/// What a PE does to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Put(usize),
    Get(usize),
    Value,
    Signal(usize),
    Add,
    Fetch,
}

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It was refused.
    Refused,
    /// It was begun, and no quiet has said that it is there.
    Open,
    Promised,
}

/// What has become of a PE's operations, and the batch of each.
type Told = (Vec<End>, Vec<Batch>);

/// Which PE does what at which step, and what happens then.
#[derive(Debug)]
struct Plan {
    seed: u64,
    shape: Shape,
    /// Who comes to which step, and the fault that begins or ends then.
    faults: Vec<(u32, usize, Fault, bool)>,
}

impl Plan {
    fn new(seed: u64) -> (Self, Script) {
        let mut random = Random(seed * 0x9e37_79b9 + 7);
        let drawn = random_shape(&mut random);
        let shape = Shape {
            heap: HEAP,
            deadline: Some(DEADLINE),
            words: random_words(&mut random),
            bulk: (seed % 3) as u8,
            ..drawn
        };
        let script = random_script(&mut random);
        let mut faults = Vec::new();
        for _ in 0..[0, 1, 1, 1, 2, 3][random.below(6)] {
            let who = random.below(shape.n_pes as usize) as u32;
            let (step, fault) = (random.below(OPS), Fault::draw(&mut random, &shape));
            faults.push((who, step, fault, true));
            if random.below(2) == 0 {
                faults.push((who, step + 1 + random.below(OPS - step), fault, false));
            }
        }
        (Self { seed, shape, faults }, script)
    }

    fn op(&self, me: u32, number: usize) -> (u32, Op) {
        let mut random = Random((self.seed << 8 | u64::from(me) << 4 | number as u64) + 1);
        for _ in 0..3 {
            random.below(2);
        }
        let to = random.below(self.shape.n_pes as usize) as u32;
        let len = 1 + random.below(DATA);
        let op = match random.below(8) {
            0 | 1 => Op::Put(len),
            2 => Op::Get(len),
            3 => Op::Value,
            4 | 5 => Op::Signal(len),
            6 => Op::Add,
            _ => Op::Fetch,
        };
        (to, op)
    }

    /// What happens when a PE comes to a step.
    fn befall(&self, me: u32, step: usize, fabric: &FakeFabric) {
        let due = self.faults.iter().filter(|(who, at, ..)| (*who, *at) == (me, step));
        due.for_each(|(.., fault, begins)| fault.set(fabric, *begins));
    }
}

fn slot(me: u32, number: usize) -> usize {
    (me as usize * OPS + number) * SLOT
}

/// What an operation writes, or gets.
fn bytes(me: u32, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31 + me as usize * 13) as u8 | 1).collect()
}

/// A sum has a byte for each sender, which adds one to it with each of at most [`OPS`] operations.
fn share(me: u32) -> u64 {
    1 << (8 * me)
}

/// A PE's program: what became of each of its operations. The last quiets of all PEs are waited
/// for.
fn program(
    plan: &Plan,
    fabric: &FakeFabric,
    me: u32,
    member: &mut Member,
    targets: &Targets,
) -> Told {
    let mut random = Random(plan.seed * 31 + u64::from(me) + 1);
    let mut ends = vec![End::Open; OPS];
    let mut batches: Vec<Batch> = Vec::new();
    let promise = |ends: &mut [End], begun: usize, pe: u32, quiet: Result<(), EngineError>| {
        for (number, end) in ends.iter_mut().enumerate().take(begun) {
            if quiet.is_ok() && plan.op(me, number).0 == pe && *end == End::Open {
                *end = End::Promised;
            }
        }
    };
    for number in 0..OPS {
        plan.befall(me, number, fabric);
        let (to, op) = plan.op(me, number);
        let batch = match batches.last() {
            Some(last) if random.below(2) == 0 => *last,
            _ => member.lane.begin_batch().unwrap(),
        };
        batches.push(batch);
        member.lane.enter_batch(batch);
        if begin(plan, me, member, targets, number, (to, op)).is_err() {
            ends[number] = End::Refused;
        }
        member.lane.enter_batch(Batch::NONE);
        match random.below(8) {
            0 => drop(member.lane.fence(Pe(to))),
            1 => {
                let quiet = member.lane.quiet(Pe(to));
                promise(&mut ends, number + 1, to, quiet);
            }
            2 => {
                // Memory comes and goes meanwhile, and what cannot be registered leaves nothing
                // behind.
                let before = member.regions.len();
                let at = fabric.alloc(Pe(me), 64);
                match member.regions.register(at, 64, Access::Local) {
                    Ok(handle) => member.regions.release(&handle).unwrap(),
                    Err(error) => assert!(matches!(error, EngineError::Register { .. }), "{error}"),
                }
                assert_eq!(member.regions.len(), before, "wrong: a region is left over");
            }
            _ => {}
        }
        for (end, batch) in ends.iter_mut().zip(&batches).filter(|(end, _)| **end == End::Open) {
            if member.lane.failure().is_none() && member.lane.is_batch_done(*batch) {
                *end = End::Promised;
            }
        }
    }
    plan.befall(me, OPS, fabric);
    for pe in 0..plan.shape.n_pes {
        let quiet = quiet(fabric, member, Pe(pe));
        promise(&mut ends, OPS, pe, quiet);
    }
    (ends, batches)
}

/// A quiet that notices when it has no end.
fn quiet(fabric: &FakeFabric, member: &mut Member, pe: Pe) -> Result<(), EngineError> {
    while !member.lane.is_quiet(pe)? {
        let _ = member.lane.progress();
        fabric.pass_time(2_000_000);
        fabric.step();
        if Duration::from_nanos(fabric.now()) > LAST {
            let known: Vec<_> = member.lane.peers().collect();
            panic!("hang: {} waits for {pe}: {known:?}", member.lane.me());
        }
    }
    Ok(())
}

fn begin(
    plan: &Plan,
    me: u32,
    member: &mut Member,
    targets: &Targets,
    number: usize,
    (to, op): (u32, Op),
) -> Result<(), EngineError> {
    let at = slot(me, number);
    let local = member.scratch + at;
    match op {
        Op::Put(len) => member.lane.start(&targets.part(local, to, at + 8, len)),
        Op::Get(len) => {
            let part = targets.part(local, to, SOURCE, len);
            member.lane.start(&Request { direction: Direction::Read, ..part })
        }
        Op::Value => {
            let value = u64::from_le_bytes(bytes(me, number, 8).try_into().unwrap());
            let put = targets.part(local, to, at + 8, 8);
            let local = LocalSide::Value(value);
            member.lane.start(&Request { local, ..put })
        }
        Op::Signal(len) => {
            let parts = [targets.part(local, to, at + 8, len)];
            let signal = targets.atomic(to, at, AtomicOp::SignalAdd, 1);
            member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
        }
        Op::Add => member.lane.atomic(&targets.atomic(to, SUMS, AtomicOp::Add, share(me))),
        Op::Fetch => {
            let mut take = targets.atomic(to, SUMS, AtomicOp::FetchAdd, share(me));
            // Within the own heap, where nobody writes else.
            let addr = member.base + slot(me, number);
            take.result = Some(FetchTarget { addr, flag: Some(plan.seed | 1) });
            member.lane.atomic(&take)
        }
    }
}

/// Runs a schedule, and checks what there is in the end. Whether all of it was promised.
fn run(seed: u64) -> bool {
    let (plan, script) = Plan::new(seed);
    let mut job = Job::new(seed, &plan.shape, script);
    if seed % 5 == 2 {
        job = job.with_ordered_signals();
    }
    let targets = job.targets.clone();
    let n = plan.shape.n_pes;
    for pe in 0..n {
        // Where gets land, it is as empty as heaps are.
        let mut scratch = vec![0; HEAP];
        for number in 0..OPS {
            if let (_, Op::Put(len) | Op::Signal(len)) = plan.op(pe, number) {
                let at = slot(pe, number);
                scratch[at..at + len].copy_from_slice(&bytes(pe, number, len));
            }
        }
        job.fill_scratch(pe, &scratch);
        job.fabric.store(Pe(pe), job.members[pe as usize].base + SOURCE, &bytes(pe, 99, DATA));
    }
    let fabric = job.fabric.clone();
    let program = |me: u32, member: &mut Member, targets: &Targets| {
        program(&plan, &fabric, me, member, targets)
    };
    let (fabric, members) = race(job, seed, program);
    let took = Duration::from_nanos(fabric.now());
    assert!(took < LAST, "hang: it took {took:?}");
    let (mut members, told): (Vec<Member>, Vec<Told>) = members.into_iter().unzip();
    let (ends, batches): (Vec<Vec<End>>, Vec<Vec<Batch>>) = told.into_iter().unzip();
    check(&plan, &fabric, &members, &ends);
    // Who has memory back may do with it as it likes, whatever is still under way.
    plan.faults.iter().for_each(|(.., fault, _)| fault.set(&fabric, false));
    let mut taken = Vec::new();
    for (pe, member) in (0..n).zip(&members) {
        if member.regions.release(&member.scratch_handle).is_ok() {
            fabric.store(Pe(pe), member.scratch, &[0x77; HEAP]);
            taken.push((pe, member.scratch));
        }
    }
    for _ in 0..200 {
        members.iter_mut().for_each(|member| drop(member.lane.progress()));
        fabric.pass_time(50_000_000);
    }
    for ((me, member), batches) in (0..).zip(&members).zip(&batches) {
        for (number, batch) in batches.iter().enumerate() {
            let what = plan.op(me, number);
            assert!(member.lane.is_batch_done(*batch), "hang: {number} of PE {me}, {what:?}");
        }
    }
    check(&plan, &fabric, &members, &ends);
    for (pe, at) in taken {
        assert!(
            fabric.load(Pe(pe), at, HEAP) == [0x77; HEAP],
            "wrong: memory that PE {pe} has back"
        );
    }
    go_on(&plan, &fabric, &mut members, &targets);
    for member in &mut members {
        member.lane.drain_before_close(Duration::from_secs(1));
        member.check_canaries(&fabric, HEAP);
    }
    ends.iter().flatten().all(|end| *end == End::Promised)
}

/// PEs of which neither has given the other up go on.
fn go_on(plan: &Plan, fabric: &FakeFabric, members: &mut [Member], targets: &Targets) {
    let is_staged = plan.shape.staged != 0;
    let is_lost = |(.., fault, _): &(u32, usize, Fault, bool)| match fault {
        Fault::LoseCompletions(_) => true,
        Fault::Call(PortCall::Poll, ..) => is_staged,
        _ => false,
    };
    if plan.faults.iter().any(is_lost) {
        return;
    }
    let n = plan.shape.n_pes;
    for (me, to) in (0..n).flat_map(|me| (0..n).map(move |to| (me, to))) {
        let goes = |one: u32, other: u32, members: &mut [Member]| {
            members[one as usize].lane.is_quiet(Pe(other)).is_ok()
        };
        if !goes(me, to, members) || !goes(to, me, members) {
            continue;
        }
        let member = &mut members[me as usize];
        // Longer than what goes in one message.
        let put = targets.part(member.base, to, 0, MAX_PAYLOAD + 8);
        let begun = member.lane.start(&put).and_then(|()| {
            member.lane.fence(Pe(to))?;
            member.lane.atomic(&targets.atomic(to, SUMS + 16, AtomicOp::Inc, 0))
        });
        let mut left = 40_000;
        while begun.is_ok() && members[me as usize].lane.is_quiet(Pe(to)) == Ok(false) {
            members.iter_mut().for_each(|member| drop(member.lane.progress()));
            fabric.pass_time(1_000_000);
            left -= 1;
            assert!(left > 0, "hang: PE {me} goes on with PE {to} no more");
        }
        let ended = members[me as usize].lane.is_quiet(Pe(to));
        let is_late = matches!(ended, Err(EngineError::Timeout { .. }));
        assert!(!is_late || !goes(to, me, members), "hang: {ended:?}");
    }
}

fn check(plan: &Plan, fabric: &FakeFabric, members: &[Member], ends: &[Vec<End>]) {
    let n = plan.shape.n_pes;
    // Words are where nothing else is, in the heap or beside it.
    let heap = |m: &Member| -> Vec<u8> {
        let load = |base| fabric.load(m.lane.me(), base, HEAP);
        load(m.base).into_iter().zip(load(m.words)).map(|(byte, word)| byte | word).collect()
    };
    let heaps: Vec<Vec<u8>> = members.iter().map(heap).collect();
    let word = |heap: &[u8], at: usize| u64::from_le_bytes(heap[at..at + 8].try_into().unwrap());
    // What may be elsewhere than it should is found by what is left.
    let mut rest = heaps.clone();
    for (me, number) in (0..n).flat_map(|me| (0..OPS).map(move |number| (me, number))) {
        let ((to, op), end) = (plan.op(me, number), ends[me as usize][number]);
        let what = format!("{op:?} {number} of PE {me} to PE {to}, {end:?}");
        let (heap, at) = (&heaps[to as usize], slot(me, number));
        let promised = end == End::Promised;
        let data = |len: usize, promised: bool| {
            let (found, sent) = (&heap[at + 8..at + 8 + len], bytes(me, number, len));
            let is_whole = found == sent;
            let partly = found.iter().zip(&sent).all(|(found, sent)| [0, *sent].contains(found));
            assert!(is_whole || partly && !promised, "wrong: {what}");
            is_whole
        };
        match op {
            Op::Put(len) => drop(data(len, promised)),
            Op::Value => drop(data(8, promised)),
            Op::Signal(len) => {
                let is_whole = data(len, promised);
                let signal = word(heap, at);
                assert!(signal <= 1 && (signal == 1 || !promised), "wrong: the signal of {what}");
                assert!(signal == 0 || is_whole, "wrong: the signal of {what} is before its data");
            }
            Op::Get(len) if promised => {
                let member = &members[me as usize];
                // What has been taken back since does not count.
                let found = fabric.load(Pe(me), member.scratch + at, len);
                let is_back = found.iter().all(|byte| *byte == 0x77);
                assert!(is_back || found == bytes(to, 99, len), "wrong: {what}");
            }
            Op::Get(_) | Op::Add => {}
            Op::Fetch => {
                let own = &heaps[me as usize];
                let flag = word(own, at + 8);
                assert!(
                    flag == plan.seed | 1 || flag == 0 && !promised,
                    "wrong: the flag of {what}"
                );
                rest[me as usize][at..at + 16].fill(0);
            }
        }
        let written = match op {
            Op::Put(len) | Op::Signal(len) => 8 + len,
            Op::Value => 16,
            _ => 0,
        };
        rest[to as usize][at..at + written].fill(0);
    }
    for (pe, rest) in (0..n).zip(&mut rest) {
        let sum = word(rest, SUMS);
        for me in 0..n {
            let mine = (0..OPS).filter(|number| {
                let (to, op) = plan.op(me, *number);
                to == pe && matches!(op, Op::Add | Op::Fetch)
            });
            let (mut least, mut most) = (0, 0);
            for number in mine {
                least += u64::from(ends[me as usize][number] == End::Promised);
                most += 1;
            }
            let found = sum >> (8 * me) & 0xff;
            assert!(
                (least..=most).contains(&found),
                "wrong: PE {me} has added {least} to {most} to PE {pe}, not {found}"
            );
        }
        rest[SUMS..SUMS + 8].fill(0);
        assert_eq!(rest[SOURCE..], bytes(pe, 99, DATA), "wrong: what PE {pe} had");
        assert!(
            rest[..SOURCE].iter().all(|byte| *byte == 0),
            "canary: somewhere in PE {pe}'s heap"
        );
    }
}

/// How many of the schedules that had a fault ended with all promised, and how many with an error.
static SEEN: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());

fn counted(seed: u64) {
    let (plan, script) = Plan::new(seed);
    let all = catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
        eprintln!("{plan:?}\n{script:?}");
        resume_unwind(panic)
    });
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = plan.faults.iter().filter(|(.., begins)| *begins);
    let mut names: Vec<String> = begun.map(|(.., fault, _)| fault.name()).collect();
    if names.is_empty() {
        assert!(all, "wrong: nothing had failed, and not all was promised");
        names.push(String::from("none"));
    }
    for name in names {
        let (well, ill) = seen.entry(name).or_default();
        *(if all { well } else { ill }) += 1;
    }
}

#[test]
fn promises_survive_faults() {
    match (single(), campaign()) {
        (None, Some(count)) => run_campaign(count),
        _ => for_seeds("what_was_promised", &[], 20, counted),
    }
}

/// A thread on each processor, with fresh seeds; what fails is counted, and goes on.
fn run_campaign(count: u32) {
    let threads = std::thread::available_parallelism().map_or(2, NonZero::get) as u32;
    let (each, failed) = (count.div_ceil(threads), Mutex::new(Vec::new()));
    let case = |seed| {
        if let Err(panic) = catch_unwind(|| counted(seed)) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.unwrap_or_else(|| String::from("a panic"));
            failed.lock().unwrap().push((seed, text));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| for_seeds("promises_survive_faults", &[], each, case));
        }
    });
    let count = each * threads;
    let failed = failed.into_inner().unwrap();
    let of = |word: &str| failed.iter().filter(|(_, text)| text.contains(word)).count();
    println!(
        "{:<34} {:>10} {:>12} {:>10}",
        "fault on the fake", "schedules", "all promised", "errors"
    );
    // A schedule that has failed may have left it locked.
    for (name, (well, ill)) in SEEN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{name:<34} {:>10} {well:>12} {ill:>10}", well + ill);
    }
    for (seed, text) in &failed {
        println!("NVSHMEM_TEST_SEED={seed}: {text}");
    }
    println!("MEASURE schedules {count} schedules");
    println!("MEASURE hangs {} schedules", of("hang:"));
    println!("MEASURE canaries_broken {} schedules", of("canary:"));
    println!("MEASURE lost_or_wrong {} schedules", failed.len() - of("hang:") - of("canary:"));
    assert!(failed.is_empty(), "{} schedules failed", failed.len());
}
