//! The state of the fake fabric: memories, keys, what is under way, and the clock.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::copies::{Copied, Copy, CopyDirection, Reach};
use crate::engine::port::fabric_atomic::FabricAtomic;
use crate::engine::port::{Direction, Failure, Local, PortError, Transfer};

/// The host lane's domain, which is no rail that peers can address.
pub(super) const HOST: RailId = RailId(u8::MAX);

/// How the fabric behaves. All choices are drawn from the seed.
#[derive(Clone, Debug)]
pub struct Script {
    /// Of a hundred posts, how many find no room.
    pub again_percent: u32,
    /// Nanoseconds from posting to delivery and from delivery to completion: least and most. A
    /// wide range reorders.
    pub delay: (u64, u64),
    /// How much longer these rails take, wherever they are: (rail, factor).
    pub slow_rails: Vec<(RailId, u64)>,
    /// How much these rails of each PE carry: (rail, bytes per microsecond). What is posted on one goes
    /// through it one after the other, and takes [`Script::delay`] besides. Others carry any amount.
    pub rates: Vec<(RailId, u64)>,
    /// Of a hundred messages, how many are delivered twice.
    pub duplicate_percent: u32,
    /// The fabric lets what was posted with more to follow lie, until a write to the same peer is
    /// posted on the same rail without more to follow.
    pub doorbells: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            again_percent: 0,
            delay: (1_000, 20_000),
            slow_rails: Vec::new(),
            rates: Vec::new(),
            duplicate_percent: 0,
            doorbells: false,
        }
    }
}

/// One segment that reached its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Sender.
    pub from: Pe,
    /// Target.
    pub to: Pe,
    /// The sender's rail.
    pub rail: RailId,
    /// Direction.
    pub direction: Direction,
    /// Address or offset at the target, as posted.
    pub remote: u64,
    /// Bytes.
    pub len: usize,
}

/// Something that changed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The fabric moved data.
    Delivered(Delivery),
    /// Bytes were copied into staged memory.
    Copied {
        /// The PE.
        pe: Pe,
        /// Where.
        addr: usize,
        /// How many.
        len: usize,
    },
    /// A lane stored data or applied an atomic to its own PE's memory, or the fabric applied one.
    Applied {
        /// The PE.
        pe: Pe,
        /// Where.
        addr: usize,
    },
}

/// Something completed, to be reported by a poll.
#[derive(Debug)]
pub(super) enum Done {
    Token(Token),
    Failure(Failure),
}

/// What a segment does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// With what the peer is told when the data is there.
    Transfer(Transfer, Option<u32>),
    Atomic(FabricAtomic),
}

/// What an address names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) pe: Pe,
    pub(super) rail: RailId,
    pub(super) generation: u32,
}

#[derive(Debug)]
struct Flight {
    lane: usize,
    from: Pe,
    to: Pe,
    remote_rail: RailId,
    /// The generation of the target's rail that it was posted to.
    generation: u32,
    /// Nobody waits for it any more: its rail was closed, or it was reported as failed.
    orphan: bool,
    /// Then, for a write: its bytes as they were.
    frozen: Option<Vec<u8>>,
    rail: RailId,
    token: Token,
    work: Work,
    due: u64,
    /// Whether the device knows of it.
    rung: bool,
    /// Once delivered: what the completion says.
    outcome: Option<Result<(), PortError>>,
}

/// What a PE's rail finds beside completions.
#[derive(Clone, Debug)]
pub(super) enum Mail {
    Message(Vec<u8>),
    RemoteData(u32),
    /// For the control endpoint.
    Control(Vec<u8>),
}

/// Mail on its way.
#[derive(Clone, Debug)]
struct Letter {
    from: Pe,
    to: Pe,
    rail: RailId,
    remote_rail: RailId,
    generation: u32,
    mail: Mail,
    due: u64,
    /// The lane and the token of a message, while its sender may still be told that it has failed.
    sent: Option<(usize, Token)>,
}

