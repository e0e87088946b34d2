//! The state of the fake fabric: memories, keys, what is under way, and the clock.

use std::collections::{HashMap, HashSet, VecDeque};

use super::copies::Moving;
use super::links::Links;
use super::mail::{Letters, Mail};
use super::memory::Memory;
use super::operations::Flight;
use super::script::{Call, Event, PortCall, Script};
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::copies::Copied;
use crate::engine::port::{Failure, PortError};

/// Something completed, to be reported by a poll.
#[derive(Debug)]
pub(super) enum Done {
    Token(Token),
    Failure(Failure),
}

/// Everything behind the fabric's lock.
#[derive(Default, Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) links: Links,
    /// PEs for which the fabric has no room.
    pub(super) unreachable: HashSet<Pe>,
    /// When the connections of lanes' rails to PEs are there.
    connected: HashMap<(usize, RailId, Pe), u64>,
    /// PEs whose messages take so much longer.
    pub(super) held_up: HashMap<Pe, u64>,
    /// Messages that are delivered and fail all the same: how many still, and those that have not been reported.
    pub(super) fail_delivered: u32,
    pub(super) failing: Vec<(usize, RailId, Token)>,
    /// Calls that fail: how many of the kind go well before them, and how many fail.
    pub(super) failing_calls: Vec<(PortCall, u32, u32)>,
    pub(super) lose_next: u32,
    pub(super) lose_next_data: u32,
    pub(super) dead_links_fail: bool,
    pub(super) refuses_resets: bool,
    /// Rails that are in trouble, which no completion tells.
    pub(super) troubled: Vec<(Pe, RailId)>,
    pub(super) refuses_addresses: bool,
    /// Rails that refuse messages.
    pub(super) refused_messages: Vec<(Pe, RailId)>,
    pub(super) lost_control_percent: u64,
    pub(super) resets: u32,
    /// How often the rails of proxy lanes were opened again.
    pub(super) generations: HashMap<(Pe, RailId), u32>,
    pub(super) events: Vec<Event>,
    pub(super) memory: Memory,
    /// What lanes have asked of their ports, for a test that wants to know.
    pub(super) calls: Option<Vec<Call>>,
    /// Copies that still go well, and how many fail after them.
    pub(super) fail_copies: (u32, u32),
    /// How often words were stored together, and whether that fails.
    pub(super) settled: u32,
    pub(super) fail_settling: bool,
    pub(super) copies: Vec<Moving>,
    pub(super) copied: HashMap<Pe, VecDeque<Copied>>,
    pub(super) script: Script,
    pub(super) random: u64,
    pub(super) flights: Vec<Flight>,
    pub(super) letters: Letters,
    /// What has arrived, by PE and rail.
    pub(super) inboxes: HashMap<(Pe, RailId), VecDeque<Mail>>,
    /// The same for control endpoints.
    pub(super) controls: HashMap<(Pe, RailId), VecDeque<Vec<u8>>>,
    pub(super) duplicate_next: u32,
    /// How often a doorbell was rung.
    pub(super) doorbells: u64,
    /// The rail of each PE at which atomics arrive.
    pub(super) actors: HashMap<Pe, RailId>,
    /// What atomics have fetched, by lane and token.
    pub(super) fetched: HashMap<(usize, Token), u64>,
    pub(super) done: Vec<Vec<VecDeque<Done>>>,
    /// Whose each lane is.
    pub(super) lanes: Vec<Pe>,
    /// When each PE's rails will have carried what was posted on them, where they have a rate.
    pub(super) free_at: HashMap<(Pe, RailId), u64>,
}

impl World {
    pub(super) fn new(seed: u64, n_pes: u32, script: Script) -> Self {
        Self { script, random: seed, memory: Memory::new(n_pes), ..Self::default() }
    }

    /// The next number of the seed's sequence (splitmix64).
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn delay(&mut self, rail: RailId) -> u64 {
        let (least, most) = self.script.delay;
        let drawn = least + self.draw() % (most - least + 1);
        let slow = self.script.slow_rails.iter().find(|(slow, _)| *slow == rail);
        drawn * slow.map_or(1, |(_, factor)| *factor)
    }

