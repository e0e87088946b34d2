//! The protocol, checked exhaustively on small cases.
//!
//! Two real lanes run small programs over a fabric whose every choice is tried: which completion
//! and which message is found next and by which turn, up to two of them by one iteration; when a
//! target is told of a write that carries immediate data, whose data is there then; which message
//! arrives a second time and when; which write is delivered at once and which as late as can be;
//! which post or send finds no room; which segment or message is lost, or which rail with all that
//! is under way on it; which lane turns and when the next operation is issued.
//!
//! # Rules
//! In every execution: no signal before its own data, nor a signal sent by itself before the data
//! of what its PE has sent before it; nothing applied twice or lost; nothing behind a fence before
//! anything in front of it; when quiet returns everything is delivered and applied, and fetched
//! values are stored, value before flag; it ends, with every lane idle, and never stops while
//! something is outstanding. When something is lost, the sender is told, and the rules about order
//! hold for what is left.
//!
//! # Bounds
//! Two PEs, one or two rails, words of 8 bytes with a segment each, up to four operations. At most
//! one lack of room, one duplicate and one loss (of a segment, a message or a rail of either PE) in
//! an execution, and of these as many together as each test says. Beyond these bounds, random
//! programs of up to seven operations of each PE go random ways, with several of each together. One
//! counted put under way to a peer, so that all have the same tag, or two. No state in which a lane
//! waits inside a call while the other one does too.
//!

mod explore;
mod port;
mod program;
mod search;
mod world;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use engine::lane::SignalChoice::{self, Auto, Chained, Counted, Eager};
use test_support::full;

use self::explore::{Explored, explore};
use self::program::ProgramOp::{self, Add, Fence, FetchAdd, Put, Quiet, Signal, SignalBehind};
use self::program::{Case, OPS};
use crate::prelude::*;

const KINDS: [ProgramOp; 4] = [Put(1), Signal(1), Add, FetchAdd];

/// What of a case is explored outside of the full tier: two seconds of a core.
const SOME: u64 = 15_000;

/// Explores cases and prints how much there was, each large one by itself. Outside of the full tier
/// it is one case in `step`, and [`SOME`] executions of a large one.
fn explore_all(what: &str, step: usize, cases: impl IntoIterator<Item = Case>) {
    let (step, most) = if full() { (1, u64::MAX) } else { (step, SOME) };
    let cases = cases.into_iter().step_by(step);
    let started = Instant::now();
    // Not captured: the numbers are part of the result.
    let say = |name: &str, Explored { executions, ended, states, longest, .. }: Explored| {
        let seconds = started.elapsed().as_secs_f64();
        let _ = writeln!(
            std::io::stderr(),
            "{what}: {name}: {executions} executions, {ended} to the end, {states} states, \
             at most {longest} choices ({seconds:.1} s so far)"
        );
    };
    let mut count = 0;
    let mut total = Explored::default();
    for case in cases {
        let explored = explore(&case, most, None);
        let name = &case.name;
        assert!(explored.ended > 0 && explored.executions > 1, "{name}: {explored:?}");
        if explored.executions > 20_000 {
            say(&case.name, explored);
        }
        count += 1;
        total.executions += explored.executions;
        total.ended += explored.ended;
        total.states += explored.states;
        total.longest = total.longest.max(explored.longest);
    }
    assert!(count > 0, "{what}: nothing was explored");
    say(&format!("{count} programs, one in {step}"), total);
}

/// A case for each protocol that the programs tell apart.
fn by_protocol(zero: &[ProgramOp], one: &[ProgramOp]) -> Vec<Case> {
    let has_signals = zero.iter().chain(one).any(|op| matches!(op, Signal(_)));
    let protocols: &[SignalChoice] = if has_signals { &[Chained, Eager] } else { &[Auto] };
    protocols.iter().map(|signals| Case::new(*signals, zero, one)).collect()
}

