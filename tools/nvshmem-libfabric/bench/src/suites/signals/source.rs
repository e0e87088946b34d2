//! PE 0: issues the suite's operations, and times them one by one.

use std::time::Instant;

use nvshmem_abi::c;
use nvshmem_sim::{Amo, Piece, PlannedAmo};

use super::{Signalled, State, What};
use crate::pe::control::Command;
use crate::pe::exchange::Exchanges;
use crate::pe::party::BATCH;
use crate::pe::patience::Patience;
use crate::pe::window::{Direction, Window};
use crate::times::case::{Case, Side};
use crate::times::laps::part_of;
use crate::times::rounds::{Rounds, Schedule, Took};

type Source<'a> = crate::pe::source::Source<'a, State>;

/// Exchanges before the clock starts: the first finds the peers asleep.
const WARM: u64 = 4;

/// Windows of each side that are looked at to find out how long they take undisturbed.
const SAMPLES: u32 = 10;

/// What a round issues, ready.
struct Plan {
    window: Window,
    /// Puts, round robin over the peers, each with a signal that counts.
    puts: Vec<(Piece, PlannedAmo)>,
    /// For each peer a signal that counts.
    signals: Vec<PlannedAmo>,
    /// Puts of the reference that are timed together.
    part: usize,
}

/// All rounds of a case.
///
/// # Errors
/// Wrong bytes, a failure of any side or PE.
pub(super) fn measure(
    source: &mut Source<'_>,
    case: Signalled,
    schedule: Schedule,
) -> Result<Rounds, String> {
    let mut plan = plan(source, case)?;
    let sides = case.sides();
    if case.what == What::Rate {
        for &side in &sides {
            let proved = source.prove(side, &plan.window, |source| window(source, &plan, side));
            proved.map_err(|e| format!("{side}: {e}"))?;
        }
        plan.part = part(source, &plan)?;
    }
    schedule.run(&sides, case.ops_per_repeat(), |side, repeats| {
        match (case.what, side) {
            (What::Rate, _) => rate(source, &plan, side, repeats),
            (What::Latency, Side::FetchAdd) => fetch_add(source, repeats),
            (What::Latency, _) => ping_pong(source, case.bytes, side, repeats),
            (What::Fence, _) => fences(source, &plan, side, repeats),
        }
        .map_err(|e| format!("{side}: {e}"))
    })
}

fn plan(source: &Source<'_>, case: Signalled) -> Result<Plan, String> {
    let (party, state) = (&source.party, &source.state);
    let window = state.areas.window(Direction::Put, case.bytes, case.slots());
    let signal = |&pe: &u32| party.signal(pe, c::NVT_AMO_SIGNAL_ADD, state.counter);
    let signals = party.peers.iter().map(signal).collect::<Result<Vec<_>, String>>()?;
    let pieces = party.peers.iter().map(|&pe| party.plan(pe, &window));
    let pieces = pieces.collect::<Result<Vec<_>, String>>()?;
    let puts: Vec<(Piece, PlannedAmo)> = (0..case.slots() as usize)
        .flat_map(|slot| pieces.iter().map(move |pieces| pieces[slot]).zip(signals.iter().copied()))
        .collect();
    Ok(Plan { window, part: puts.len(), puts, signals })
}

/// A window of puts with signal, and the wait for all of them.
fn window(source: &mut Source<'_>, plan: &Plan, side: Side) -> Result<(), String> {
    source.state.signals += plan.window.to.count;
    issue(source, &plan.puts, side)?;
    source.party.quiet_all()
}

/// Puts with signal, with the polls of a proxy thread between them.
#[inline]
fn issue(source: &mut Source<'_>, puts: &[(Piece, PlannedAmo)], side: Side) -> Result<(), String> {
    for batch in puts.chunks(BATCH) {
        for (piece, signal) in batch {
            source.party.put_signal(side, piece, signal)?;
        }
        if batch.len() == BATCH {
            source.party.turn(side)?;
        }
    }
    Ok(())
}

/// How many puts of the reference take about as long as a window of the plugin's. Together they
/// are timed: if what is timed took longer on one side, work of others would hit that one more
/// often.
fn part(source: &mut Source<'_>, plan: &Plan) -> Result<usize, String> {
    let mut shortest = |side| -> Result<f64, String> {
        source.control.ask(Command::Serve(Some(side)))?;
        let mut shortest = f64::INFINITY;
        for _ in 0..SAMPLES {
            let start = Instant::now();
            window(source, plan, side)?;
            shortest = shortest.min(start.elapsed().as_secs_f64());
        }
        Ok(shortest)
    };
    let (plugin, reference) = (shortest(Side::Plugin)?, shortest(Side::Reference)?);
    let each = reference / plan.puts.len() as f64;
    Ok(part_of(plan.puts.len(), plugin / each))
}

