//! PE 0: issues what is measured, and times it.

use std::time::Instant;

use nvshmem_abi::c;
use nvshmem_sim::{Amo, Piece, PlannedAmo};

use super::case::{Case, Side, What};
use super::command::Command;
use super::laps::{Laps, part_of};
use super::party::Party;
use crate::area::{fill, stamp};
use crate::control::Control;
use crate::rounds::{Rounds, Schedule, Took};
use crate::serve::Patience;

/// Operations between two polls: what NVSHMEM's proxy takes from its channel at a time.
const BATCH: usize = 32;

/// Exchanges before the clock starts: the first finds the peers asleep.
const WARM: u64 = 4;

/// Windows of each side that are looked at to find out how long they take undisturbed.
const SAMPLES: u32 = 10;

/// PE 0.
pub(crate) struct Source<'a> {
    party: Party<'a>,
    control: Control<Command>,
    /// A new number for every round, pattern and message.
    number: u64,
    /// Signals that each peer has counted.
    signals: u64,
    laps: Laps,
    /// What the word that is fetched and added to must hold.
    fetched: u64,
}

/// What a round issues, ready.
struct Plan {
    /// Puts, round robin over the peers, each with a signal that counts.
    puts: Vec<(Piece, PlannedAmo)>,
    /// For each peer a signal that counts.
    signals: Vec<PlannedAmo>,
    /// Puts of the reference that are timed together.
    part: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn new(party: Party<'a>, control: Control<Command>) -> Self {
        Self { party, control, number: 0, signals: 0, laps: Laps::default(), fetched: 0 }
    }

    /// All rounds of a case.
    ///
    /// # Errors
    /// Wrong bytes, a failure of any side or PE.
    pub(crate) fn measure(&mut self, case: Case, schedule: Schedule) -> Result<Rounds, String> {
        let mut plan = self.plan(case)?;
        if case.what == What::Rate {
            case.sides().iter().try_for_each(|&side| self.prove(case, &plan, side))?;
            plan.part = self.part(case, &plan)?;
        }
        schedule.run(case.sides(), case.ops_per_repeat(), |side, repeats| {
            match (case.what, side) {
                (What::Rate, _) => self.rate(case, &plan, side, repeats),
                (What::Latency, Side::FetchAdd) => self.fetch_add(repeats),
                (What::Latency, _) => self.ping_pong(case, side, repeats),
                (What::Fence, _) => self.fences(case, &plan, side, repeats),
            }
            .map_err(|e| format!("{case}, {}: {e}", side.name()))
        })
    }

