//! The bed of tests: the lane of one PE on the scripted fabric, which does what a test says.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::atomic::{Atomic, AtomicOp, Width};
use crate::fake::{FakeFabric, FakeMemory, FakePort, Script};
use crate::ids::{LaneKind, RailId, WrId};
use crate::lane::{Lane, LaneConfig, SignalEngine};
use crate::port::clock::Clock as _;
use crate::port::copies::Reach;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::port::{Access, Direction, PortError, RailLimits};
use crate::rails::paths::Path;
use crate::recovery::health::RailHealth;
use crate::request::{AtomicRequest, LocalSide, Request, ResultPlace};
use crate::state::messages::reliable_channel::FETCHES;
use crate::state::rail::Rail;
use crate::state::regions::RegionTable;
use crate::state::segment::Segment;
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
    reach: Reach::Direct,
};

pub(crate) type Heaps = [(u64, HandleBytes)];

/// The lane of PE 0, which is alone: what the others have to do is not done.
pub(crate) struct Bed {
    pub(crate) fabric: FakeFabric,
    pub(crate) lane: Lane<FakePort>,
    /// By PE: its memory, and the handle.
    pub(crate) heaps: Arc<Heaps>,
    pub(crate) tables: Vec<Arc<RegionTable<FakeMemory>>>,
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
            bulk: 0,
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

    pub(crate) fn pass_time(&mut self) {
        for _ in 0..2 {
            self.fabric.pass_time(1_000_000);
            self.lane.core_mut().transmit.port_mut().relax();
        }
    }

    pub(crate) fn withheld(&mut self, mut what: impl FnMut(&mut Self)) {
        self.lane.core_mut().transmit.set_withholds(true);
        what(self);
        self.lane.core_mut().transmit.set_withholds(false);
    }

    pub(crate) fn wr_id(&self, so: impl FnMut(&Segment) -> bool) -> WrId {
        *self.lane.core().transmit.wr_ids(so).last().unwrap()
    }

    pub(crate) fn to(&self, pe: u32) -> WrId {
        self.wr_id(|segment| segment.pe == Pe(pe))
    }

    pub(crate) fn rail(&self) -> &Rail<()> {
        self.lane.core().transmit.rail(RAIL)
    }
}

pub(crate) fn request(heaps: &Heaps, direction: Direction, pe: u32) -> Request<'_> {
    let (addr, _) = &heaps[0];
    let (remote_addr, remote_handle) = (heaps[pe as usize].0, &heaps[pe as usize].1);
    let local = LocalSide::Memory(*addr as usize);
    Request { direction, pe: Pe(pe), remote_handle, remote_addr, local, len: 8 }
}

pub(crate) fn atomic(heaps: &Heaps, pe: u32, op: AtomicOp) -> AtomicRequest<'_> {
    let (remote_addr, remote_handle) = (heaps[pe as usize].0, &heaps[pe as usize].1);
    let atomic = Atomic { op, width: Width::Eight, float: false, operand: 1, compare: 0 };
    AtomicRequest { pe: Pe(pe), remote_handle, remote_addr, atomic, result: None }
}

pub(crate) fn limits(depths: &[u32]) -> Vec<RailLimits> {
    let rail = |depth: &u32| RailLimits {
        max_segment: 1 << 20,
        depth: *depth,
        needs_desc: false,
        immediate_data: false,
        longest_message: MAX_MESSAGE,
        bulk: 0,
    };
    depths.iter().map(rail).collect()
}

pub(crate) fn failed(pe: u32) -> EngineError {
    EngineError::BadMessage { pe: Pe(pe), why: String::from("so says the test") }
}

pub(crate) fn lost() -> PortError {
    PortError { call: "fi_write", code: 5, text: String::from("lost") }
}
