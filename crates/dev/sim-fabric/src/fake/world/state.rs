//! Everything behind the fabric's lock: memories, what is under way, what a test has asked for.

use std::collections::{HashMap, HashSet, VecDeque};

use super::error::fault;
use super::flights::{Done, Flight, Moving};
use super::letters::{Letters, Mail};
use super::links::Links;
use super::memory::Memory;
use crate::fake::script::{Call, Event, PortCall, Script};
use engine::ids::{Pe, RailId, WrId};
use engine::port::PortError;
use engine::port::copies::Copied;

/// See the module.
#[derive(Default, Debug)]
pub(in crate::fake) struct World {
    pub(in crate::fake) now: u64,
    pub(in crate::fake) links: Links,
    /// PEs for which the fabric has no room.
    pub(in crate::fake) unreachable: HashSet<Pe>,
    /// When the connections of lanes' rails to PEs are there.
    connected: HashMap<(usize, RailId, Pe), u64>,
    /// PEs whose messages take so much longer.
    pub(in crate::fake) held_up: HashMap<Pe, u64>,
    /// Messages that are delivered and fail all the same: how many still, and those that have not
    /// been reported.
    pub(in crate::fake) fail_delivered: u32,
    pub(in crate::fake) failing: Vec<(usize, RailId, WrId)>,
    /// Calls that fail: how many of the kind go well before them, and how many fail.
    pub(in crate::fake) failing_calls: Vec<(PortCall, u32, u32)>,
    /// The messages that somebody has read along, if somebody does.
    pub(in crate::fake) overheard: Option<Vec<(Pe, RailId, Vec<u8>)>>,
    pub(in crate::fake) lose_next: u32,
    pub(in crate::fake) lose_next_data: u32,
    /// Rails that are in trouble, which no completion tells.
    pub(in crate::fake) troubled: Vec<(Pe, RailId)>,
    /// Rails that refuse messages.
    pub(in crate::fake) refused_messages: Vec<(Pe, RailId)>,
    pub(in crate::fake) events: Vec<Event>,
    pub(in crate::fake) memory: Memory,
    /// What lanes have asked of their ports, for a test that wants to know.
    pub(in crate::fake) calls: Option<Vec<Call>>,
    /// Copies that still go well, and how many fail after them.
    pub(in crate::fake) fail_copies: (u32, u32),
    /// Copies out of staged memory that have ended.
    pub(in crate::fake) copies_out: usize,
    /// How often words were stored together, and whether that fails.
    pub(in crate::fake) settled: u32,
    pub(in crate::fake) fail_settling: bool,
    pub(in crate::fake) copies: Vec<Moving>,
    /// How many calls have started copies.
    pub(in crate::fake) copy_calls: u64,
    pub(in crate::fake) copied: HashMap<Pe, VecDeque<Copied>>,
    /// PEs that share their bounce memory, those whose lanes have said that they copy from that of
    /// others, and those whose processes have ended.
    pub(in crate::fake) sharing: HashSet<Pe>,
    /// PEs that see no bounce memory but their own.
    pub(in crate::fake) blind: HashSet<Pe>,
    pub(in crate::fake) announced: HashSet<Pe>,
    pub(in crate::fake) ended: HashSet<Pe>,
    pub(in crate::fake) script: Script,
    pub(in crate::fake) random: u64,
    pub(in crate::fake) flights: Vec<Flight>,
    pub(in crate::fake) letters: Letters,
    /// What has arrived, by PE and rail.
    pub(in crate::fake) inboxes: HashMap<(Pe, RailId), VecDeque<Mail>>,
    pub(in crate::fake) duplicate_next: u32,
    pub(in crate::fake) done: Vec<Vec<VecDeque<Done>>>,
    /// Whose each lane is.
    pub(in crate::fake) lanes: Vec<Pe>,
    /// When each PE's rails will have carried what was posted on them, where they have a rate.
    pub(in crate::fake) free_at: HashMap<(Pe, RailId), u64>,
}

impl World {
    pub(in crate::fake) fn new(seed: u64, n_pes: u32, script: Script) -> Self {
        let memory = Memory::new(n_pes, script.is_virtual);
        Self { script, random: seed, memory, ..Self::default() }
    }

    /// The next number of the seed's sequence (splitmix64).
    pub(in crate::fake) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(in crate::fake) fn delay(&mut self, rail: RailId) -> u64 {
        let (least, most) = self.script.delay;
        let drawn = least + self.draw() % (most - least + 1);
        let slow = self.script.slow_rails.iter().find(|(slow, _)| *slow == rail);
        drawn * slow.map_or(1, |(_, factor)| *factor)
    }

    pub(in crate::fake) fn has_room(&mut self) -> bool {
        let percent = u64::from(self.script.again_percent);
        percent == 0 || self.draw() % 100 >= percent
    }

    /// Whether the fabric has room for something to a PE over a rail.
    pub(in crate::fake) fn takes(&mut self, lane: usize, rail: RailId, to: Pe) -> bool {
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
    pub(in crate::fake) fn call(&mut self, call: PortCall) -> Result<(), PortError> {
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
    pub(in crate::fake) fn is_proxy(&self, lane: usize, pe: Pe) -> bool {
        self.lanes.iter().position(|owner| *owner == pe) == Some(lane)
    }

    /// Writes down what was asked, if a test wants to know.
    pub(in crate::fake) fn trace(&mut self, call: Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    pub(in crate::fake) fn open_lane(&mut self, pe: Pe, rails: usize) -> usize {
        self.lanes.push(pe);
        self.done.push((0..rails).map(|_| VecDeque::new()).collect());
        self.done.len() - 1
    }

    pub(in crate::fake) fn next_done(&mut self, lane: usize, rail: RailId) -> Option<Done> {
        self.done[lane][rail.index()].pop_front()
    }

    pub(in crate::fake) fn return_done(&mut self, lane: usize, rail: RailId, done: Done) {
        self.done[lane][rail.index()].push_front(done);
    }

    pub(in crate::fake) fn in_flight(&self) -> usize {
        self.flights.len() + self.letters.len() + self.copies.len()
    }
}