    /// Ends the job.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.control.ask(Command::Stop)
    }

    fn plan(&self, case: Case) -> Result<Plan, String> {
        let Party { places, peers, .. } = &self.party;
        let signal = |&pe: &u32| self.party.signal(pe, c::NVT_AMO_SIGNAL_ADD, places.counter());
        let signals = peers.iter().map(signal).collect::<Result<Vec<_>, String>>()?;
        let mut puts = Vec::new();
        for slot in 0..case.slots() {
            let (to, from) = (places.areas.to, places.areas.from);
            let at = slot * case.bytes;
            for (&pe, &signal) in peers.iter().zip(&signals) {
                puts.push((self.party.piece(pe, to.plus(at), from.plus(at), case.bytes)?, signal));
            }
        }
        Ok(Plan { part: puts.len(), puts, signals })
    }

    /// Shows that every byte of a window arrives, and every signal.
    fn prove(&mut self, case: Case, plan: &Plan, side: Side) -> Result<(), String> {
        self.number += 1;
        let (len, seed) = (case.slots() * case.bytes, self.number);
        self.control.ask(Command::Serve(side))?;
        fill(self.party.ops, self.party.places.areas.from, len, seed)?;
        self.window(case, plan, side)?;
        let proved = self.control.ask(Command::Verify { len, seed });
        proved.map_err(|e| format!("{case}, {}: {e}", side.name()))
    }

    /// A window of puts with signal, and the wait for all of them.
    fn window(&mut self, case: Case, plan: &Plan, side: Side) -> Result<(), String> {
        self.signals += case.slots();
        self.issue(&plan.puts, side)?;
        self.party.quiet_all()
    }

    /// Puts with signal, with the polls of a proxy thread between them.
    #[inline]
    fn issue(&mut self, puts: &[(Piece, PlannedAmo)], side: Side) -> Result<(), String> {
        for batch in puts.chunks(BATCH) {
            for (piece, signal) in batch {
                self.party.put_signal(side, piece, signal)?;
            }
            if batch.len() == BATCH {
                self.party.turn(side)?;
            }
        }
        Ok(())
    }

    /// How many puts of the reference take about as long as a window of the plugin's. Together they
    /// are timed: if what is timed took longer on one side, work of others would hit that one more
    /// often.
    fn part(&mut self, case: Case, plan: &Plan) -> Result<usize, String> {
        let mut shortest = |side| -> Result<f64, String> {
            self.control.ask(Command::Serve(side))?;
            let mut shortest = f64::INFINITY;
            for _ in 0..SAMPLES {
                let start = Instant::now();
                self.window(case, plan, side)?;
                shortest = shortest.min(start.elapsed().as_secs_f64());
            }
            Ok(shortest)
        };
        let (plugin, reference) = (shortest(Side::Plugin)?, shortest(Side::Reference)?);
        let each = reference / plan.puts.len() as f64;
        Ok(part_of(plan.puts.len(), plugin / each))
    }

    /// What so many windows take.
    fn rate(&mut self, case: Case, plan: &Plan, side: Side, windows: u64) -> Result<Took, String> {
        self.control.ask(Command::Serve(side))?;
        // Untimed: wakes the peers, and brings this side's own state back into the caches.
        self.window(case, plan, side)?;
        let seed = self.stamp(case)?;
        self.laps.begin(windows * (plan.puts.len() / plan.part) as u64);
        for _ in 0..windows {
            if side == Side::Reference {
                // One operation after the other, so a window can be timed in parts. The wait for
                // the last signals is a gift.
                for part in plan.puts.chunks(plan.part) {
                    self.laps.start();
                    self.issue(part, side)?;
                    self.laps.stop();
                }
                self.signals += case.slots();
                self.party.quiet_all()?;
            } else {
                self.laps.start();
                self.window(case, plan, side)?;
                self.laps.stop();
            }
        }
        self.check(case, seed)?;
        Ok(self.laps.took(None))
    }

    /// Stamps what a window will move; returns the stamps' seed.
    fn stamp(&mut self, case: Case) -> Result<u64, String> {
        self.number += 1;
        let from = self.party.places.areas.from;
        stamp(self.party.ops, from, case.bytes, case.slots(), self.number)?;
        Ok(self.number)
    }

    /// Has the peers check what has arrived.
    fn check(&mut self, case: Case, seed: u64) -> Result<(), String> {
        let (bytes, slots, signals) = (case.bytes, case.slots(), self.signals);
        self.control.ask(Command::Check { bytes, slots, seed, signals })
    }

    /// What so many messages to every peer and their answers take.
    fn ping_pong(&mut self, case: Case, side: Side, count: u64) -> Result<Took, String> {
        let (outgoing, exchanges) =
            (self.party.outgoing(case.bytes)?, self.party.exchanges(case.bytes)?);
        let first = self.number + 1;
        self.number += WARM + count;
        let answer = Command::Answer { side, bytes: case.bytes, first, count: WARM + count };
        self.control.begin(answer);
        self.laps.begin(count);
        for number in first..=self.number {
            self.laps.start();
            outgoing.stamp(number)?;
            for exchange in &exchanges {
                self.party.send(side, exchange, number)?;
            }
            self.party.await_all(side, &exchanges, number)?;
            if number >= first + WARM {
                self.laps.stop();
            }
        }
        self.control.finish(answer)?;
        Ok(self.laps.took(None))
    }

    /// What so many fetching atomics at the first peer take, one after the other.
    fn fetch_add(&mut self, count: u64) -> Result<Took, String> {
        let Party { ops, places, peers, .. } = &self.party;
        self.control.ask(Command::Serve(Side::Plugin))?;
        let amo = Amo { fetch_to: Some(places.result()), ..Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1) };
        let amo = ops.plan_amo(peers[0], places.fetched(), &amo).map_err(text)?;
        let value = ops.local(places.result(), 8).map_err(text)?;
        let flag = ops.local(places.result().plus(8), 8).map_err(text)?;
        self.laps.begin(count);
        for turn in 0..WARM + count {
            self.number += 1;
            self.laps.start();
            ops.issue_amo(&amo.with_flag(self.number)).map_err(text)?;
            let mut wait = Patience::new("a fetched word");
            while flag.load_acquire().map_err(text)? != self.number {
                ops.progress().map_err(text)?;
                wait.turn()?;
            }
            if turn >= WARM {
                self.laps.stop();
            }
            let found = value.load_acquire().map_err(text)?;
            if found != self.fetched {
                return Err(format!("fetched {found}, not {}", self.fetched));
            }
            self.fetched += 1;
        }
        self.party.quiet_all()?;
        Ok(self.laps.took(None))
    }

    /// Fences, each with a signal behind it, while puts to every peer are under way: what the calls
    /// take, in which a proxy thread can do nothing else.
    fn fences(
        &mut self,
        case: Case,
        plan: &Plan,
        side: Side,
        repeats: u64,
    ) -> Result<Took, String> {
        self.control.ask(Command::Serve(side))?;
        let seed = self.stamp(case)?;
        self.laps.begin(case.ops_per_repeat() * repeats);
        let start = Instant::now();
        for _ in 0..repeats {
            for signal in &plan.signals {
                for (piece, _) in &plan.puts {
                    self.party.ops.issue_put(piece).map_err(text)?;
                }
                self.laps.start();
                if side == Side::Reference {
                    self.party.quiet_all()?;
                } else {
                    self.party.ops.fence().map_err(text)?;
                }
                self.party.ops.issue_amo(signal).map_err(text)?;
                self.laps.stop();
                self.party.quiet_all()?;
            }
            self.signals += 1;
        }
        let whole = start.elapsed();
        self.check(case, seed)?;
        Ok(self.laps.took(Some(whole)))
    }
}

fn text(error: nvshmem_sim::Error) -> String {
    error.to_string()
}
