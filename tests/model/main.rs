//! The protocol, checked exhaustively on small cases.
//!
//! Two real lanes run small programs over a fabric whose every choice is tried: which completion
//! and which message is found next and by which turn, up to two of them by one turn; when a target is
//! told of a write that carries remote data, whose data is there then; which message arrives a second
//! time and when; which write is delivered at once and which as late as can be; which post or send
//! finds no room; which segment or message is lost, or which rail with all that is under way on it;
//! which lane turns and when the next operation is issued.
//!
//! # Rules
//! In every execution: no signal before its own data; nothing applied twice or lost; nothing behind
//! a fence before anything in front of it; when quiet returns everything is delivered and applied,
//! and fetched values are stored, value before flag; it ends, with every lane idle, and never stops
//! while something is outstanding. When something is lost, the sender is told, and the rules about
//! order hold for what is left.
//!
//! # Bounds
//! Two PEs, one or two rails, words of 8 bytes with a segment each, up to four operations. At most
//! one lack of room, one duplicate and one loss (of a segment, a message or a rail of PE 0) in an
//! execution, and of these as many together as each test says. One counted put under way to a peer, so that all have the same tag, or two. No
//! state in which a lane waits inside a call while the other one does too.
//!
//! # That it can fail
//! `tests/injected/model.bugs` breaks the rules in the engine, one at a time, and each is found here.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

#[path = "../support/as_entry.rs"]
mod as_entry;
mod explore;
mod port;
mod program;
mod world;

use std::io::Write;
use std::time::Instant;

use explore::{Explored, explore};
use nvshmem_transport_libfabric::engine::lane::SignalEngine::{
    self, Auto, Chained, Counted, Eager, Ordered,
};
use program::What::{self, Add, Fence, FetchAdd, Put, Quiet, Signal};
use program::{Case, OPS};
use test_support::full;

const KINDS: [What; 4] = [Put(1), Signal(1), Add, FetchAdd];

/// Explores cases and says how much there was, each that is large by itself.
fn explore_all(what: &str, cases: impl IntoIterator<Item = Case>) {
    let started = Instant::now();
    // Not captured: the numbers are part of the result.
    let say = |name: &str, Explored { executions, ended, states, longest }: Explored| {
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
        let explored = explore(&case);
        if explored.executions > 20_000 {
            say(&case.name, explored);
        }
        count += 1;
        total.add(explored);
    }
    say(&format!("{count} programs"), total);
}

fn named(signals: SignalEngine, zero: &[What], one: &[What]) -> Case {
    let orders_messages = signals == Ordered;
    let name = format!("{signals:?} {zero:?} | {one:?}");
    Case { orders_messages, ..Case::new(&name, signals, zero, one) }
}

/// The engines in which a program differs.
fn engines(programs: &[&[What]]) -> &'static [SignalEngine] {
    let signals = programs.iter().any(|ops| ops.iter().any(|op| matches!(op, Signal(_))));
    if signals { &[Chained, Ordered, Eager] } else { &[Auto] }
}

/// Puts whose segments the peer counts, where one tag serves for all of them, and where each has its
/// own. Fewer things go wrong together than for the other engines: every segment is one more event.
#[test]
fn counted_puts() {
    let plain = |zero: &[What], one: &[What]| Case {
        again: 0,
        duplicates: 0,
        batch: 1,
        ..named(Counted, zero, one)
    };
    let mut cases = Vec::new();
    let programs: [&[What]; 7] = [
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
        if at < 2 {
            cases.push(Case { duplicates: 1, ..case.clone() });
        }
        cases.push(Case { counted: 2, rails: 1, ..case.clone() });
        cases.push(case);
    }
    // Alone: a duplicate, a lack of room, several things found by one turn, a loss.
    let case = plain(&[Signal(2)], &[]);
    cases.push(Case { duplicates: 1, ..case.clone() });
    cases.push(Case { again: 1, ..case.clone() });
    cases.push(Case { batch: 2, ..case.clone() });
    cases.push(Case { failures: 1, ..case });
    cases.push(named(Counted, &[Signal(1)], &[]));
    // Losses, with something behind.
    for ops in [[Signal(1), Fence, Put(1)], [Put(1), Fence, Signal(1)], [Signal(1), Quiet, Add]] {
        cases.push(Case { failures: 1, ..plain(&ops, &[]) });
    }
    // Acknowledgements that ride on the other's messages, and a queue of one.
    cases.push(plain(&[Signal(1)], &[Add]));
    for ops in [&[Signal(3)][..], &[Put(2), Fence, Signal(2)], &[Signal(1), Signal(2)]] {
        cases.push(Case { rails: 1, depth: 1, ..plain(ops, &[]) });
    }
    explore_all("counted puts", cases);
}

/// Everything that can go wrong together, for each kind of operation alone.
#[test]
fn puts_over_rails_chosen_by_load() {
    let plain = |signals, ops: &[What]| Case {
        balanced: true,
        again: 0,
        duplicates: 0,
        batch: 1,
        ..named(signals, ops, &[])
    };
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
    explore_all("puts over rails chosen by load", cases);
}