/// What so many windows take.
fn rate(source: &mut Source<'_>, plan: &Plan, side: Side, windows: u64) -> Result<Took, String> {
    source.control.ask(Command::Serve(Some(side)))?;
    // Untimed: wakes the peers, and brings this side's own state back into the caches.
    window(source, plan, side)?;
    let seed = source.stamp(&plan.window)?;
    source.laps.begin(windows * (plan.puts.len() / plan.part) as u64);
    for _ in 0..windows {
        if side == Side::Reference {
            // One operation after the other, so a window can be timed in parts. The wait for
            // the last signals is a gift.
            for part in plan.puts.chunks(plan.part) {
                source.laps.start();
                issue(source, part, side)?;
                source.laps.stop();
            }
            source.state.signals += plan.window.to.count;
            source.party.quiet_all()?;
        } else {
            source.laps.start();
            window(source, plan, side)?;
            source.laps.stop();
        }
    }
    check(source, plan, seed)?;
    Ok(source.laps.took(None))
}

/// Has the peers check what has arrived.
fn check(source: &mut Source<'_>, plan: &Plan, seed: u64) -> Result<(), String> {
    source.check(&plan.window, seed)?;
    let (word, value) = (source.state.counter, source.state.signals);
    source.control.ask(Command::CheckWord { word, value })
}

/// What so many messages to every peer and their answers take.
fn ping_pong(source: &mut Source<'_>, bytes: u64, side: Side, count: u64) -> Result<Took, String> {
    let boxes = source.state.boxes;
    let exchanges = Exchanges::new(&source.party, boxes, bytes)?;
    let first = source.number + 1;
    source.number += WARM + count;
    let answer = Command::Answer { side, boxes, bytes, first, count: WARM + count };
    source.control.begin(answer)?;
    source.laps.begin(count);
    for number in first..=source.number {
        source.laps.start();
        exchanges.send(&mut source.party, side, number)?;
        exchanges.await_all(&mut source.party, side, number)?;
        if number >= first + WARM {
            source.laps.stop();
        }
    }
    source.control.finish(answer)?;
    Ok(source.laps.took(None))
}

/// What so many fetching atomics at the first peer take, one after the other.
fn fetch_add(source: &mut Source<'_>, count: u64) -> Result<Took, String> {
    source.control.ask(Command::Serve(Some(Side::Plugin)))?;
    let State { fetched, result, .. } = source.state;
    let ops = source.party.ops;
    let amo = Amo { fetch_to: Some(result), ..Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1) };
    let amo = ops.plan_amo(source.party.peers[0], fetched, &amo).map_err(text)?;
    let value = ops.local(result, 8).map_err(text)?;
    let flag = ops.local(result.plus(8), 8).map_err(text)?;
    source.laps.begin(count);
    for turn in 0..WARM + count {
        source.number += 1;
        source.laps.start();
        ops.issue_amo(&amo.with_flag(source.number)).map_err(text)?;
        let mut wait = Patience::new("a fetched word");
        while flag.load_acquire().map_err(text)? != source.number {
            ops.progress().map_err(text)?;
            wait.turn()?;
        }
        if turn >= WARM {
            source.laps.stop();
        }
        let found = value.load_acquire().map_err(text)?;
        if found != source.state.sum {
            return Err(format!("fetched {found}, not {}", source.state.sum));
        }
        source.state.sum += 1;
    }
    source.party.quiet_all()?;
    Ok(source.laps.took(None))
}

/// Fences, each with a signal behind it, while puts to every peer are under way: what the calls
/// take, in which a proxy thread can do nothing else.
fn fences(source: &mut Source<'_>, plan: &Plan, side: Side, repeats: u64) -> Result<Took, String> {
    source.control.ask(Command::Serve(Some(side)))?;
    let seed = source.stamp(&plan.window)?;
    let ops = source.party.ops;
    source.laps.begin(plan.signals.len() as u64 * repeats);
    let start = Instant::now();
    for _ in 0..repeats {
        for signal in &plan.signals {
            for (piece, _) in &plan.puts {
                ops.issue_put(piece).map_err(text)?;
            }
            source.laps.start();
            if side == Side::Reference {
                source.party.quiet_all()?;
            } else {
                ops.fence().map_err(text)?;
            }
            ops.issue_amo(signal).map_err(text)?;
            source.laps.stop();
            source.party.quiet_all()?;
        }
        source.state.signals += 1;
    }
    let whole = start.elapsed();
    check(source, plan, seed)?;
    Ok(source.laps.took(Some(whole)))
}

fn text(error: nvshmem_sim::Error) -> String {
    error.to_string()
}
