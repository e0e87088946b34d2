//! Tests of the core of a lane.

use std::sync::Arc;

use super::*;
use crate::atomic::{Atomic, AtomicOp, Width};
use crate::fake::{Call, FakeFabric, FakeMemory, FakePort, PortCall, Script};
use crate::ids::LaneKind;
use crate::lane::{Lane, LaneConfig, SignalEngine};
use crate::port::clock::Clock as _;
use crate::port::copies::Reach;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::port::{Access, Completions as _, Direction};
use crate::posting::completions::{Drain, Rare};
use crate::rails::paths::{AtomicPath, Path};
use crate::recovery::health::RailHealth;
use crate::request::{AtomicRequest, LocalSide, PutSignalRequest, Request, ResultPlace};
use crate::state::messages::reliable_channel::FETCHES;
use crate::state::regions::RegionTable;
use crate::state::segment::{Kind, Segment, Stage};
use crate::wire::handle::HandleBytes;

pub(crate) const HEAP: usize = 1 << 20;
pub(crate) const RAIL: RailId = RailId(0);

/// What a lane is tried with.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) n_pes: u32,
    pub(crate) rails: u8,
    pub(crate) depth: u32,
    pub(crate) doorbells: bool,
    pub(crate) signals: SignalEngine,
    pub(crate) health: bool,
    pub(crate) fast: bool,
    pub(crate) native: bool,
    /// How the heaps of the others are reached.
    pub(crate) reach: Reach,
}

pub(crate) const PLAIN: Setup = Setup {
    n_pes: 4,
    rails: 1,
    depth: 8,
    doorbells: false,
    signals: SignalEngine::Auto,
    health: false,
    fast: false,
    native: false,
    reach: Reach::Direct,
};

pub(crate) type Heaps = [(u64, HandleBytes)];

/// The lane of PE 0, which is alone: what the others have to do is not done.
pub(crate) struct Bed {
    pub(crate) fabric: FakeFabric,
    pub(crate) lane: Lane<FakePort>,
    /// By PE: its memory, and the handle.
    pub(crate) heaps: Arc<Heaps>,
    pub(crate) tables: Vec<RegionTable<FakeMemory>>,
}

impl Bed {
    pub(crate) fn new(setup: Setup) -> Self {
        let Setup { n_pes, rails, depth, doorbells, signals, .. } = setup;
        let fabric = FakeFabric::new(1, n_pes, Script { doorbells, ..Script::default() });
        let (mut heaps, mut tables) = (Vec::new(), Vec::new());
        for pe in (0..n_pes).map(Pe) {
            let table = RegionTable::new(fabric.memory(pe, rails), pe);
            let reach = if pe.0 == 0 { Reach::Direct } else { setup.reach };
            let addr = fabric.alloc_reached(pe, HEAP, reach);
            let handle = table.register(addr, HEAP, Access::LocalAndRemote).unwrap();
            heaps.push((addr as u64, handle));
            tables.push(table);
        }
        let all = || (0..n_pes).flat_map(|pe| (0..rails).map(move |rail| (Pe(pe), RailId(rail))));
        let address = |(pe, remote)| Path { to: FakeFabric::address(pe, remote), remote };
        let paths: Vec<Path> = all().map(address).collect();
        let limits = RailLimits {
            max_segment: 1 << 20,
            depth,
            needs_desc: true,
            immediate_data: true,
            longest_message: MAX_MESSAGE,
        };
        let config = LaneConfig {
            me: Pe(0),
            cookie: Cookie::of([*b"0123456789abcdef"]),
            kind: LaneKind::Proxy,
            paths: PathTable::new(&paths, usize::from(rails)),
            regions: tables[0].index(),
            watchdog: Watchdog::new(None, None),
            signals,
            counted: 0,
            mark_bytes: 8,
            spread: Spread::ROUND_ROBIN,
            devices: false,
            longest_message: MAX_LONG_MESSAGE,
        };
        let port = fabric.port(Pe(0), vec![limits; usize::from(rails)]).with_fast_path(setup.fast);
        let mut lane = Lane::new(port, config);
        if setup.health {
            let second = Duration::from_secs(1);
            let health = RailHealth { timeout: second, cooling: None };
            let control = all().map(|(pe, rail)| FakeFabric::control_address(pe, rail)).collect();
            lane = lane.with_rail_health(&health, control);
        }
        if setup.native {
            let to = |pe| AtomicPath { rail: RAIL, to: FakeFabric::address(Pe(pe), RAIL) };
            lane = lane.with_fabric_atomics((0..n_pes).map(to).collect());
        }
        Self { fabric, lane, heaps: heaps.into(), tables }
    }