    pub(super) fn has_room(&mut self) -> bool {
        let percent = u64::from(self.script.again_percent);
        percent == 0 || self.draw() % 100 >= percent
    }

    /// Whether the fabric has room for something to a PE over a rail.
    pub(super) fn takes(&mut self, lane: usize, rail: RailId, to: Pe) -> bool {
        let (least, most) = self.script.connecting;
        if most != 0 {
            let drawn = self.now + least + self.draw() % (most - least + 1);
            if *self.connected.entry((lane, rail, to)).or_insert(drawn) > self.now {
                return false;
            }
        }
        !self.unreachable.contains(&to) && self.has_room()
    }

    /// A call is made, which fails if a test has said so.
    pub(super) fn call(&mut self, call: PortCall) -> Result<(), PortError> {
        let planned = self.failing_calls.iter_mut().find(|(other, ..)| *other == call);
        let Some((_, after, count)) = planned else { return Ok(()) };
        if *after > 0 {
            *after -= 1;
            return Ok(());
        }
        *count -= 1;
        if *count == 0 {
            let at = self.failing_calls.iter().position(|(other, ..)| *other == call);
            at.map(|at| self.failing_calls.remove(at));
        }
        Err(match call {
            PortCall::Copy => fault("starting a copy", 719, "refused by the script"),
            PortCall::Deliver => fault("delivery", 5, "failed by the script"),
            _ => fault("a call of the port", 5, "failed by the script"),
        })
    }

    /// Whether a lane is its PE's proxy lane, which is opened first.
    pub(super) fn is_proxy(&self, lane: usize, pe: Pe) -> bool {
        self.lanes.iter().position(|owner| *owner == pe) == Some(lane)
    }

    /// Writes down what was asked, if a test wants to know.
    pub(super) fn trace(&mut self, call: Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    pub(super) fn open_lane(&mut self, pe: Pe, rails: usize) -> usize {
        self.lanes.push(pe);
        self.done.push((0..rails).map(|_| VecDeque::new()).collect());
        self.done.len() - 1
    }

    pub(super) fn next_done(&mut self, lane: usize, rail: RailId) -> Option<Done> {
        self.done[lane][rail.index()].pop_front()
    }

    pub(super) fn return_done(&mut self, lane: usize, rail: RailId, done: Done) {
        self.done[lane][rail.index()].push_front(done);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len() + self.letters.len() + self.copies.len()
    }

    /// Moves the clock by `step`, or towards the next event if `leap`, and lets happen what is due.
    pub(super) fn advance(&mut self, step: u64, leap: bool) {
        self.now += step;
        self.letters.sort(&self.links);
        if leap {
            let flights = self.flights.iter().filter(|flight| self.may_move(flight)).map(|f| f.due);
            let copies = self.copies.iter().map(|copy| copy.due);
            let next = flights.chain(self.letters.next_due()).chain(copies).min();
            // Not all the way, so that a loop which waits long turns often, as a real one does.
            let furthest = self.now + 10_000_000;
            self.now = next.map_or(furthest, |next| next.clamp(self.now, furthest));
        }
        self.fail_dead_links();
        while let Some(at) = (0..self.copies.len())
            .filter(|at| self.copies[*at].due <= self.now)
            .min_by_key(|at| self.copies[*at].due)
        {
            self.move_copy(at);
        }
        // In order of their times, so that what must come later does.
        loop {
            let flight = (0..self.flights.len())
                .filter(|at| self.flights[*at].due <= self.now && self.may_move(&self.flights[*at]))
                .min_by_key(|at| self.flights[*at].due);
            let letter = self.letters.next_due().filter(|due| *due <= self.now);
            match (flight, letter) {
                (None, None) => break,
                (Some(flight), letter)
                    if letter.is_none_or(|due| self.flights[flight].due <= due) =>
                {
                    self.move_flight(flight);
                }
                _ => self.move_letter(),
            }
        }
    }
}

pub(super) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}
