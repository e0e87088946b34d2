//! The network of a replay: PEs with a heap and memory beside it, and the engine's lanes, on a fabric of a seed.

use std::time::Duration;

use engine::Watchdog;
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::atomics::fabric::{AtomicPath, TARGET_RAIL};
use engine::error::EngineError;
use engine::ids::{LaneKind, Pe, RailId};
use engine::lane::fast_path::{FastPutSignal, FastTransfer, NotStarted};
use engine::lane::{Lane, LaneConfig, SignalEngine};
use engine::port::copies::Reach;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::{Access, Desc, Direction, Local, RailLimits};
use engine::rails::balance::Spread;
use engine::rails::paths::{Path, PathTable};
use engine::request::{AtomicRequest, LocalSide, PutSignalRequest, Request, ResultPlace};
use engine::signal::counted::TAGS;
use engine::state::batch::Batch;
use engine::state::regions::RegionTable;
use engine::wire::cookie::Cookie;
use engine::wire::handle::HandleBytes;
use nvshmem_recording::Caller;
use sim_fabric::{FakeFabric, FakeMemory, FakePort, Script};

use super::plan::{Bytes, Does, Plan, Step};

/// One PE's memory.
struct Memory {
    heap: usize,
    beside: usize,
    regions: RegionTable<FakeMemory>,
}

/// Where the heaps are.
pub(super) type Targets = Vec<(usize, HandleBytes)>;

/// All PEs of a replay.
pub(super) struct Network {
    pub(super) fabric: FakeFabric,
    pub(super) targets: Targets,
    /// Whether memory is such that the fabric does not reach it.
    pub(super) staged: bool,
    memories: Vec<(Memory, HandleBytes)>,
    heap: usize,
    shape: Shape,
}

/// What kind of network it is, and how its lanes work.
struct Shape {
    rails: u8,
    limits: RailLimits,
    fast: bool,
    native: bool,
    signals: SignalEngine,
    counted: u16,
    spread: Spread,
}

/// Random numbers of a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

fn shape(random: &mut Random) -> Shape {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    let limits = RailLimits {
        max_segment: random.of(&[64, 1000, 1 << 20]),
        depth: random.of(&[1, 2, 3, 16, 64]),
        needs_desc: random.below(2) == 0,
        immediate_data: random.below(4) != 0,
        longest_message: MAX_MESSAGE,
    };
    let spread = Spread { balanced_from: 64, striped_from: 128, segment: random.of(&[16, 100]) };
    Shape {
        rails: 1 + random.below(4) as u8,
        limits,
        fast: random.below(4) != 0,
        native: random.below(4) == 0,
        signals: random.of(&[Auto, Auto, Chained, Auto, Eager, Counted]),
        counted: random.of(&[1, TAGS]),
        spread: random.of(&[Spread::ROUND_ROBIN, spread]),
    }
}

fn script(random: &mut Random) -> Script {
    Script {
        again_percent: random.of(&[0, 0, 20]),
        delay: random.of(&[(1, 1), (1_000, 100_000), (1, 1_000_000)]),
        slow_rails: if random.below(3) == 0 { vec![(RailId(0), 50)] } else { Vec::new() },
        duplicate_percent: random.of(&[0, 0, 30]),
        shared_queue: random.below(2) == 0,
        stragglers: random.of(&[(0, 0), (5, 2_000_000)]),
        connecting: random.of(&[(0, 0), (1, 500_000)]),
        ..Script::default()
    }
}

fn paths(n_pes: u32, rails: u8) -> PathTable {
    let all = (0..n_pes).flat_map(|pe| (0..rails).map(move |rail| (pe, rail)));
    let path = |(pe, rail): (u32, u8)| {
        let remote = RailId((rail + 1) % rails);
        Path { to: FakeFabric::address(Pe(pe), remote), remote }
    };
    PathTable::new(&all.map(path).collect::<Vec<_>>(), rails.into())
}