    /// Starts a write of PE 0's first bytes to those of another, or a read of these.
    pub(crate) fn start(&mut self, direction: Direction, pe: u32) {
        let heaps = Arc::clone(&self.heaps);
        self.lane.start(&request(&heaps, direction, pe)).unwrap();
    }

    pub(crate) fn put(&mut self, pe: u32) {
        self.start(Direction::Write, pe);
    }

    pub(crate) fn atomic(&mut self, pe: u32, op: AtomicOp) {
        let heaps = Arc::clone(&self.heaps);
        self.lane.atomic(&atomic(&heaps, pe, op)).unwrap();
    }

    /// Fetches as many words of a peer as it has places for, and another one, which is pending. Nothing arrives anywhere
    /// while that waits.
    pub(crate) fn enqueue_pending(&mut self, pe: u32) {
        let heaps = Arc::clone(&self.heaps);
        let result = Some(ResultPlace { addr: heaps[0].0 as usize, flag: None });
        let fetch = AtomicRequest { result, ..atomic(&heaps, pe, AtomicOp::FetchInc) };
        let peers = (0..heaps.len() as u32).map(Pe);
        peers.clone().for_each(|pe| self.fabric.stall(pe));
        (0..=FETCHES).for_each(|_| self.lane.atomic(&fetch).unwrap());
        peers.for_each(|pe| self.fabric.resume(pe));
        assert_eq!(self.lane.pending(Pe(pe)), 1);
    }

    /// Lets all that is under way arrive, and then complete.
    pub(crate) fn pass_time(&mut self) {
        for _ in 0..2 {
            self.fabric.pass_time(1_000_000);
            self.lane.core.port.relax();
        }
    }

    /// Does what is not posted before the queues are.
    fn withheld(&mut self, mut what: impl FnMut(&mut Self)) {
        self.lane.core.withholds = true;
        what(self);
        self.lane.core.withholds = false;
    }

    pub(crate) fn wr_id(&self, so: impl FnMut(&Segment) -> bool) -> WrId {
        *self.lane.core.segments.wr_ids(so).last().unwrap()
    }

    /// The work-request id of an operation to this PE.
    pub(crate) fn to(&self, pe: u32) -> WrId {
        self.wr_id(|segment| segment.pe == Pe(pe))
    }

    fn rail(&self) -> &Rail<()> {
        &self.lane.core.rails[0]
    }
}

pub(crate) fn request(heaps: &Heaps, direction: Direction, pe: u32) -> Request<'_> {
    let (addr, handle) = &heaps[0];
    let (remote_addr, remote_handle) = (heaps[pe as usize].0, &heaps[pe as usize].1);
    let local = LocalSide::Memory { addr: *addr as usize, handle: Some(handle) };
    Request { direction, pe: Pe(pe), remote_handle, remote_addr, local, len: 8 }
}

pub(crate) fn atomic(heaps: &Heaps, pe: u32, op: AtomicOp) -> AtomicRequest<'_> {
    let (remote_addr, remote_handle) = (heaps[pe as usize].0, &heaps[pe as usize].1);
    let atomic = Atomic { op, width: Width::Eight, float: false, operand: 1, compare: 0 };
    AtomicRequest { pe: Pe(pe), remote_handle, remote_addr, atomic, result: None }
}

/// Rails of these depths, alike otherwise.
pub(crate) fn limits(depths: &[u32]) -> Vec<RailLimits> {
    let rail = |depth: &u32| RailLimits {
        max_segment: 1 << 20,
        depth: *depth,
        needs_desc: false,
        immediate_data: false,
        longest_message: MAX_MESSAGE,
    };
    depths.iter().map(rail).collect()
}

