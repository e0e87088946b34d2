//! The replay: the recorded calls made again by the engine's own lanes, on a fake network that delays, reorders, refuses and
//! repeats as a seed has it.
//!
//! What took effect at each PE is held against what the calls ask for: a signal comes behind its data, a signal apart behind the puts
//! before it, and everything behind a fence or a quiet behind what was before that.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::port::Direction;
use nvshmem_recording::Caller;
use sim_fabric::{Event, FakeFabric};

use super::job::CallId;
use super::network::Network;
use super::plan::{Does, LanePlan, Plan, Step};

/// How a transport of before might have taken signals that are sent apart from their data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Signals {
    /// As it does now: they come behind the puts before them.
    AsTheyAre,
    /// As any atomic, which comes behind nothing.
    #[cfg(test)]
    AsAtomics,
}

/// Something that has not come in order, or not at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    /// It took effect before the other, behind which it belongs.
    Order { late: CallId, early: CallId, why: &'static str },
    /// It had no effect.
    Lost { call: CallId },
    /// A lane has given up.
    Failed { pe: u32, why: String },
}

/// What came of a plan with one seed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) broken: Option<Broken>,
    /// What it has cost: events of the network, and of every PE a quiet with every other.
    pub(super) work: u64,
}

/// Makes the calls of a plan on the network of a seed.
pub(super) fn run(plan: &Plan, seed: u64, signals: Signals) -> Outcome {
    let mut network = Network::new(plan, seed);
    let fabric = network.fabric.clone();
    let failed = race(&mut network, plan, seed, signals);
    let events = fabric.events();
    let work = events.len() as u64 + u64::from(plan.n_pes).pow(2);
    let broken = match failed {
        Some(failed) => Some(failed),
        None => in_order(plan, &Effects::of(plan, &network, &events)),
    };
    Outcome { broken, work }
}

/// Counts a program that is over, however it ends.
struct Over<'a>(&'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs all lanes, one at a time. The first that fails, if one does.
fn race(network: &mut Network, plan: &Plan, seed: u64, signals: Signals) -> Option<Broken> {
    let fabric: FakeFabric = network.fabric.clone();
    let (n_pes, lanes) = (plan.n_pes, network.open(plan));
    let (targets, left) = (&network.targets, &AtomicUsize::new(lanes.len()));
    let runners = lanes.into_iter().map(|(pe, caller, mut lane)| {
        let (fabric, steps) = (&fabric, steps_of(plan, pe, caller));
        let run = move || {
            let over = Over(left);
            let mut result = steps.iter().enumerate().try_for_each(|(at, step)| {
                // Now and then somebody else goes on first.
                if (at as u64).wrapping_mul(seed | 1) % 7 == 0 {
                    fabric.step();
                }
                let op = |op| signals.take(op);
                lane.make(targets, step, op)
            });
            if result.is_ok() {
                result = (0..n_pes).try_for_each(|to| lane.quiet(to));
            }
            drop(over);
            while result.is_ok() && left.load(Ordering::SeqCst) > 0 {
                result = lane.turn();
                fabric.step();
            }
            (pe, result)
        };
        Box::new(run) as Box<dyn FnOnce() -> (u32, Result<(), EngineError>) + Send + '_>
    });
    let results = fabric.race(seed, runners.collect());
    let results =
        results.into_iter().map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
    let mut failed = results.filter_map(|(pe, result)| Some((pe, result.err()?)));
    failed.next().map(|(pe, why)| Broken::Failed { pe, why: why.to_string() })
}

impl Signals {
    fn take(self, op: AtomicOp) -> AtomicOp {
        match self {
            Self::AsTheyAre => op,
            #[cfg(test)]
            Self::AsAtomics => match op {
                AtomicOp::Signal | AtomicOp::SignalSet => AtomicOp::Set,
                AtomicOp::SignalAdd => AtomicOp::Add,
                other => other,
            },
        }
    }
}

fn steps_of(plan: &Plan, pe: u32, caller: Caller) -> &[Step] {
    let found = plan.lanes.iter().find(|lane| (lane.pe, lane.caller) == (pe, caller));
    found.map_or(&[], |lane| &lane.steps)
}

/// When something took effect, in the order of all effects.
type Moment = usize;

/// When the calls of every lane took effect: data from its first byte to its last, and words.
struct Effects {
    data: Vec<Vec<Option<(Moment, Moment)>>>,
    words: Vec<Vec<Option<Moment>>>,
}

/// Which bytes of a heap are a call's: where they end, its lane, its step, and whether they are its word.
type Owner = (usize, usize, usize, bool);

