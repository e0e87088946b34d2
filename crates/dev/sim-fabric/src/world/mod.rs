//! The world behind a fake fabric's lock: memories, what is under way, and what a test has asked
//! for.

mod copies;
pub(super) mod mail;
pub(super) mod memory;
pub(super) mod operations;

use std::collections::BTreeMap;

use crate::prelude::*;
use crate::world::copies::Moving;
use crate::world::mail::{Letter, Links};
use crate::world::operations::Flight;

pub(crate) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}

/// What a test changes is public: what is to go wrong, and what is to be counted.
#[derive(Default, Debug)]
pub struct World {
    pub(crate) now: u64,
    pub(crate) links: Links,
    /// PEs for which the fabric has no room.
    pub(crate) unreachable: HashSet<Pe>,
    /// When the connections of lanes' rails to PEs are there.
    connected: HashMap<(usize, RailId, Pe), u64>,
    /// PEs whose messages take so much longer.
    pub(crate) held_up: HashMap<Pe, u64>,
    /// How many messages, of the next ones delivered, fail all the same once that is reported.
    pub fail_delivered: u32,
    pub(crate) failing: Vec<(usize, RailId, WrId)>,
    /// Calls that fail: how many of the kind go well before them, and how many fail.
    pub(crate) failing_calls: Vec<(PortCall, u32, u32)>,
    /// How many of the next completions are never reported.
    pub lose_next: u32,
    /// Of how many of the next segments with immediate data, which are delivered, peers are never
    /// told.
    pub lose_next_data: u32,
    /// Rails that are in trouble, which no completion tells.
    pub(crate) troubled: Vec<(Pe, RailId)>,
    pub(crate) events: Vec<Event>,
    pub(crate) memory: Memory,
    /// What lanes have asked of their ports, for a test that wants to know.
    pub(crate) calls: Option<Vec<Call>>,
    /// Copies between staged memory and bounce buffers that still go well, and how many fail after
    /// them.
    pub fail_copies: (u32, u32),
    pub copies_out: usize,
    /// How often words that were to be stored soon were stored together.
    pub settled: u32,
    /// Whether words that are to be stored soon fail.
    pub fail_settling: bool,
    pub(crate) copies: Vec<Moving>,
    /// How many calls have started copies.
    pub(crate) copy_calls: u64,
    pub(crate) copied: HashMap<Pe, VecDeque<Copied>>,
    /// PEs that share their bounce memory with all others that do.
    pub sharing: HashSet<Pe>,
    /// PEs that see no bounce memory but their own.
    pub blind: HashSet<Pe>,
    /// PEs whose lanes have said that they copy from the bounce memory of others.
    pub(crate) announced: HashSet<Pe>,
    /// PEs whose processes have ended, as others that share memory with them can tell.
    pub ended: HashSet<Pe>,
    pub(crate) script: Script,
    pub(crate) random: u64,
    pub(crate) flights: Vec<Flight>,
    /// Messages and immediate data on their way, by when they are due and by number.
    pub(crate) letters: BTreeMap<(u64, u64), Letter>,
    posted: u64,
    /// What has arrived, by PE and rail.
    pub(crate) inboxes: HashMap<(Pe, RailId), VecDeque<Mail>>,
    pub(crate) done: Vec<Vec<VecDeque<Done>>>,
    pub(crate) lanes: Vec<Pe>,
    /// When each PE's rails will have carried what was posted on them, where they have a rate.
    pub(crate) free_at: HashMap<(Pe, RailId), u64>,
}

impl World {
    pub(crate) fn new(seed: u64, n_pes: u32, script: Script) -> Self {
        let memory = Memory::new(n_pes, script.is_virtual);
        Self { script, random: seed, memory, ..Self::default() }
    }

    /// The next number of the seed's sequence (splitmix64).
    pub(crate) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn delay(&mut self, rail: RailId) -> u64 {
        let (least, most) = self.script.delay;
        let drawn = least + self.draw() % (most - least + 1);
        let slow = self.script.slow_rails.iter().find(|(slow, _)| *slow == rail);
        drawn * slow.map_or(1, |(_, factor)| *factor)
    }

    pub(crate) fn has_room(&mut self) -> bool {
        let percent = u64::from(self.script.again_percent);
        percent == 0 || self.draw() % 100 >= percent
    }

    pub(crate) fn takes(&mut self, lane: usize, rail: RailId, to: Pe) -> bool {
        let (least, most) = self.script.connecting;
        if most != 0 {
            let drawn = self.now + least + self.draw() % (most - least + 1);
            if *self.connected.entry((lane, rail, to)).or_insert(drawn) > self.now {
                return false;
            }
        }
        !self.unreachable.contains(&to) && self.has_room()
    }

    pub(crate) fn call(&mut self, call: PortCall) -> Result<(), PortError> {
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

    pub(crate) fn trace(&mut self, call: Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call);
        }
    }

    pub(crate) fn open_lane(&mut self, pe: Pe, rails: usize) -> usize {
        self.lanes.push(pe);
        self.done.push((0..rails).map(|_| VecDeque::new()).collect());
        self.done.len() - 1
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len() + self.letters.len() + self.copies.len()
    }
}