pub(crate) fn failed(pe: u32) -> EngineError {
    EngineError::BadMessage { pe: Pe(pe), why: String::from("so says the test") }
}

pub(crate) fn lost() -> PortError {
    PortError { call: "fi_write", code: 5, text: String::from("lost") }
}

/// Whoever else comes first in an iteration, and at whatever pace iterations are counted: of two who want a place each gets it about as often.
#[test]
fn each_comes_first_in_half_of_the_iterations_of_the_other() {
    for pace in 1..=32 {
        let mut phase = Phase(0);
        let mut times = [0; 4];
        for _ in 0..1000 {
            (0..pace).for_each(|_| phase.advance());
            let who = usize::from(phase.control_first()) * 2 + usize::from(phase.blocked_first());
            times[who] += 1;
        }
        assert!(times.iter().all(|times| (150..=350).contains(times)), "{pace}: {times:?}");
    }
}

#[test]
fn a_peer_has_two_or_less_than_eight_times_what_is_left() {
    for (used, shares) in [(0, 128), (14, 16), (15, 8), (16, 2), (20, 2)] {
        let most = (0..200).find(|mine| !fits_quota(*mine, used, 16));
        assert_eq!(most, Some(shares), "{used}");
    }
}

#[test]
fn there_is_room_for_less_than_the_most() {
    let left = |used| Room { used, ..Room::of(3) }.is_left();
    assert_eq!([0, 2, 3, 4].map(left), [true, true, false, false]);
}

/// A fabric that has no room is asked for no more than eight peers in an iteration: of those in a queue, and of those that wait by
/// themselves. All that waits is counted, and leaves when there is room.
#[test]
fn an_iteration_asks_for_room_for_eight_peers() {
    let mut bed = Bed::new(Setup { n_pes: 22, depth: 64, ..PLAIN });
    (1..=20).for_each(|pe| bed.fabric.refuse(Pe(pe), true));
    bed.withheld(|bed| (1..=20).for_each(|pe| bed.put(pe)));
    let books = |bed: &Bed| {
        let (core, rail) = (&bed.lane.core, bed.rail());
        (rail.counters.again, rail.blocked.peers().count(), rail.counters.queued, core.ready)
    };
    assert_eq!(books(&bed), (0, 0, 20, 20));
    assert!(!bed.lane.core.post_ready(), "none has left");
    assert_eq!(books(&bed), (8, 8, 28, 20));
    // The queue comes first, or else those that wait by themselves.
    for (phase, again, blocked) in [(0, 24, 16), (2, 36, 20), (0, 44, 20), (2, 52, 20)] {
        bed.lane.core.phase = Phase(phase << 29);
        assert!(!bed.lane.core.post_ready());
        assert_eq!(books(&bed), (again, blocked, 20 + blocked as u64, 20), "phase {phase}");
    }
    // What comes later waits as well, for these peers and no other.
    bed.put(1);
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((52, 20, 41, 21), 0));
    bed.put(21);
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((52, 20, 41, 21), 1));
    bed.withheld(|bed| bed.put(21));
    assert!(bed.lane.core.post_ready());
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((60, 20, 42, 21), 2));

    (1..=20).for_each(|pe| bed.fabric.refuse(Pe(pe), false));
    for (phase, moves) in [(0, true), (2, true), (0, true), (2, false)] {
        bed.lane.core.phase = Phase(phase << 29);
        assert_eq!(bed.lane.core.post_ready(), moves, "phase {phase}");
    }
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((60, 0, 42, 0), 23));
}

#[test]
fn a_message_for_which_there_is_no_room_is_counted() {
    let mut bed = Bed::new(PLAIN);
    bed.fabric.refuse(Pe(1), true);
    bed.atomic(1, AtomicOp::Inc);
    assert_eq!((bed.rail().counters.again, bed.rail().counters.queued), (1, 1));
}