/// Puts whose segments the peer counts, where one tag serves for all of them, and where each has
/// its own. Fewer things go wrong together than for the other protocols: every segment is one more
/// event.
#[test]
fn puts_counted_by_target() {
    let plain = |zero: &[ProgramOp], one: &[ProgramOp]| Case::new(Counted, zero, one).calm();
    let mut cases = Vec::new();
    let programs: [&[ProgramOp]; 7] = [
        &[Signal(1), Signal(1)],
        &[Signal(1), Add],
        &[Signal(1), FetchAdd],
        &[Signal(1), Fence, Put(1)],
        &[Put(1), Fence, Signal(1)],
        &[Signal(1), Fence, Signal(1)],
        &[Signal(1), Quiet, Signal(1)],
    ];
    for (at, ops) in programs.into_iter().enumerate() {
        let case = plain(ops, &[]);
        // Two signals and a duplicate have as many executions as a third of all other cases.
        if at == 1 || at == 0 && full() {
            cases.push(Case { duplicates: 1, ..case.clone() });
        }
        cases.push(Case { counted: 2, rails: 1, ..case.clone() });
        cases.push(case);
    }
    // Alone: a duplicate, a lack of room, several things found by one iteration, a loss.
    let case = plain(&[Signal(2)], &[]);
    cases.push(Case { duplicates: 1, ..case.clone() });
    cases.push(Case { again: 1, ..case.clone() });
    cases.push(Case { batch: 2, ..case.clone() });
    cases.push(Case { failures: 1, ..case });
    cases.push(Case::new(Counted, &[Signal(1)], &[]));
    // Losses, with something behind.
    for ops in [[Signal(1), Fence, Put(1)], [Put(1), Fence, Signal(1)], [Signal(1), Quiet, Add]] {
        cases.push(Case { failures: 1, ..plain(&ops, &[]) });
    }
    // Acknowledgements that ride on the other's messages, and a queue of one.
    cases.push(plain(&[Signal(1)], &[Add]));
    for ops in [&[Signal(3)][..], &[Put(2), Fence, Signal(2)], &[Signal(1), Signal(2)]] {
        cases.push(Case { rails: 1, depth: 1, ..plain(ops, &[]) });
    }
    explore_all("counted puts", 11, cases);
}

#[test]
fn puts_over_rails_chosen_by_load() {
    let plain =
        |signals, ops: &[ProgramOp]| Case { balanced: true, ..Case::new(signals, ops, &[]).calm() };
    let mut cases = Vec::new();
    for ops in [&[Put(3)][..], &[Put(2), Fence, Put(2)], &[Put(2), Quiet, Put(3)]] {
        let case = plain(Auto, ops);
        cases.push(Case { again: 1, ..case.clone() });
        cases.push(Case { failures: 1, ..case.clone() });
        cases.push(Case { rails: 3, ..case });
    }
    for signals in [Chained, Counted] {
        for ops in [&[Signal(2)][..], &[Put(2), Fence, Signal(2)]] {
            cases.push(plain(signals, ops));
        }
        cases.push(Case { failures: 1, ..plain(signals, &[Signal(2)]) });
    }
    explore_all("puts over rails chosen by load", 4, cases);
}

#[test]
fn each_operation_alone() {
    let cases = [Put(2), Signal(0), Signal(1), Signal(2), Add, FetchAdd];
    explore_all("one operation", 1, cases.into_iter().flat_map(|what| by_protocol(&[what], &[])));
}

#[test]
fn two_operations_in_order() {
    let mut cases = Vec::new();
    for between in [Fence, Quiet] {
        for (first, second) in KINDS.into_iter().flat_map(|one| KINDS.map(|two| (one, two))) {
            for case in by_protocol(&[first, between, second], &[]) {
                cases.push(Case { again: 1, ..case.clone().calm() });
                // Behind a quiet nothing of the first is left that these could disturb.
                if between == Fence || full() {
                    cases.push(Case { duplicates: 1, ..case.clone().calm() });
                }
                // Several things found by one iteration; with a fetch they have half of all
                // executions here.
                if between == Fence && second != FetchAdd && first != FetchAdd || full() {
                    cases.push(Case { rails: 1, batch: 2, ..case.calm() });
                }
            }
        }
    }
    explore_all("two operations in order", 7, cases);
}

#[test]
fn two_operations_behind_a_fence() {
    let pairs = || KINDS.into_iter().flat_map(|one| KINDS.map(|two| (one, two)));
    // A signal or a fetch in front has the same fence to pass, at ten times the executions.
    let cases = [Put(1), Add].into_iter().flat_map(|first| {
        pairs().flat_map(move |(one, two)| by_protocol(&[first, Fence, one, two], &[]))
    });
    explore_all("two operations behind a fence", 5, cases.map(Case::calm));
}

#[test]
fn operations_both_ways() {
    let mut cases = Vec::new();
    for (at, zero) in KINDS.into_iter().enumerate() {
        for one in &KINDS[at..] {
            cases.extend(by_protocol(&[zero], &[*one]).into_iter().map(Case::calm));
        }
    }
    let add = Case::new(Auto, &[Add], &[Add]).calm();
    cases.push(Case { duplicates: 1, ..add.clone() });
    cases.push(Case { again: 1, batch: 2, ..add });
    explore_all("both ways", 4, cases);
}

#[test]
fn waiting_for_room() {
    let programs: [&[ProgramOp]; 4] =
        [&[Put(3), Add], &[Signal(3)], &[Put(2), Fence, Signal(3)], &[Add, Fence, Put(3), Add]];
    let mut cases = Vec::new();
    for case in programs.into_iter().flat_map(|ops| by_protocol(ops, &[])) {
        let case = Case { rails: 1, depth: 1, batch: 2, ..case.calm() };
        cases.push(Case { again: 1, ..case.clone() });
        cases.push(case);
    }
    explore_all("waiting for room", 3, cases);
}