impl Network {
    pub(super) fn new(plan: &Plan, seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = shape(&mut random);
        let fabric = FakeFabric::new(seed | 1, plan.n_pes, script(&mut random));
        // Threads of the program hand staged memory over to the proxy thread, which is not replayed.
        let host = plan.lanes.iter().any(|lane| lane.caller == Caller::Host);
        let staged = !host && random.below(3) == 0;
        let reach = if staged { Reach::Staged } else { Reach::Direct };
        let chunk = random.of(&[64, 1024]);
        let mut memories = Vec::new();
        let mut targets = Vec::new();
        for pe in (0..plan.n_pes).map(Pe) {
            let memory = fabric.memory(pe, shape.rails).with_bounce(chunk, 2, 2);
            let regions = RegionTable::new(memory, pe);
            let heap = fabric.alloc_reached(pe, plan.heap, reach);
            // Twice: what is at home of no heap has offsets that no heap has.
            let beside = fabric.alloc_reached(pe, 2 * plan.heap, reach);
            let access = [Access::LocalAndRemote, Access::Local];
            let handles = [(heap, plan.heap), (beside, 2 * plan.heap)];
            let [handle, at_home] = [0, 1].map(|which| {
                let (base, len) = handles[which];
                // The fake takes whatever it has itself given out.
                regions.register(base, len, access[which]).expect("the fake registers memory")
            });
            targets.push((heap, handle));
            memories.push((Memory { heap, beside, regions }, at_home));
        }
        Self { fabric, targets, staged, memories, heap: plan.heap, shape }
    }

    /// How far into a PE's heap an address is.
    pub(super) fn heap_offset(&self, pe: u32, address: usize) -> Option<usize> {
        let base = self.memories[pe as usize].0.heap;
        address.checked_sub(base).filter(|offset| *offset < self.heap)
    }

    /// Opens a proxy lane for every PE, and a host lane for those whose program has called.
    pub(super) fn open(&self, plan: &Plan) -> Vec<(u32, Caller, ReplayLane)> {
        let mut lanes: Vec<_> = (0..plan.n_pes)
            .map(|pe| (pe, Caller::Proxy, self.lane(plan, pe, Caller::Proxy)))
            .collect();
        for of in plan.lanes.iter().filter(|of| of.caller == Caller::Host) {
            lanes.push((of.pe, Caller::Host, self.lane(plan, of.pe, Caller::Host)));
        }
        lanes
    }

    fn lane(&self, plan: &Plan, pe: u32, caller: Caller) -> ReplayLane {
        let (me, is_proxy) = (Pe(pe), caller == Caller::Proxy);
        let rails = if is_proxy { self.shape.rails } else { 1 };
        let (memory, handle) = &self.memories[pe as usize];
        let config = LaneConfig {
            me,
            cookie: Cookie::of([*b"a replayed job's"]),
            kind: if is_proxy { LaneKind::Proxy } else { LaneKind::Host },
            paths: paths(plan.n_pes, rails),
            regions: memory.regions.index(),
            watchdog: Watchdog::new(None, Some(Duration::from_secs(60))),
            signals: self.shape.signals,
            counted: if is_proxy && self.shape.limits.immediate_data {
                self.shape.counted
            } else {
                0
            },
            mark_bytes: 8,
            spread: if is_proxy { self.shape.spread } else { Spread::ROUND_ROBIN },
            devices: self.staged,
            longest_message: MAX_LONG_MESSAGE,
        };
        let limits = vec![self.shape.limits; rails.into()];
        let port = self.fabric.port(me, limits).with_fast_path(self.shape.fast);
        let mut lane = Lane::new(port, config);
        if is_proxy && self.shape.native {
            let path = |pe| AtomicPath {
                rail: RailId(rails - 1),
                to: FakeFabric::address(Pe(pe), TARGET_RAIL),
            };
            lane = lane.with_fabric_atomics((0..plan.n_pes).map(path).collect());
        }
        ReplayLane { lane, is_proxy, base: memory.beside + self.heap, handle: *handle }
    }
}

/// A lane, called as the plugin's entries call it.
pub(super) struct ReplayLane {
    lane: Lane<FakePort>,
    /// User threads have no fast path.
    is_proxy: bool,
    /// The memory beside the heap.
    base: usize,
    handle: HandleBytes,
}

impl ReplayLane {
    /// One turn of it.
    pub(super) fn turn(&mut self) -> Result<(), EngineError> {
        self.lane.progress().map(|_| ())
    }

    pub(super) fn quiet(&mut self, to: u32) -> Result<(), EngineError> {
        self.lane.quiet(Pe(to))
    }

