//! Random schedules of faults: calls of the port that fail, completions that are lost, PEs that
//! stop, rails and links that go down, beside all that a script does. What a quiet has promised is
//! there. What it has not promised is there, or is not, or in part; it is nothing else, it is
//! nowhere else, and everybody comes to an end.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use test_support::seeds::{campaign, single};

use super::fault::Fault;
use crate::prelude::*;
use crate::programs::{HEAP, LONGEST_RUN, Link, Plan, Ran, SUMS, draw_shapes, run};

const STEPS: usize = 16;

/// Over a rail that is 50 times slower, three PEs' transfers through one bounce buffer take 13 s,
/// and those in segments of 64 bytes, one at a time, leave a message waiting for more than 30 s.
const DEADLINE: Duration = Duration::from_secs(90);

fn plan(random: &mut Random, seed: u64) -> Plan {
    let mut shapes = draw_shapes(random);
    for shape in &mut shapes {
        (shape.deadline, shape.bulk) = (Some(DEADLINE), (seed % 3) as u8);
        shape.max_segment = shape.max_segment.max(64);
    }
    let mut faults = Vec::new();
    for _ in 0..[0, 1, 1, 1, 2, 3][random.below(6)] {
        let who = random.below(shapes.len()) as u32;
        let (step, fault) = (random.below(STEPS), Fault::draw(random, &shapes[0]));
        faults.push((who, step, fault, true));
        if random.below(2) == 0 {
            faults.push((who, step + 1 + random.below(STEPS - step), fault, false));
        }
    }
    Plan { seed, shapes, steps: STEPS, longest: 300, has_batches: true, faults }
}

/// Runs a schedule, and checks what there is in the end. Whether all of it was promised.
fn check(plan: &Plan, mut random: Random) -> bool {
    let script = random_script(&mut random);
    let mut ran = run(plan, &mut random, script);
    let took = Duration::from_nanos(ran.fabric.now());
    assert!(took < LONGEST_RUN, "hang: it took {took:?}");
    ran.check(|_| false);
    // Who has memory back may do with it as it likes, whatever is still under way.
    plan.faults.iter().for_each(|(.., fault, _)| fault.set(&ran.fabric, false));
    let mut taken = Vec::new();
    for ((pe, member), extra) in (0..).map(Pe).zip(&ran.members).zip(&ran.extra) {
        // A peer reads in place by the keys of one region, and several may hold the same bytes.
        let mut handles = extra.iter().map(|(.., handle)| handle).chain([&member.scratch_handle]);
        if handles.all(|handle| member.regions.release(handle).is_ok()) {
            ran.fabric.store(pe, member.scratch, &[0x77; HEAP]);
            taken.push((pe, member.scratch));
        }
    }
    for _ in 0..200 {
        ran.members.iter_mut().for_each(|member| drop(member.lane.progress()));
        ran.fabric.pass_time(50_000_000);
    }
    for (member, links) in ran.members.iter().zip(&ran.links) {
        let is_over = |batch: Batch| batch == Batch::NONE || member.lane.is_batch_done(batch);
        assert!(links.iter().flat_map(Link::batches).all(is_over), "hang: a batch");
    }
    ran.check(|at| taken.iter().any(|(_, base)| (*base..base + HEAP).contains(&at)));
    for (pe, at) in taken {
        let found = ran.fabric.load(pe, at, HEAP);
        assert!(found == [0x77; HEAP], "wrong: memory that {pe} has back");
    }
    go_on(plan, &mut ran);
    for member in &mut ran.members {
        member.lane.drain_before_close(Duration::from_secs(1));
        member.check_canaries(&ran.fabric, HEAP);
    }
    ran.links.iter().flatten().all(Link::all_promised)
}

/// PEs of which neither has given the other up go on.
fn go_on(plan: &Plan, ran: &mut Ran) {
    let Ran { fabric, members, targets, .. } = ran;
    let is_staged = plan.shapes[0].staged != 0;
    let is_lost = |(.., fault, _): &(u32, usize, Fault, bool)| match fault {
        Fault::LoseCompletions(_) => true,
        Fault::Call(PortCall::Poll, ..) => is_staged,
        _ => false,
    };
    if plan.faults.iter().any(is_lost) {
        return;
    }
    let n = plan.shapes[0].n_pes;
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

/// How many of the schedules that had a fault ended with all promised, and how many with an error.
static SEEN: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::new(BTreeMap::new());

fn counted(seed: u64) {
    let mut random = Random::new(seed * 0x9e37_79b9 + 7);
    let plan = plan(&mut random, seed);
    let all = catch_unwind(|| check(&plan, random.clone())).unwrap_or_else(|panic| {
        eprintln!("{plan:?}");
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
