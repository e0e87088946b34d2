//! PE 0: issues what is measured, and times it.

use std::time::{Duration, Instant};

use nvshmem_abi::c;
use nvshmem_sim::{Amo, Faults, Ops, Piece, PlainCopies, PlannedAmo};

use super::case::{Case, Side, What};
use super::command::Command;
use super::places::{Memory, Places};
use crate::area::{check_stamps, clear, fill, stamp, verify};
use crate::case::Direction;
use crate::compare::plugin_window;
use crate::control::Control;
use crate::rounds::{Rounds, Schedule, Took};

/// PE 0.
pub(crate) struct Source<'a> {
    ops: &'a Ops,
    control: Control<Command>,
    places: Places,
    copies: PlainCopies,
    /// Tells of the copies that the device has made, where it is a stand-in.
    counter: Option<Faults>,
    /// A new number for every pattern and every round.
    seed: u64,
    /// The last value that a signal was set to.
    signalled: u64,
}

/// A window on one memory, ready to be issued.
struct Plan {
    memory: Memory,
    pieces: Vec<Piece>,
    signal: PlannedAmo,
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        ops: &'a Ops,
        control: Control<Command>,
        places: Places,
        copies: PlainCopies,
        counter: Option<Faults>,
    ) -> Self {
        Self { ops, control, places, copies, counter, seed: 0, signalled: 0 }
    }

    /// All rounds of a case.
    ///
    /// # Errors
    /// Wrong bytes, a path that is not the one meant, a failure of any side or PE.
    pub(crate) fn measure(
        &mut self,
        case: Case,
        sides: &[Side],
        schedule: Schedule,
    ) -> Result<Rounds, String> {
        let mut plans = Vec::new();
        for &side in sides {
            let plan = match side {
                Side::Host | Side::Staged => Some(self.plan(case, side)?),
                Side::CopyOut | Side::CopyIn => None,
            };
            if let Some(plan) = &plan {
                self.prove(case, side, plan)
                    .map_err(|e| format!("{case}, {}: {e}", side.name()))?;
            }
            plans.push(plan);
        }
        let places: Vec<usize> = (0..sides.len()).collect();
        let rounds = schedule.run(&places, case.window, |at, windows| {
            let took = match &plans[at] {
                Some(plan) => self.round(case, sides[at], plan, windows),
                None => self.copy(case, sides[at], windows),
            };
            took.map(Took::from).map_err(|e| format!("{case}, {}: {e}", sides[at].name()))
        })?;
        // Every byte once more: after the rounds nothing has gone wrong that stamps do not show.
        for (&side, plan) in sides.iter().zip(&plans) {
            if let Some(plan) = plan {
                self.prove(case, side, plan)
                    .map_err(|e| format!("{case}, {}, at the end: {e}", side.name()))?;
            }
        }
        Ok(rounds)
    }

    /// Ends the job.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.control.ask(Command::Stop)
    }

    fn plan(&self, case: Case, side: Side) -> Result<Plan, String> {
        let memory = self.places.of(side)?;
        let (from, to) = (memory.areas.from, memory.areas.to);
        let piece = |slot| {
            let at = slot * case.bytes;
            let (remote, local) = match case.what {
                What::Move(Direction::Get) => (from, to),
                What::Move(Direction::Put) | What::Signal => (to, from),
            };
            let pieces = self.ops.plan(1, remote.plus(at), local.plus(at), case.bytes);
            match pieces.map_err(text)?[..] {
                [piece] => Ok(piece),
                ref pieces => Err(format!("{} pieces where one is meant", pieces.len())),
            }
        };
        let pieces = (0..case.window).map(piece).collect::<Result<_, String>>()?;
        let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 0);
        let signal = self.ops.plan_amo(1, memory.signal, &set).map_err(text)?;
        Ok(Plan { memory, pieces, signal })
    }

    /// Shows that every byte of a window arrives, and that it goes the way that is meant: copied by
    /// the device, or not at all.
    fn prove(&mut self, case: Case, side: Side, plan: &Plan) -> Result<(), String> {
        self.seed += 1;
        let (len, seed, direction) = (case.span(), self.seed, case.direction());
        self.control.ask(Command::Prepare { side, direction, len, seed })?;
        match direction {
            Direction::Put => fill(self.ops, plan.memory.areas.from, len, seed)?,
            Direction::Get => clear(self.ops, plan.memory.areas.to, len)?,
        }
        let before = self.copied()?;
        self.window(case, plan)?;
        let copied = Iterator::zip(before.into_iter(), self.copied()?).map(|(a, b)| b - a).next();
        match direction {
            Direction::Put => self.control.ask(Command::Verify { side, len, seed })?,
            Direction::Get => verify(self.ops, plan.memory.areas.to, len, seed)?,
        }
        match (side, copied) {
            // A few bytes may go by words, which the device need not copy.
            (Side::Staged, Some(0)) if !case.is_latency() => {
                Err(String::from("the device has copied nothing"))
            }
            (Side::Host, Some(count @ 1..)) => Err(format!("the device has copied {count} times")),
            _ => Ok(()),
        }
    }

    /// Copies that the device has made, where it tells.
    fn copied(&self) -> Result<Option<u64>, String> {
        self.counter.map(|counter| counter.copies().map_err(text)).transpose()
    }

    /// What so many windows take.
    fn round(
        &mut self,
        case: Case,
        side: Side,
        plan: &Plan,
        windows: u64,
    ) -> Result<Duration, String> {
        self.seed += 1;
        let Case { bytes, window, .. } = case;
        let (seed, direction) = (self.seed, case.direction());
        // Untimed: brings this side's own state back into the caches.
        self.window(case, plan)?;
        match direction {
            Direction::Put => stamp(self.ops, plan.memory.areas.from, bytes, window, seed)?,
            Direction::Get => self.control.ask(Command::Stamp { side, bytes, window, seed })?,
        }
        let start = Instant::now();
        for _ in 0..windows {
            self.window(case, plan)?;
        }
        let elapsed = start.elapsed();
        match direction {
            Direction::Put => {
                self.control.ask(Command::CheckStamps { side, bytes, window, seed })?
            }
            Direction::Get => check_stamps(self.ops, plan.memory.areas.to, bytes, window, seed)?,
        }
        if case.what == What::Signal {
            self.control.ask(Command::CheckSignal { side, value: self.signalled })?;
        }
        Ok(elapsed)
    }

    /// A window, and the wait until all of it is delivered.
    #[inline]
    fn window(&mut self, case: Case, plan: &Plan) -> Result<(), String> {
        let What::Move(direction) = case.what else {
            for piece in &plan.pieces {
                self.signalled += 1;
                let signal = plan.signal.with_value(self.signalled);
                self.ops.issue_put_signal(piece, &signal).map_err(text)?;
            }
            return self.ops.quiet_pe(1).map_err(text);
        };
        plugin_window(self.ops, direction, &plan.pieces)
    }

    /// What so many windows of the driver's copies take.
    fn copy(&self, case: Case, side: Side, windows: u64) -> Result<Duration, String> {
        let window = || match side {
            Side::CopyIn => self.copies.inward(case.bytes, case.window),
            _ => self.copies.out(case.bytes, case.window),
        };
        window().map_err(text)?;
        let start = Instant::now();
        for _ in 0..windows {
            window().map_err(text)?;
        }
        Ok(start.elapsed())
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
