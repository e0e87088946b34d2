//! PE 0's part: issues what is measured, times it, and has the peers check what has arrived.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::Heard;
use super::control::{Command, Control};
use super::party::Party;
use super::window::{Direction, Window};
use crate::callgrind::nvshmem_bench_mark;
use crate::times::case::Side;
use crate::times::laps::Laps;

/// PE 0.
pub(crate) struct Source<'a, S> {
    pub(crate) party: Party<'a>,
    pub(crate) control: Control,
    /// What the suite keeps.
    pub(crate) state: S,
    /// A new number for every pattern, round and message.
    pub(crate) number: u64,
    pub(crate) laps: Laps,
    /// What its fabric may take to execute what was posted, where that is done by nobody's poll.
    pause: Duration,
    told: Sender<Heard>,
}

impl<'a, S> Source<'a, S> {
    pub(crate) fn new(
        party: Party<'a>,
        control: Control,
        state: S,
        pause: Duration,
        told: Sender<Heard>,
    ) -> Self {
        Self { party, control, state, number: 0, laps: Laps::default(), pause, told }
    }

    /// Tells the launcher a value, by way of another thread.
    pub(crate) fn tell(&self, name: String, value: String) {
        // That thread listens until the end of this part.
        let _ = self.told.send(Heard::Value(name, value));
    }

    /// Gives the fabric time, so that polls find all there is.
    pub(crate) fn pause(&self) {
        if !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
    }

    /// Shows that every byte of a window arrives that a side moves.
    ///
    /// # Errors
    /// Wrong bytes, or a failure of any PE.
    pub(crate) fn prove(
        &mut self,
        side: Side,
        window: &Window,
        issue: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.number += 1;
        let (seed, Window { direction, from, to }) = (self.number, *window);
        self.control.ask(Command::Serve(Some(side)))?;
        match direction {
            Direction::Put => {
                self.control.ask(Command::Clear { slots: to })?;
                from.fill(self.party.ops, seed)?;
            }
            Direction::Get => {
                self.control.ask(Command::Fill { slots: from, seed })?;
                to.clear(self.party.ops)?;
            }
        }
        issue(self)?;
        match direction {
            Direction::Put => self.control.ask(Command::Verify { slots: to, seed }),
            Direction::Get => to.verify(self.party.ops, seed),
        }
    }

    /// Stamps what a window will move; returns the stamps' seed.
    pub(crate) fn stamp(&mut self, window: &Window) -> Result<u64, String> {
        self.number += 1;
        let (seed, slots) = (self.number, window.from);
        match window.direction {
            Direction::Put => slots.stamp(self.party.ops, seed)?,
            Direction::Get => self.control.ask(Command::Stamp { slots, seed })?,
        }
        Ok(seed)
    }

    /// Checks that the stamps of that seed have arrived.
    pub(crate) fn check(&mut self, window: &Window, seed: u64) -> Result<(), String> {
        let slots = window.to;
        match window.direction {
            Direction::Put => self.control.ask(Command::Check { slots, seed }),
            Direction::Get => slots.check(self.party.ops, seed),
        }
    }

    /// What so many windows of a side take together.
    ///
    /// # Errors
    /// Bytes that have not arrived, or a failure of any PE.
    pub(crate) fn timed(
        &mut self,
        side: Side,
        window: &Window,
        windows: u64,
        mut issue: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<Duration, String> {
        self.control.ask(Command::Serve(Some(side)))?;
        // Untimed: wakes the peer, and brings this side's own state back into the caches.
        issue(self)?;
        let seed = self.stamp(window)?;
        let start = Instant::now();
        for _ in 0..windows {
            issue(self)?;
        }
        let elapsed = start.elapsed();
        self.check(window, seed)?;
        Ok(elapsed)
    }

    /// A section whose instructions are counted, of this PE and of the peers that are counted as
    /// well.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn section(
        &mut self,
        with_peers: bool,
        work: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.mark(with_peers)?;
        work(self)?;
        self.mark(with_peers)
    }

    fn mark(&mut self, with_peers: bool) -> Result<(), String> {
        if with_peers {
            self.control.ask(Command::Mark)?;
        }
        nvshmem_bench_mark();
        Ok(())
    }
}