/// What waits for a peer can be taken away from the rail, and nothing else.
#[test]
fn a_peer_of_which_all_was_taken_is_blocked_no_more() {
    let mut bed = Bed::new(PLAIN);
    for pe in [1, 2] {
        bed.fabric.refuse(Pe(pe), true);
        bed.put(pe);
    }
    let wr_id = bed.to(1);
    assert_eq!(bed.lane.core.unblock(Pe(1), RAIL), Some(wr_id.0));
    assert_eq!(bed.lane.core.unblock(Pe(1), RAIL), None);
    let blocked: Vec<Pe> = bed.rail().blocked.iter().map(|(pe, _)| pe).collect();
    assert_eq!((blocked, bed.lane.core.ready), (vec![Pe(2)], 1));
}

#[test]
fn sixteen_puts_share_a_doorbell_if_there_is_room_for_them() {
    for (depth, puts, doorbells) in [(64, 16, 1), (64, 17, 2), (64, 33, 3), (2, 2, 1), (1, 1, 1)] {
        let mut bed = Bed::new(Setup { depth, doorbells: true, ..PLAIN });
        bed.withheld(|bed| (0..puts).for_each(|_| bed.put(1)));
        assert!(bed.lane.core.post_ready());
        assert_eq!((bed.fabric.doorbells(), bed.rail().unrung), (doorbells, 0), "{puts} puts");
        assert_eq!(bed.fabric.in_flight(), puts);
    }
}

/// The fourth put of a burst fails. A message does not ring for those before it; the next put does, whatever follows it.
#[test]
fn what_a_failed_burst_owes_is_rung_with_the_next_put() {
    let mut bed = Bed::new(Setup { depth: 64, doorbells: true, ..PLAIN });
    bed.fabric.fail_calls(PortCall::Post, 3, 1);
    let mut iterate = |what: fn(&mut Bed)| {
        bed.withheld(what);
        bed.lane.core.post_ready();
        (bed.fabric.doorbells(), bed.rail().unrung)
    };
    assert_eq!(iterate(|bed| (0..5).for_each(|_| bed.put(1))), (0, 3));
    assert_eq!(iterate(|bed| bed.atomic(2, AtomicOp::Inc)), (0, 3));
    assert_eq!(iterate(|bed| (0..2).for_each(|_| bed.put(2))), (2, 0));
}

/// Completions of the same kind and peer are taken at a stretch.
#[test]
fn a_run_of_completions_ends_where_another_peer_begins() {
    let mut bed = Bed::new(PLAIN);
    [1, 1, 1, 1, 2, 2].into_iter().for_each(|pe| bed.put(pe));
    let (core, mut rare) = (&mut bed.lane.core, Rare::EMPTY);
    let mut drain = Drain::new(&mut core.segments, &mut core.connections, &mut rare);
    assert_eq!(drain.take_alike(0..6), 0, "there was none before");
    assert!(drain.take(0) && !drain.take(usize::MAX));
    assert_eq!(drain.take_alike(1..6), 3);
    assert!(drain.take(4));
    assert_eq!(drain.take_alike(5..6), 1);
    assert_eq!(drain.finish(), 6);
    assert!(rare.pop().is_none() && core.segments.used() == 0);
}

/// What a fence has held, and a signal behind puts, leave in the iteration in which they may, by their own rail, though rails are
/// monitored: no path has failed.
#[test]
fn what_was_held_leaves_at_once_by_its_own_rail() {
    for signals in [false, true] {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.fabric.trace_calls();
        bed.put(1);
        if signals {
            let heaps = Arc::clone(&bed.heaps);
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            bed.lane.put_signal(&PutSignalRequest { parts: &[], signal }).unwrap();
        } else {
            bed.lane.fence(Pe(1)).unwrap();
            bed.put(1);
        }
        let sum =
            |bed: &Bed, what: fn(&Rail<()>) -> u64| bed.lane.core.rails.iter().map(what).sum();
        let completed = |bed: &Bed| -> u64 { sum(bed, |rail| rail.counters().completed) };
        for _ in 0..1000 {
            bed.lane.iterate();
            if completed(&bed) != 0 {
                break;
            }
        }
        let posts: Vec<Call> =
            bed.fabric.calls().into_iter().filter(|call| matches!(call, Call::Post(..))).collect();
        let [Call::Post(_, first), Call::Post(_, second)] = posts[..] else { panic!("{posts:?}") };
        assert_ne!(first, second, "signals: {signals}");
        assert_eq!((completed(&bed), bed.lane.core.lost.len()), (1, 0));
    }
}