#[test]
fn one_operation() {
    let cases = [Put(2), Signal(0), Signal(1), Signal(2), Add, FetchAdd].into_iter();
    let cases = cases.flat_map(|what| {
        engines(&[&[what]]).iter().map(move |signals| named(*signals, &[what], &[]))
    });
    explore_all("one operation", cases);
}

/// One thing goes wrong, for each pair of kinds with a fence or a quiet between them.
#[test]
fn two_operations_in_order() {
    let mut cases = Vec::new();
    for between in [Fence, Quiet] {
        for first in KINDS {
            for second in KINDS {
                let ops = [first, between, second];
                for signals in engines(&[&ops]) {
                    let case = named(*signals, &ops, &[]);
                    cases.push(Case { duplicates: 0, batch: 1, ..case.clone() });
                    // Behind a quiet nothing of the first is left that these could disturb.
                    if between == Fence || full() {
                        cases.push(Case { again: 0, batch: 1, ..case.clone() });
                        cases.push(Case { rails: 1, again: 0, duplicates: 0, ..case });
                    }
                }
            }
        }
    }
    explore_all("two operations in order", cases);
}

/// A fence with operations of every kind on either side, all that are four operations.
#[test]
fn two_operations_behind_a_fence() {
    let mut cases = Vec::new();
    // A signal or a fetch in front has the same fence to pass, at ten times the executions.
    for first in [Put(1), Add] {
        for second in KINDS {
            for third in KINDS {
                for signals in engines(&[&[first, second, third]]) {
                    let case = named(*signals, &[first, Fence, second, third], &[]);
                    cases.push(Case { again: 0, duplicates: 0, batch: 1, ..case });
                }
            }
        }
    }
    explore_all("two operations behind a fence", cases);
}

/// Both PEs send: acknowledgements ride on messages, and fetches compete for one word.
#[test]
fn both_ways() {
    let mut cases = Vec::new();
    for (at, zero) in KINDS.into_iter().enumerate() {
        for one in &KINDS[at..] {
            for signals in engines(&[&[zero], &[*one]]) {
                let case = named(*signals, &[zero], &[*one]);
                cases.push(Case { again: 0, duplicates: 0, batch: 1, ..case });
            }
        }
    }
    let add = named(Auto, &[Add], &[Add]);
    cases.push(Case { again: 0, batch: 1, ..add.clone() });
    cases.push(Case { duplicates: 0, ..add });
    explore_all("both ways", cases);
}

/// A queue of one segment, on one rail: the lane waits for room inside its calls.
#[test]
fn waiting_for_room() {
    let programs: [&[What]; 4] =
        [&[Put(3), Add], &[Signal(3)], &[Put(2), Fence, Signal(3)], &[Add, Fence, Put(3), Add]];
    let mut cases = Vec::new();
    for ops in programs {
        for signals in engines(&[ops]) {
            let case = named(*signals, ops, &[]);
            let case = Case { rails: 1, depth: 1, again: 0, duplicates: 0, ..case };
            cases.push(Case { again: 1, ..case.clone() });
            cases.push(case);
        }
    }
    explore_all("waiting for room", cases);
}

/// One segment or message is lost: what follows it must not take effect, and the sender is told.
#[test]
fn losses() {
    let programs: [&[What]; 7] = [
        &[Put(2), Fence, Add],
        &[Signal(2)],
        &[Signal(2), Fence, Put(1)],
        &[Add, Fence, Signal(1)],
        &[FetchAdd, Fence, Put(1), Add],
        &[Put(1), Fence, Signal(1), Fence, FetchAdd],
        &[Put(1), Quiet, Add],
    ];
    let mut cases = Vec::new();
    for ops in programs {
        for signals in engines(&[ops]) {
            let case = named(*signals, ops, &[]);
            cases.push(Case { failures: 1, again: 0, duplicates: 0, ..case });
        }
    }
    explore_all("losses", cases);
}

/// A rail fails with all that is under way on it, and takes nothing more: what follows must not take
/// effect, and the sender is told.
#[test]
fn rail_losses() {
    let programs: [&[What]; 8] = [
        &[Put(2), Fence, Add],
        &[Put(1), Put(1), Fence, Put(1)],
        &[Signal(2)],
        &[Signal(2), Fence, Put(1)],
        &[Add, Fence, Signal(1)],
        &[FetchAdd, Fence, Put(1), Add],
        &[Put(1), Fence, Signal(1), Fence, FetchAdd],
        &[Signal(1), Quiet, Add],
    ];
    let mut cases = Vec::new();
    for ops in programs {
        let signals = engines(&[ops]);
        let counted = (signals.len() > 1).then_some(&Counted);
        for signals in signals.iter().chain(counted) {
            let case = named(*signals, ops, &[]);
            cases.push(Case { rail_failures: 1, again: 0, duplicates: 0, batch: 1, ..case });
        }
    }
    explore_all("rail losses", cases);
}

// The numbers of operations fit the bits of a set.
const _: () = assert!(2 * OPS < 63);