/// One segment or message is lost, or a rail fails with all that is under way on it and takes
/// nothing more: what follows must not take effect, and the sender is told.
#[test]
fn losses_of_one_pe() {
    let programs: [&[ProgramOp]; 9] = [
        &[Put(2), Fence, Add],
        &[Put(1), Put(1), Fence, Put(1)],
        &[Signal(2)],
        &[Signal(2), Fence, Put(1)],
        &[Add, Fence, Signal(1)],
        &[FetchAdd, Fence, Put(1), Add],
        &[Put(1), Fence, Signal(1), Fence, FetchAdd],
        &[Put(1), Quiet, Add],
        &[Signal(1), Quiet, Add],
    ];
    let (mut cases, mut of_rails) = (Vec::new(), Vec::new());
    for ops in programs {
        for case in by_protocol(ops, &[]) {
            cases.push(Case { failures: 1, batch: 2, ..case.clone().calm() });
            of_rails.push(Case { rail_failures: 1, ..case.clone().calm() });
            if case.signals == Eager {
                of_rails.push(Case { rail_failures: 1, ..Case::new(Counted, ops, &[]).calm() });
            }
        }
    }
    explore_all("losses", 3, cases);
    explore_all("rail losses", 7, of_rails);
}

#[test]
fn signals_behind_puts() {
    let programs: [&[ProgramOp]; 6] = [
        &[Put(2), SignalBehind],
        &[Put(1), SignalBehind, Put(1)],
        &[Put(1), SignalBehind, SignalBehind],
        &[Signal(1), SignalBehind],
        &[Put(1), Fence, SignalBehind],
        &[Add, SignalBehind],
    ];
    let mut cases = Vec::new();
    for ops in programs {
        for signals in [Chained, Eager] {
            let case = Case::new(signals, ops, &[]).calm();
            if full() {
                cases.push(Case { duplicates: 1, ..case.clone() });
                cases.push(Case { again: 1, batch: 2, ..case.clone() });
            }
            cases.push(Case { again: 1, ..case.clone() });
            cases.push(Case { failures: 1, ..case });
        }
    }
    explore_all("signals behind puts", 1, cases);
}

#[test]
fn losses_at_either_pe() {
    let mut cases = Vec::new();
    for (zero, one) in
        [(Put(1), Add), (Add, Put(1)), (Put(1), Put(1)), (Add, Add), (FetchAdd, Put(1))]
    {
        let case = Case::new(Auto, &[zero], &[one]).calm();
        cases.push(Case { failures: 1, ..case.clone() });
        cases.push(Case { rail_failures: 1, ..case });
    }
    explore_all("losses at either PE", 1, cases);
}

const WANDERED: u64 = 50;

fn random_case(random: &mut Random) -> Case {
    let mut program = || -> Vec<ProgramOp> {
        let len = random.below(OPS);
        let others = [Put(2), Put(3), Signal(0), Signal(2), SignalBehind, Fence, Quiet];
        let all = [&KINDS[..], &others].concat();
        (0..len).map(|_| all[random.below(all.len())]).collect()
    };
    let (zero, one) = (program(), program());
    let signals = [Auto, Chained, Auto, Eager, Counted][random.below(5)];
    let mut case = Case::new(signals, &zero, &one);
    case.rails = 1 + random.below(3) as u8;
    case.depth = [1, 2, 4][random.below(3)];
    case.counted = 1 + random.below(3) as u16;
    case.balanced = random.below(3) == 0;
    case.again = random.below(6) as u32;
    case.duplicates = random.below(4) as u32;
    case.batch = 1 + random.below(4) as u32;
    match random.below(6) {
        0 => case.failures = 1,
        1 => case.rail_failures = 1,
        _ => {}
    }
    case
}

#[test]
fn random_longer_programs() {
    let (all, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    for_seeds("random_programs", &[], 80, |seed| {
        let case = random_case(&mut Random::new(seed));
        let explored = explore(&case, WANDERED, Some(seed));
        all.fetch_add(explored.executions, Ordering::Relaxed);
        ended.fetch_add(explored.ended, Ordering::Relaxed);
    });
    let (all, ended) = (all.into_inner(), ended.into_inner());
    let _ = writeln!(std::io::stderr(), "random programs: {all} executions, {ended} to the end");
    // The others end where a PE waits inside a call for one that has failed.
    assert!(all <= WANDERED || ended > all / 2, "{ended} of {all} executions came to their end");
}

// The numbers of operations fit the bits of a set.
const _: () = assert!(2 * OPS < 63);