#[derive(Debug)]
struct Key {
    pe: Pe,
    rail: RailId,
    base: usize,
    len: usize,
}

#[derive(Debug)]
struct Arena {
    base: usize,
    bytes: Vec<u8>,
    staged: bool,
}

/// A copy under way.
#[derive(Debug)]
struct Moving {
    pe: Pe,
    copy: Copy,
    tag: u32,
    due: u64,
}

/// Everything behind the fabric's lock.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) stalled: HashSet<Pe>,
    pub(super) fail_next: u32,
    pub(super) lose_next: u32,
    pub(super) lose_next_data: u32,
    pub(super) holds_data: bool,
    /// Pairs of rails between which nothing goes in this direction.
    pub(super) down_links: Vec<((Pe, RailId), (Pe, RailId))>,
    pub(super) down_rails: Vec<(Pe, RailId)>,
    pub(super) dead_links_fail: bool,
    pub(super) refuses_resets: bool,
    pub(super) resets: u32,
    /// How often the rails of proxy lanes were opened again.
    generations: HashMap<(Pe, RailId), u32>,
    pub(super) events: Vec<Event>,
    /// Keys by which nothing may be written.
    pub(super) only_reads: HashSet<u64>,
    /// Copies that still go well, and how many fail after them.
    pub(super) fail_copies: (u32, u32),
    pub(super) refuse_copies: u32,
    copies: Vec<Moving>,
    copied: HashMap<Pe, VecDeque<Copied>>,
    script: Script,
    random: u64,
    memories: Vec<Vec<Arena>>,
    keys: HashMap<u64, Key>,
    next_key: u64,
    flights: Vec<Flight>,
    letters: Vec<Letter>,
    /// What has arrived, by PE and rail.
    inboxes: HashMap<(Pe, RailId), VecDeque<Mail>>,
    /// The same for control endpoints.
    controls: HashMap<(Pe, RailId), VecDeque<Vec<u8>>>,
    pub(super) duplicate_next: u32,
    /// How often a doorbell was rung.
    pub(super) doorbells: u64,
    /// The rail of each PE at which atomics arrive.
    actors: HashMap<Pe, RailId>,
    /// What atomics have fetched, by lane and token.
    fetched: HashMap<(usize, Token), u64>,
    done: Vec<Vec<VecDeque<Done>>>,
    /// Whose each lane is.
    lanes: Vec<Pe>,
    /// When each PE's rails will have carried what was posted on them, where they have a rate.
    free_at: HashMap<(Pe, RailId), u64>,
}

impl World {
    pub(super) fn new(seed: u64, n_pes: u32, script: Script) -> Self {
        Self {
            now: 0,
            stalled: HashSet::new(),
            fail_next: 0,
            lose_next: 0,
            lose_next_data: 0,
            holds_data: false,
            down_links: Vec::new(),
            down_rails: Vec::new(),
            dead_links_fail: false,
            refuses_resets: false,
            resets: 0,
            generations: HashMap::new(),
            events: Vec::new(),
            only_reads: HashSet::new(),
            fail_copies: (0, 0),
            refuse_copies: 0,
            copies: Vec::new(),
            copied: HashMap::new(),
            script,
            random: seed,
            memories: (0..n_pes).map(|_| Vec::new()).collect(),
            keys: HashMap::new(),
            next_key: 1,
            flights: Vec::new(),
            letters: Vec::new(),
            inboxes: HashMap::new(),
            controls: HashMap::new(),
            duplicate_next: 0,
            doorbells: 0,
            actors: HashMap::new(),
            fetched: HashMap::new(),
            done: Vec::new(),
            lanes: Vec::new(),
            free_at: HashMap::new(),
        }
    }