impl Effects {
    fn of(plan: &Plan, network: &Network, events: &[Event]) -> Self {
        let mut owners: Vec<std::collections::BTreeMap<usize, Owner>> =
            vec![std::collections::BTreeMap::new(); plan.n_pes as usize];
        for (lane, of_lane) in plan.lanes.iter().enumerate() {
            for (at, step) in of_lane.steps.iter().enumerate() {
                let owners = &mut owners[step.to as usize];
                let mut own = |start, len, is_word| {
                    owners.insert(start, (start + len, lane, at, is_word));
                };
                match &step.does {
                    Does::Put(bytes) | Does::P(bytes) => own(bytes.remote, bytes.len, false),
                    Does::Amo { word, width, .. } => own(*word, width.bytes(), true),
                    Does::PutSignal { parts, word, .. } => {
                        own(*word, 8, true);
                        parts.iter().for_each(|bytes| own(bytes.remote, bytes.len, false));
                    }
                    Does::Get(_) | Does::Fence | Does::Quiet => {}
                }
            }
        }
        let mut effects = Self {
            data: plan.lanes.iter().map(|lane| vec![None; lane.steps.len()]).collect(),
            words: plan.lanes.iter().map(|lane| vec![None; lane.steps.len()]).collect(),
        };
        for (moment, event) in events.iter().enumerate() {
            let touched = match event {
                Event::Delivered(delivered) if delivered.direction == Direction::Write => {
                    // To staged memory nothing is delivered: it goes to chunks, and is copied.
                    let whole = (!network.staged).then_some(delivered.remote as usize);
                    whole.map(|offset| (delivered.to.0, offset))
                }
                Event::Delivered(_) => None,
                Event::Copied { pe, addr, .. } | Event::Applied { pe, addr } => {
                    network.heap_offset(pe.0, *addr).map(|offset| (pe.0, offset))
                }
            };
            let Some((pe, offset)) = touched else { continue };
            let below = owners[pe as usize].range(..=offset).next_back();
            let Some((_, (end, lane, at, is_word))) = below else { continue };
            if offset >= *end {
                continue;
            }
            if *is_word {
                effects.words[*lane][*at].get_or_insert(moment);
            } else {
                let seen = &mut effects.data[*lane][*at];
                *seen = Some((seen.map_or(moment, |(first, _)| first), moment));
            }
        }
        effects
    }
}

/// The latest effect of some calls, and whose it is.
type Latest = Option<(Moment, CallId)>;

/// What came when of what a lane has sent to a peer.
#[derive(Clone, Default)]
struct Sent {
    puts: Latest,
    writes: Latest,
    /// Of what is before the last fence or quiet.
    barrier: Latest,
}

/// Looks for the first call that did not come behind what it belongs behind.
fn in_order(plan: &Plan, effects: &Effects) -> Option<Broken> {
    let of_lane =
        |(lane, of_lane): (usize, &LanePlan)| lane_in_order(plan.n_pes, lane, of_lane, effects);
    plan.lanes.iter().enumerate().find_map(of_lane)
}

fn lane_in_order(n_pes: u32, lane: usize, plan: &LanePlan, effects: &Effects) -> Option<Broken> {
    let mut peers = vec![Sent::default(); n_pes as usize];
    for (at, step) in plan.steps.iter().enumerate() {
        let sent = &mut peers[step.to as usize];
        let call = step.call;
        let (data, word) = (effects.data[lane][at], effects.words[lane][at]);
        let after = |moment: Moment, latest: Latest, why| match latest {
            Some((last, late)) if last >= moment => Some(Broken::Order { late, early: call, why }),
            _ => None,
        };
        let (has_data, has_word, is_signal) = match &step.does {
            Does::Put(_) | Does::P(_) => (true, false, false),
            Does::Amo { op, .. } => (false, *op != AtomicOp::Fetch, op.is_signal()),
            Does::PutSignal { parts, .. } => (!parts.is_empty(), true, parts.is_empty()),
            Does::Get(_) => (false, false, false),
            Does::Fence | Does::Quiet => {
                sent.barrier = sent.writes;
                continue;
            }
        };
        if has_data && data.is_none() || has_word && word.is_none() {
            return Some(Broken::Lost { call });
        }
        let first = [data.map(|(first, _)| first), word].into_iter().flatten().min();
        let broken = first
            .and_then(|first| after(first, sent.barrier, "a fence or a quiet is between them"))
            .or_else(|| {
                let own = data.map(|(_, last)| (last, call));
                after(word?, own, "it is the signal of the same put")
            })
            .or_else(|| {
                let puts = sent.puts.filter(|_| is_signal);
                after(word?, puts, "a signal comes behind the puts before it")
            });
        if broken.is_some() {
            return broken;
        }
        let later = |one: Latest, moment: Option<Moment>| match (one, moment) {
            (Some((last, _)), Some(moment)) if moment < last => one,
            (_, Some(moment)) => Some((moment, call)),
            (_, None) => one,
        };
        sent.puts = later(sent.puts, data.map(|(_, last)| last));
        sent.writes = later(later(sent.writes, data.map(|(_, last)| last)), word);
    }
    None
}

#[cfg(test)]
mod tests;