/// A signal whose data has ended is no more, if its peer was declared failed meanwhile: it does not wait for its rail.
#[test]
fn a_chained_signal_to_a_peer_that_was_given_up_ends() {
    let mut bed = Bed::new(Setup { signals: SignalEngine::Chained, ..PLAIN });
    let heaps = Arc::clone(&bed.heaps);
    let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
    let part = Request { len: 2048, ..request(&heaps, Direction::Write, 1) };
    bed.lane.put_signal(&PutSignalRequest { parts: &[part], signal }).unwrap();
    let wr_id = bed.wr_id(|segment| segment.stage == Stage::Chained);
    let core = &mut bed.lane.core;
    core.connections.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
    core.unchain(wr_id);
    assert_eq!((core.segments[wr_id.0].stage, core.ready), (Stage::Free, 0));
}

/// Rails that are about to be closed are given nothing, while there are others to the peer.
#[test]
fn rails_that_may_be_used_lead_to_the_peer_and_are_not_about_to_be_closed() {
    for (in_service, paused, usable) in [
        (0b111, 0b000, 0b111),
        (0b111, 0b010, 0b101),
        (0b111, 0b111, 0b111),
        (0b110, 0b010, 0b100),
        (0b010, 0b010, 0b010),
        (0b011, 0b100, 0b011),
    ] {
        for health in [true, false] {
            let mut bed = Bed::new(Setup { rails: 3, health, ..PLAIN });
            bed.put(1);
            let core = &mut bed.lane.core;
            core.paths.serve(Pe(1), in_service);
            let rails = core.rails.iter_mut().enumerate();
            rails.filter(|(at, _)| paused >> at & 1 != 0).for_each(|(_, rail)| rail.pause());
            let usable = if health { usable } else { in_service };
            assert_eq!(core.usable(Pe(1)), usable, "{in_service:b} {paused:b}");
        }
    }
}

/// What is wrong with an operation that is not submitted yet is said at once, but for local memory of which that can only be
/// said later.
#[test]
fn a_request_is_checked_before_its_turn() {
    for (reach, devices, is_refused) in [
        (Reach::Direct, false, true),
        (Reach::Direct, true, false),
        (Reach::Staged, false, false),
        (Reach::Staged, true, false),
    ] {
        let mut bed = Bed::new(Setup { reach, ..PLAIN });
        bed.lane.core.devices = devices;
        let heaps = Arc::clone(&bed.heaps);
        let good = request(&heaps, Direction::Write, 1);
        bed.lane.core.check_request(&good).unwrap();
        let unregistered = LocalSide::Memory { addr: heaps[0].0 as usize, handle: None };
        let unregistered = Request { local: unregistered, ..good };
        assert_eq!(bed.lane.core.check_request(&unregistered).is_err(), is_refused);
        bed.lane.core.check_request(&Request { len: 0, ..unregistered }).unwrap();
        let outside = Request { remote_addr: good.remote_addr + HEAP as u64 - 7, ..good };
        bed.lane.core.check_request(&outside).unwrap_err();
    }
}

#[test]
fn nobody_has_a_quota_of_room_that_is_used_up() {
    // Transfers: twice the depth, of so many peers.
    let mut bed = Bed::new(Setup { n_pes: 10, depth: 4, ..PLAIN });
    (1..=7).for_each(|pe| bed.put(pe));
    assert!(bed.lane.core.is_within_quota(Pe(9)));
    bed.put(8);
    assert!(!bed.lane.core.is_within_quota(Pe(9)) && !bed.lane.has_room());

    // Messages: a peer that has some, and one that has none.
    let mut bed = Bed::new(PLAIN);
    bed.lane.core.connection_to(Pe(1)).unwrap();
    (0..3).for_each(|_| bed.lane.core.count_unsent(Pe(1)));
    let rooms = |bed: &Bed| {
        let core = &bed.lane.core;
        (
            bed.lane.has_room(),
            core.is_within_message_quota(Pe(1)),
            core.is_within_message_quota(Pe(2)),
        )
    };
    assert_eq!(rooms(&bed), (true, true, true));
    while bed.lane.core.messages.take(0).is_some() {}
    assert_eq!(rooms(&bed), (false, false, true));

    // Atomics of the fabric: two, however full the rail is. What is pending is none of them.
    let mut bed = Bed::new(Setup { depth: 1, native: true, ..PLAIN });
    bed.atomic(1, AtomicOp::Inc);
    bed.lane.core.connections.find_mut(Pe(1)).unwrap().set_pending(true);
    assert!(bed.lane.core.is_within_atomic_quota(Pe(1), RAIL));
    bed.lane.core.connections.find_mut(Pe(1)).unwrap().set_pending(false);
    bed.atomic(1, AtomicOp::Inc);
    assert!(!bed.lane.core.is_within_atomic_quota(Pe(1), RAIL));
}