    /// The next number of the seed's sequence (splitmix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn delay(&mut self, rail: RailId) -> u64 {
        let (least, most) = self.script.delay;
        let drawn = least + self.draw() % (most - least + 1);
        let slow = self.script.slow_rails.iter().find(|(slow, _)| *slow == rail);
        drawn * slow.map_or(1, |(_, factor)| *factor)
    }

    pub(super) fn has_room(&mut self) -> bool {
        let percent = u64::from(self.script.again_percent);
        percent == 0 || self.draw() % 100 >= percent
    }

    pub(super) fn alloc_staged(&mut self, pe: Pe, len: usize) -> usize {
        let base = self.alloc(pe, len);
        if let Some(arena) = self.memories[pe.index()].last_mut() {
            arena.staged = true;
        }
        base
    }

    pub(super) fn alloc(&mut self, pe: Pe, len: usize) -> usize {
        let memory = &mut self.memories[pe.index()];
        // Each PE's memory is at addresses of its own, so that a mix-up of PEs cannot go unseen.
        let first = (pe.index() + 1) << 36;
        let base = memory.last().map_or(first, |last| last.base + last.bytes.len() + 4096);
        memory.push(Arena { base, bytes: vec![0; len], staged: false });
        base
    }

    fn find(&mut self, pe: Pe, addr: usize, len: usize) -> Option<&mut Arena> {
        self.memories[pe.index()]
            .iter_mut()
            .find(|arena| addr >= arena.base && addr - arena.base + len <= arena.bytes.len())
    }

    /// Bytes of any memory.
    pub(super) fn any_bytes_mut(&mut self, pe: Pe, addr: usize, len: usize) -> &mut [u8] {
        match self.find(pe, addr, len) {
            Some(arena) => &mut arena.bytes[addr - arena.base..][..len],
            None => panic!("{pe} has no memory of {len} bytes at {addr:#x}"),
        }
    }

    /// Bytes that the fabric or a lane touches.
    pub(super) fn bytes_mut(&mut self, pe: Pe, addr: usize, len: usize) -> &mut [u8] {
        let reach = self.reach(pe, addr, len);
        assert_ne!(reach, Some(Reach::Staged), "{pe}: {len} bytes at {addr:#x} are staged");
        self.any_bytes_mut(pe, addr, len)
    }

    pub(super) fn reach(&mut self, pe: Pe, addr: usize, len: usize) -> Option<Reach> {
        let arena = self.find(pe, addr, len)?;
        Some(if arena.staged { Reach::Staged } else { Reach::Direct })
    }

    /// A copy begins. It ends after those in the same direction before it.
    pub(super) fn start_copy(&mut self, pe: Pe, copy: Copy, tag: u32) {
        let before = self
            .copies
            .iter()
            .filter(|other| other.pe == pe && other.copy.direction == copy.direction)
            .map(|other| other.due + 1)
            .max();
        let due = (self.now + self.delay(RailId(u8::MAX))).max(before.unwrap_or(0));
        self.copies.push(Moving { pe, copy, tag, due });
    }

    pub(super) fn next_copied(&mut self, pe: Pe) -> Option<Copied> {
        self.copied.get_mut(&pe)?.pop_front()
    }

    fn move_copy(&mut self, at: usize) {
        let Moving { pe, copy, tag, .. } = self.copies.swap_remove(at);
        let Copy { direction, memory, chunk, len } = copy;
        let result = match &mut self.fail_copies {
            (0, 0) => Ok(()),
            (0, left) => {
                *left -= 1;
                Err(fault("copy", 700, "failed by the script"))
            }
            (before, _) => {
                *before -= 1;
                Ok(())
            }
        };
        if result.is_ok() {
            let (from, to) = match direction {
                CopyDirection::Out => (memory, chunk),
                CopyDirection::In => (chunk, memory),
            };
            let bytes = self.any_bytes_mut(pe, from, len).to_vec();
            self.any_bytes_mut(pe, to, len).copy_from_slice(&bytes);
            if direction == CopyDirection::In {
                self.events.push(Event::Copied { pe, addr: memory, len });
            }
        }
        self.copied.entry(pe).or_default().push_back(Copied { tag, result });
    }

    pub(super) fn register(&mut self, pe: Pe, rail: RailId, base: usize, len: usize) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.keys.insert(key, Key { pe, rail, base, len });
        key
    }

    pub(super) fn deregister(&mut self, key: u64) {
        self.keys.remove(&key);
    }

    pub(super) fn has_memory(&mut self, pe: Pe, addr: usize, len: usize) -> bool {
        self.find(pe, addr, len).is_some()
    }

    /// Whether a live registration with the domain that a lane's rail is of covers the bytes.
    pub(super) fn covers(
        &self,
        key: u64,
        (lane, pe, rail): (usize, Pe, RailId),
        addr: usize,
        len: usize,
    ) -> bool {
        let domain = if self.is_proxy(lane, pe) { rail } else { HOST };
        self.keys.get(&key).is_some_and(|key| {
            let inside = addr >= key.base && addr - key.base + len <= key.len;
            (key.pe, key.rail) == (pe, domain) && inside
        })
    }

    /// Whether a lane is its PE's proxy lane, which is opened first.
    fn is_proxy(&self, lane: usize, pe: Pe) -> bool {
        self.lanes.iter().position(|owner| *owner == pe) == Some(lane)
    }

    /// The proxy lane's rail: that of the first lane which the PE has opened.
    pub(super) fn fail_rail(&mut self, pe: Pe, rail: RailId) {
        let lane = self.lanes.iter().position(|owner| *owner == pe);
        let Some(lane) = lane else { panic!("{pe} has no lane") };
        let error = fault("poll", 5, "the rail is gone");
        let failure = Failure { token: None, is_message: false, error };
        self.done[lane][rail.index()].push_back(Done::Failure(failure));
    }

    pub(super) fn open_lane(&mut self, pe: Pe, rails: usize) -> usize {
        self.lanes.push(pe);
        self.done.push((0..rails).map(|_| VecDeque::new()).collect());
        self.done.len() - 1
    }

    pub(super) fn post(
        &mut self,
        lane: usize,
        from: Pe,
        rail: RailId,
        to: Target,
        token: Token,
        work: Work,
    ) {
        let len = match &work {
            Work::Transfer(transfer, _) => transfer.len as u64,
            Work::Atomic(_) => 0,
        };
        let due = self.carry(from, rail, len) + self.delay(rail);
        let Target { pe: to, rail: remote_rail, generation } = to;
        let outcome = None;
        let rung = !self.script.doorbells || matches!(work, Work::Atomic(_));
        self.flights.push(Flight {
            lane,
            from,
            to,
            remote_rail,
            generation,
            orphan: false,
            frozen: None,
            rail,
            token,
            work,
            due,
            rung,
            outcome,
        });
    }

    fn rate(&self, rail: RailId) -> Option<u64> {
        let rates = &self.script.rates;
        rates.iter().find(|(other, _)| *other == rail).map(|(_, rate)| *rate)
    }

    /// When a rail will have carried so many bytes more.
    fn carry(&mut self, pe: Pe, rail: RailId, len: u64) -> u64 {
        let Some(rate) = self.rate(rail) else { return self.now };
        let free_at = self.free_at.entry((pe, rail)).or_default();
        *free_at = (*free_at).max(self.now) + len * 1000 / rate;
        *free_at
    }

    /// From now on a rail with a rate carries this much instead, of what is on its way too.
    pub(super) fn set_rate(&mut self, rail: RailId, rate: u64) {
        let now = self.now;
        let entry = self.script.rates.iter_mut().find(|(other, _)| *other == rail);
        let (_, old) = entry.expect("a rail with a rate");
        let (old, rate) = (std::mem::replace(old, rate), rate);
        let stretch = |due: &mut u64| *due = now + due.saturating_sub(now) * old / rate;
        let not_there = |flight: &&mut Flight| flight.rail == rail && flight.outcome.is_none();
        self.flights.iter_mut().filter(not_there).for_each(|flight| stretch(&mut flight.due));
        let on_it = self.free_at.iter_mut().filter(|((_, other), _)| *other == rail);
        on_it.for_each(|(_, free_at)| stretch(free_at));
    }

    pub(super) fn has_doorbells(&self) -> bool {
        self.script.doorbells
    }

    /// The doorbell is rung for what was posted on a rail for a peer.
    pub(super) fn ring(&mut self, lane: usize, rail: RailId, to: Pe) {
        if !self.script.doorbells {
            return;
        }
        self.doorbells += 1;
        for flight in &mut self.flights {
            flight.rung |= (flight.lane, flight.rail, flight.to) == (lane, rail, to);
        }
    }

    /// Segments that the device does not know of.
    pub(super) fn unrung(&self) -> usize {
        self.flights.iter().filter(|flight| !flight.rung).count()
    }

    /// A message leaves. On a rail that keeps their order it comes after the writes before it.
    pub(super) fn send(
        &mut self,
        (lane, from, rail): (usize, Pe, RailId),
        to: Target,
        token: Token,
        bytes: &[u8],
        ordered: bool,
    ) {
        let Target { pe: to, rail: remote_rail, generation } = to;
        let writes = self.flights.iter().filter(|flight| {
            flight.outcome.is_none()
                && (flight.from, flight.to, flight.rail) == (from, to, rail)
                && matches!(&flight.work, Work::Transfer(t, _) if t.direction == Direction::Write)
        });
        let after = if ordered { writes.map(|flight| flight.due + 1).max() } else { None };
        let due = (self.now + self.delay(rail)).max(after.unwrap_or(0));
        let (mail, sent) = (Mail::Message(bytes.to_vec()), Some((lane, token)));
        self.letters.push(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
    }

    /// A message leaves for a control endpoint.
    pub(super) fn send_control(&mut self, from: Pe, rail: RailId, to: Target, bytes: &[u8]) {
        let due = self.now + self.delay(rail);
        let Target { pe: to, rail: remote_rail, .. } = to;
        let (mail, generation) = (Mail::Control(bytes.to_vec()), 0);
        // What goes nowhere fills the connection, which takes nothing more then.
        let there = (to, remote_rail);
        let waits = |letter: &&Letter| {
            let same = (letter.from, letter.rail, letter.to) == (from, rail, to);
            same && matches!(letter.mail, Mail::Control(_))
        };
        if !self.goes((from, rail), there) && self.letters.iter().filter(waits).count() >= 8 {
            return;
        }
        let sent = None;
        self.letters.push(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
    }

    pub(super) fn take_control(&mut self, pe: Pe, rail: RailId) -> Option<Vec<u8>> {
        self.controls.get_mut(&(pe, rail))?.pop_front()
    }

    pub(super) fn take_mail(&mut self, pe: Pe, rail: RailId) -> Option<Mail> {
        self.inboxes.get_mut(&(pe, rail))?.pop_front()
    }

    pub(super) fn deliver(&mut self, to: Pe, rail: RailId, mail: Mail) {
        self.inboxes.entry((to, rail)).or_default().push_back(mail);
    }

    fn duplicates(&mut self) -> bool {
        if self.duplicate_next > 0 {
            self.duplicate_next -= 1;
            return true;
        }
        let percent = u64::from(self.script.duplicate_percent);
        percent > 0 && self.draw() % 100 < percent
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
        if leap {
            let flights = self.flights.iter().filter(|flight| self.may_move(flight)).map(|f| f.due);
            let letters = self.letters.iter().filter(|letter| self.may_go(letter)).map(|l| l.due);
            let copies = self.copies.iter().map(|copy| copy.due);
            let next = flights.chain(letters).chain(copies).min();
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
            let letter = (0..self.letters.len())
                .filter(|at| self.letters[*at].due <= self.now && self.may_go(&self.letters[*at]))
                .min_by_key(|at| self.letters[*at].due);
            match (flight, letter) {
                (None, None) => break,
                (Some(flight), None) => self.move_flight(flight),
                (None, Some(letter)) => self.move_letter(letter),
                (Some(flight), Some(letter)) => {
                    if self.flights[flight].due <= self.letters[letter].due {
                        self.move_flight(flight);
                    } else {
                        self.move_letter(letter);
                    }
                }
            }
        }
    }

    fn move_flight(&mut self, at: usize) {
        let mut flight = self.flights.swap_remove(at);
        match flight.outcome.take() {
            None => {
                let outcome = self.move_data(&flight);
                if outcome.is_ok() {
                    self.tell(&flight);
                }
                flight.outcome = Some(outcome);
                flight.due = self.now + self.delay(flight.rail);
                self.flights.push(flight);
            }
            Some(outcome) => self.complete(&flight, outcome),
        }
    }

    fn move_letter(&mut self, at: usize) {
        let letter = self.letters.swap_remove(at);
        if let Mail::Control(bytes) = &letter.mail {
            let control = self.controls.entry((letter.to, letter.remote_rail)).or_default();
            control.push_back(bytes.clone());
            if self.duplicates() {
                let due = self.now + self.delay(letter.rail);
                self.letters.push(Letter { due, sent: None, ..letter });
            }
            return;
        }
        if letter.generation != self.generation(letter.to, letter.remote_rail) {
            return;
        }
        self.deliver(letter.to, letter.remote_rail, letter.mail.clone());
        if matches!(letter.mail, Mail::Message(_)) && self.duplicates() {
            let due = self.now + self.delay(letter.rail);
            self.letters.push(Letter { due, sent: None, ..letter });
        }
    }

    fn may_go(&self, letter: &Letter) -> bool {
        let held = self.holds_data && matches!(letter.mail, Mail::RemoteData(_));
        // What is told of a write has come with it.
        let is_here = matches!(letter.mail, Mail::RemoteData(_));
        let (from, to) = ((letter.from, letter.rail), (letter.to, letter.remote_rail));
        let goes = is_here || self.goes(from, to);
        !held && goes && !self.stalled.contains(&letter.to)
    }

    fn may_move(&self, flight: &Flight) -> bool {
        let (here, there) = ((flight.from, flight.rail), (flight.to, flight.remote_rail));
        // The other end of a connection that is gone says so, if its answer gets here.
        let cut = flight.generation != self.generation(flight.to, flight.remote_rail);
        match (&flight.outcome, &flight.work) {
            (Some(_), _) => flight.orphan || self.goes(there, here),
            (None, _) if cut => self.goes(here, there) || flight.orphan,
            (None, Work::Transfer(t, _)) if t.direction == Direction::Read => {
                let goes = self.goes(here, there) && self.goes(there, here);
                flight.orphan || goes && flight.rung && !self.stalled.contains(&flight.to)
            }
            (None, _) => {
                self.goes(here, there) && flight.rung && !self.stalled.contains(&flight.to)
            }
        }
    }

    /// Whether anything goes from one rail to another.
    fn goes(&self, from: (Pe, RailId), to: (Pe, RailId)) -> bool {
        (self.down_links.is_empty() && self.down_rails.is_empty())
            || !(self.down_rails.contains(&from)
                || self.down_rails.contains(&to)
                || self.down_links.contains(&(from, to)))
    }

    fn generation(&self, pe: Pe, rail: RailId) -> u32 {
        self.generations.get(&(pe, rail)).copied().unwrap_or(0)
    }

    /// Closes a rail and opens it again: gives its generation, for that of a proxy lane.
    pub(super) fn reset(&mut self, lane: usize, pe: Pe, rail: RailId) -> Result<u32, PortError> {
        if self.refuses_resets {
            return Err(fault("reset", 5, "refused by the script"));
        }
        self.resets += 1;
        self.done[lane][rail.index()].clear();
        for at in 0..self.flights.len() {
            if (self.flights[at].lane, self.flights[at].rail) == (lane, rail) {
                self.orphan(at);
            }
        }
        // Some of what was sent is lost, and some arrives all the same.
        let mut kept = Vec::new();
        for letter in std::mem::take(&mut self.letters) {
            let is_message = matches!(letter.mail, Mail::Message(_));
            let sent = is_message && (letter.from, letter.rail) == (pe, rail);
            if !sent || self.draw() % 2 == 0 {
                kept.push(letter);
            }
        }
        self.letters = kept;
        if !self.is_proxy(lane, pe) {
            return Ok(0);
        }
        self.inboxes.remove(&(pe, rail));
        let generation = self.generations.entry((pe, rail)).or_default();
        *generation += 1;
        Ok(*generation)
    }

    /// What is under way where nothing goes is reported as failed, after a while, messages too.
    fn fail_dead_links(&mut self) {
        if !self.dead_links_fail {
            return;
        }
        for at in 0..self.flights.len() {
            let flight = &self.flights[at];
            let waits = flight.orphan || !flight.rung || self.stalled.contains(&flight.to);
            if !waits && flight.due + 1_000_000 <= self.now && !self.may_move(flight) {
                let (lane, rail, token) = (flight.lane, flight.rail, flight.token);
                let error = fault("delivery", 110, "the link is dead");
                let failure = Failure { token: Some(token), is_message: false, error };
                self.done[lane][rail.index()].push_back(Done::Failure(failure));
                self.orphan(at);
            }
        }
        for at in 0..self.letters.len() {
            let letter = &self.letters[at];
            let late = letter.due + 1_000_000 <= self.now && !self.stalled.contains(&letter.to);
            let Some((lane, token)) = letter.sent.filter(|_| late && !self.may_go(letter)) else {
                continue;
            };
            let error = fault("sending a message", 110, "the link is dead");
            let failure = Failure { token: Some(token), is_message: true, error };
            self.done[lane][letter.rail.index()].push_back(Done::Failure(failure));
            self.letters[at].sent = None;
        }
    }

    /// Nobody waits for a segment any more. It may be delivered all the same, unless it reads.
    fn orphan(&mut self, at: usize) {
        let flight = &self.flights[at];
        if flight.orphan {
            return;
        }
        if let Work::Transfer(Transfer { local: Local::Memory { addr, .. }, len, .. }, _) =
            flight.work
        {
            let from = flight.from;
            let bytes = self.bytes_mut(from, addr, len).to_vec();
            self.flights[at].frozen = Some(bytes);
        }
        self.flights[at].orphan = true;
    }

    /// The target of a write with remote data is told of it, some time after the data is there.
    fn tell(&mut self, flight: &Flight) {
        let Work::Transfer(_, Some(data)) = flight.work else { return };
        if self.lose_next_data > 0 {
            self.lose_next_data -= 1;
            return;
        }
        let Flight { from, to, rail, remote_rail, generation, .. } = *flight;
        let due = self.now + self.delay(rail);
        let mail = Mail::RemoteData(data);
        let sent = None;
        self.letters.push(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
    }

    fn move_data(&mut self, flight: &Flight) -> Result<(), PortError> {
        if flight.generation != self.generation(flight.to, flight.remote_rail) {
            return Err(fault("delivery", 104, "the rail addressed is closed"));
        }
        let is_read =
            matches!(&flight.work, Work::Transfer(t, _) if t.direction == Direction::Read);
        if is_read && flight.orphan {
            return Err(fault("delivery", 104, "the rail that reads is closed"));
        }
        if self.fail_next > 0 {
            self.fail_next -= 1;
            return Err(fault("delivery", 5, "failed by the script"));
        }
        let (direction, local, len, remote, key) = match flight.work {
            Work::Transfer(Transfer { direction, local, len, remote, key }, _) => {
                (direction, local, len, remote, key)
            }
            Work::Atomic(FabricAtomic { row, remote, key, .. }) => {
                (Direction::Write, Local::Inline(0), row.number.width().bytes(), remote, key)
            }
        };
        let region = match self.keys.get(&key) {
            Some(region) if region.pe == flight.to && region.rail == flight.remote_rail => region,
            _ => return Err(fault("delivery", 13, "the key is not of the rail addressed")),
        };
        if direction == Direction::Write && self.only_reads.contains(&key) {
            return Err(fault("delivery", 13, "the key is for reading only"));
        }
        // The fake addresses by offset.
        let offset = remote as usize;
        if offset > region.len || len > region.len - offset {
            return Err(fault("delivery", 14, "outside the region of the key"));
        }
        let target = region.base + offset;
        let Flight { from, to, rail, .. } = *flight;
        if let Work::Atomic(atomic) = &flight.work {
            return self.deliver_atomic(flight, target, atomic);
        }
        match (direction, local) {
            (Direction::Write, Local::Memory { addr, .. }) => {
                let now = || self.bytes_mut(from, addr, len).to_vec();
                let bytes = flight.frozen.clone().unwrap_or_else(now);
                self.bytes_mut(to, target, len).copy_from_slice(&bytes);
            }
            (Direction::Write, Local::Inline(value)) => {
                let bytes = value.to_le_bytes();
                self.bytes_mut(to, target, len).copy_from_slice(&bytes[..len]);
            }
            (Direction::Read, Local::Memory { addr, .. }) => {
                let bytes = self.bytes_mut(to, target, len).to_vec();
                self.bytes_mut(from, addr, len).copy_from_slice(&bytes);
            }
            (Direction::Read, Local::Inline(_)) => {
                return Err(fault("delivery", 22, "a read into an inline value"));
            }
        }
        self.events.push(Event::Delivered(Delivery { from, to, rail, direction, remote, len }));
        Ok(())
    }

    /// As on hardware, two rails of a target that both change words are not atomic together: the
    /// first one that does is the only one that may.
    fn deliver_atomic(
        &mut self,
        flight: &Flight,
        target: usize,
        atomic: &FabricAtomic,
    ) -> Result<(), PortError> {
        let Flight { to, remote_rail, .. } = *flight;
        if *self.actors.entry(to).or_insert(remote_rail) != remote_rail {
            return Err(fault("delivery", 22, "atomics at two rails of one PE"));
        }
        let width = atomic.row.number.width().bytes();
        if target % width != 0 {
            return Err(fault("delivery", 22, "a word that is not aligned"));
        }
        let bytes = self.bytes_mut(to, target, width);
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        let old = u64::from_le_bytes(word);
        bytes.copy_from_slice(&atomic.atomic().apply(old).to_le_bytes()[..width]);
        let before = if atomic.row.fetches { old } else { 0 };
        self.fetched.insert((flight.lane, flight.token), before);
        self.events.push(Event::Applied { pe: to, addr: target });
        Ok(())
    }

    /// The word that an atomic which has completed has fetched, once.
    pub(super) fn fetched(&mut self, lane: usize, token: Token) -> u64 {
        self.fetched.remove(&(lane, token)).expect("no atomic with this token has completed")
    }

    fn complete(&mut self, flight: &Flight, outcome: Result<(), PortError>) {
        if flight.orphan {
            return;
        }
        if self.lose_next > 0 {
            self.lose_next -= 1;
            return;
        }
        let token = flight.token;
        self.done[flight.lane][flight.rail.index()].push_back(match outcome {
            Ok(()) => Done::Token(token),
            Err(error) => Done::Failure(Failure { token: Some(token), is_message: false, error }),
        });
    }
}

pub(super) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}