    /// Makes a call. Operations on words are what `op` makes of them, apart from a put.
    pub(super) fn make(
        &mut self,
        targets: &Targets,
        step: &Step,
        op: impl Fn(AtomicOp) -> AtomicOp,
    ) -> Result<(), EngineError> {
        let pe = Pe(step.to);
        let (base, remote_handle) = &targets[step.to as usize];
        let word = |offset: usize, op, width, result| AtomicRequest {
            pe,
            remote_handle,
            remote_addr: (base + offset) as u64,
            atomic: Atomic { op, width, float: false, operand: 1, compare: 0 },
            result,
        };
        let handle = self.handle;
        let from = |bytes: &Bytes| LocalSide::Memory {
            addr: self.base + bytes.local,
            handle: Some(&handle),
        };
        let transfer = |direction, bytes: &Bytes, local| Request {
            direction,
            pe,
            remote_handle,
            remote_addr: (base + bytes.remote) as u64,
            local,
            len: bytes.len,
        };
        match &step.does {
            Does::Put(bytes) => {
                let request = transfer(Direction::Write, bytes, from(bytes));
                self.start(&request, step.blocking)
            }
            Does::P(bytes) => {
                let value = LocalSide::Value(1);
                self.start(&transfer(Direction::Write, bytes, value), false)
            }
            Does::Get(bytes) => {
                let request = transfer(Direction::Read, bytes, from(bytes));
                self.start(&request, step.blocking)
            }
            Does::Amo { op: recorded, width, word: offset, fetch_to } => {
                let op = op(*recorded);
                let addr = self.base + fetch_to;
                let result = op.fetches().then_some(ResultPlace { addr, flag: Some(1) });
                let request = word(*offset, op, *width, result);
                let AtomicRequest { remote_addr, atomic, .. } = request;
                let fast = !op.fetches()
                    && self.lane.try_atomic(pe, remote_handle, remote_addr, &atomic, Batch::NONE);
                if fast { Ok(()) } else { self.lane.atomic(&request) }
            }
            Does::PutSignal { parts, op, word: offset } => {
                let all: Vec<Request<'_>> =
                    parts.iter().map(|part| transfer(Direction::Write, part, from(part))).collect();
                let signal = word(*offset, *op, Width::Eight, None);
                self.put_signal(&all, parts, signal)
            }
            Does::Fence => self.lane.fence(pe),
            Does::Quiet => self.lane.quiet(pe),
        }
    }

    fn start(&mut self, request: &Request<'_>, blocking: bool) -> Result<(), EngineError> {
        if blocking {
            return self.lane.complete(request);
        }
        if !self.is_proxy {
            return self.lane.start(request);
        }
        let local = match request.local {
            LocalSide::Value(value) => Local::Inline(value),
            LocalSide::Memory { addr, .. } => Local::Memory { addr, desc: Desc(0) },
        };
        let Request { direction, pe, remote_handle: handle, remote_addr: addr, len, .. } = *request;
        let common = FastTransfer { direction, pe, handle, addr, local, len };
        let tried = match self.lane.try_start(common, Batch::NONE) {
            Err(NotStarted::Untried(common)) => self.lane.retry_start(common, Batch::NONE),
            tried => tried,
        };
        match tried {
            Ok(()) => Ok(()),
            Err(NotStarted::Untried(_)) => self.lane.start(request),
            Err(NotStarted::Declined(declined)) => self.lane.start_declined(declined),
        }
    }

    fn put_signal(
        &mut self,
        parts: &[Request<'_>],
        bytes: &[Bytes],
        signal: AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        if let ([part], [bytes]) = (parts, bytes) {
            let common = FastPutSignal {
                pe: part.pe,
                data_handle: part.remote_handle,
                data_addr: part.remote_addr,
                from: self.base + bytes.local,
                len: bytes.len,
                handle: signal.remote_handle,
                addr: signal.remote_addr,
                atomic: signal.atomic,
            };
            let sent = self.lane.try_put_signal(common, Batch::NONE);
            if sent.or_else(|common| self.lane.retry_put_signal(common, Batch::NONE)).is_ok() {
                return Ok(());
            }
        }
        self.lane.put_signal(&PutSignalRequest { parts, signal })
    }
}