/// Where rails are monitored, what the fabric fails waits for recovery: bytes among those that were in doubt,
/// messages not. But not if their peer was declared failed.
#[test]
fn what_fails_is_set_aside_unless_its_peer_was_given_up() {
    enum What {
        Bytes,
        Fragment,
        Message,
    }
    for (what, given_up) in [
        (What::Bytes, false),
        (What::Fragment, false),
        (What::Message, false),
        (What::Bytes, true),
        (What::Message, true),
    ] {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        match what {
            What::Message => bed.atomic(1, AtomicOp::Inc),
            What::Bytes | What::Fragment => bed.put(1),
        }
        let (wr_id, core) = (bed.to(1), &mut bed.lane.core);
        if let What::Fragment = what {
            core.segments[wr_id.0].kind = Kind::Staged;
        }
        if given_up {
            core.connections.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
        }
        core.fail_segment(wr_id, lost());
        let waits = core.events.iter().any(|event| matches!(event, Event::Refused(..)));
        assert_eq!(waits, !given_up);
        let is_message = matches!(what, What::Message);
        assert_eq!(core.lost.len(), usize::from(!given_up && !is_message));
    }
}

/// What the fabric may still do for a peer that was declared failed, and for no other, keeps the memory of this process.
#[test]
fn orphans_are_what_the_fabric_has_for_a_peer_that_was_given_up() {
    let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
    [1, 1, 1, 2, 1].into_iter().for_each(|pe| bed.put(pe));
    let core = &mut bed.lane.core;
    // Of those that were in doubt the fabric has one, and not the other.
    let all = core.segments.wr_ids(|segment| segment.pe == Pe(1));
    core.lose(all[0], true);
    core.lose(all[1], true);
    assert!(core.came_back(all[1]) && core.segments[all[1].0].stage == Stage::Posted);
    core.segments[all[1].0].stage = Stage::Lost;
    core.wr_id_is_back(all[1]);
    assert!(!core.came_back(all[1]) && core.segments[all[1].0].stage == Stage::Lost);
    core.fail_connection(Pe(1), failed(1));
    assert_eq!(core.orphans, 3);
    core.is_no_orphan(all[0]);
    core.is_no_orphan(all[1]);
    assert_eq!(core.orphans, 2);
}

/// What a request says that it comes behind, when it leaves: a signal behind the puts that have left as messages, if any
/// have; an atomic behind nothing.
#[test]
fn a_signal_comes_behind_messages_that_are_puts_and_an_atomic_does_not() {
    let mut bed = Bed::new(Setup { reach: Reach::Staged, ..PLAIN });
    let heaps = Arc::clone(&bed.heaps);
    let mut behind = |puts, op| {
        if puts {
            bed.put(1);
        }
        bed.lane.atomic(&atomic(&heaps, 1, op)).unwrap();
        let core = &mut bed.lane.core;
        let channel = core.connections.find_mut(Pe(1)).unwrap().channel();
        assert_eq!((channel.has_sent_puts(), channel.pulls), (puts, 0));
        let packet = core.messages.packet_mut(channel.newest);
        u16::from_le_bytes([packet.bytes()[22], packet.bytes()[23]])
    };
    assert_eq!(behind(false, AtomicOp::SignalSet), 0);
    assert_eq!(behind(true, AtomicOp::Inc), 0);
    assert_eq!(behind(true, AtomicOp::SignalSet), 1);
}
