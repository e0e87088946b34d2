//! A whole job in one thread: PEs with a heap, a proxy lane and a host lane each, on one fake
//! fabric.

use std::sync::Arc;
use std::time::Duration;

use engine::Watchdog;
use engine::atomic::AtomicOp;
use engine::channel::counts::TAGS;
use engine::error::EngineError;
use engine::ids::{LaneKind, Pe, RailId};
use engine::lane::host::HostLane;
use engine::lane::host::handoff::handover;
use engine::lane::{Lane, LaneConfig, SignalEngine};
use engine::port::copies::Reach;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::{Access, Direction, PeerAddr, RailLimits};
use engine::rails::Spread;
use engine::rails::paths::{Path, PathTable};
use engine::regions::{RegionDirectory, RegionTable};
use engine::request::{LocalSide, PutSignalRequest, Request};
use engine::wire::cookie::Cookie;
use engine::wire::handle::HandleBytes;
use sim_fabric::{FakeFabric, FakeMemory, FakePort, Script};

use super::signals::Targets;

#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) n_pes: u32,
    /// PEs that take part, of those that there are; 0 is all.
    pub(crate) present: u32,
    pub(crate) rails: u8,
    /// Connections for bulk of each rail.
    pub(crate) bulk: u8,
    pub(crate) depth: u32,
    pub(crate) max_segment: usize,
    pub(crate) needs_desc: bool,
    /// Whether lanes have the fast path.
    pub(crate) fast: bool,
    pub(crate) heap: usize,
    pub(crate) immediate_data: bool,
    pub(crate) longest_message: usize,
    /// Most counted puts to one peer.
    pub(crate) counted: u16,
    /// Bytes of immediate data.
    pub(crate) immediate_bytes: u8,
    pub(crate) signals: SignalEngine,
    pub(crate) spread: Spread,
    /// Which memory is staged: for each PE two bits, its heap and its scratch memory.
    pub(crate) staged: u32,
    /// Which of that the fabric reaches all the same, though no CPU does: device memory, taken
    /// directly.
    pub(crate) by_fabric: u32,
    /// Where signals and other words are: for each PE two bits, 0 for its heap, else a region of
    /// their own of the host, staged, or of a device that the fabric reaches.
    pub(crate) words: u32,
    /// Bytes of a bounce buffer of bounce memory, and bounce buffers for each direction.
    pub(crate) bounce: (usize, u16, u16),
    /// PEs, a bit for each, that share their bounce memory: they are of one host.
    pub(crate) shared: u32,
    /// Whether CUDA is loaded only after the PEs are connected.
    pub(crate) late: bool,
    /// When waits are given up, if not as is usual here.
    pub(crate) deadline: Option<Duration>,
    /// Rails, a bit for each, that do not lead from a PE to every other one; see [`Shape::leads`].
    pub(crate) lonely: u32,
}

impl Shape {
    /// Whether a rail leads from one PE to another.
    pub(crate) fn leads(&self, me: u32, pe: u32, rail: u8) -> bool {
        (me + pe) % 2 == 0 || self.lonely >> rail & 1 == 0
    }

    /// How the region of a PE's words is reached; none if they are in its heap.
    fn reach_of_words(&self, pe: u32) -> Option<Reach> {
        let kinds = [None, Some(Reach::Direct), Some(Reach::Staged), Some(Reach::Fabric)];
        kinds[self.words.checked_shr(2 * pe).unwrap_or(0) as usize & 3]
    }

    /// Whether any memory is a device's.
    fn has_devices(&self) -> bool {
        self.staged != 0
            || (0..self.n_pes)
                .any(|pe| self.reach_of_words(pe).is_some_and(|reach| reach != Reach::Direct))
    }

    /// What leads where.
    fn paths(&self, me: u32) -> PathTable {
        let all = (0..self.n_pes).flat_map(|pe| (0..self.rails).map(move |rail| (pe, rail)));
        let lonely = all.filter(|&(pe, rail)| !self.leads(me, pe, rail));
        let table = some_paths(self.n_pes, self.rails, |pe, rail| self.leads(me, pe, rail));
        lonely.fold(table, |table, (pe, rail)| table.without(Pe(pe), RailId(rail)))
    }
}

/// Draws rails that do not lead everywhere: often none, never all.
pub(crate) fn random_lonely(random: &mut Random, rails: u8) -> u32 {
    let one = 1 << random.below(rails.into());
    if random.below(2) == 0 { 0 } else { random.below(1 << rails) as u32 & !one }
}

/// Draws where words are, for programs whose words have places of their own: half of the time in
/// the heaps, beside the data that they tell of; else each PE's in a region of any kind.
pub(crate) fn random_words(random: &mut Random) -> u32 {
    [0, random.below(1 << 8) as u32][random.below(2)]
}

impl Default for Shape {
    fn default() -> Self {
        let max_segment = 1 << 20;
        Self {
            n_pes: 2,
            present: 0,
            rails: 2,
            bulk: 0,
            depth: 16,
            max_segment,
            needs_desc: true,
            fast: false,
            heap: 1 << 16,
            immediate_data: true,
            longest_message: MAX_MESSAGE,
            counted: TAGS,
            immediate_bytes: 8,
            signals: SignalEngine::Auto,
            spread: Spread::ROUND_ROBIN,
            staged: 0,
            by_fabric: 0,
            words: 0,
            bounce: (1024, 2, 2),
            shared: 0,
            late: false,
            deadline: None,
            lonely: 0,
        }
    }
}

pub(crate) struct Member {
    pub(crate) lane: Lane<FakePort>,
    pub(crate) regions: Arc<RegionTable<FakeMemory>>,
    pub(crate) base: usize,
    pub(crate) handle: HandleBytes,
    /// Where its words are: as long as the heap, which it is unless the shape says otherwise.
    pub(crate) words: usize,
    pub(crate) words_handle: HandleBytes,
    /// Local memory that is not part of the heap.
    pub(crate) scratch: usize,
    pub(crate) scratch_handle: HandleBytes,
}

/// Bytes before and behind each memory of a member that nobody may write to, and what they are.
const CANARY: usize = 4096;
const SONG: u8 = 0xc5;

impl Member {
    /// See [`Job::put_signal`].
    pub(crate) fn put_signal(
        &mut self,
        targets: &Targets,
        to: u32,
        (at, len): (usize, usize),
        word: usize,
    ) -> Result<(), EngineError> {
        let parts = [targets.part(self.scratch, to, at, len)];
        let signal = targets.atomic(to, word, AtomicOp::SignalAdd, 1);
        self.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
    }

    /// That nobody has written around its memory.
    pub(crate) fn check_canaries(&self, fabric: &FakeFabric, len: usize) {
        let me = self.lane.me();
        let memories = [self.base, self.scratch, self.words];
        for at in memories.into_iter().flat_map(|base| [base - CANARY, base + len]) {
            assert_eq!(fabric.load(me, at, CANARY), [SONG; CANARY], "canary: at {at:#x} of {me}");
        }
    }
}

pub(crate) struct Job {
    pub(crate) fabric: FakeFabric,
    pub(crate) members: Vec<Member>,
    pub(crate) heap: usize,
}

fn limits(shape: &Shape) -> Vec<RailLimits> {
    let rail = RailLimits {
        max_segment: shape.max_segment,
        depth: shape.depth,
        needs_desc: shape.needs_desc,
        immediate_data: shape.immediate_data,
        longest_message: shape.longest_message,
        bulk: shape.bulk,
    };
    vec![rail; usize::from(shape.rails)]
}

/// The paths to all PEs, with addresses of nobody where rails do not lead.
fn some_paths(n_pes: u32, rails: u8, leads: impl Fn(u32, u8) -> bool) -> PathTable {
    let mut paths = Vec::new();
    for pe in 0..n_pes {
        for rail in 0..rails {
            // Not the same rail at the other end, so that a mix-up of the two is found.
            let remote = RailId((rail + 1) % rails);
            let real = FakeFabric::address(Pe(pe), remote);
            let to = if leads(pe, rail) { real } else { PeerAddr(u64::MAX) };
            paths.push(Path { to, remote });
        }
    }
    PathTable::new(&paths, usize::from(rails))
}

/// The slot of the region that a PE has registered first, as its handle has it.
pub(crate) const FIRST_REGION: u32 = 1 << 20;

/// What the messages of all jobs here have in common.
pub(crate) fn cookie() -> Cookie {
    Cookie::of([*b"0123456789abcdef"])
}

/// What lanes are opened with, unless a test says otherwise.
pub(crate) fn lane_config(me: Pe, paths: PathTable, regions: Arc<RegionDirectory>) -> LaneConfig {
    LaneConfig {
        me,
        cookie: cookie(),
        kind: LaneKind::Proxy,
        paths,
        regions,
        watchdog: watchdog(),
        signals: SignalEngine::Auto,
        counted: TAGS,
        immediate_bytes: 8,
        spread: Spread::ROUND_ROBIN,
        devices: false,
        longest_message: MAX_LONG_MESSAGE,
    }
}

/// How long user threads wait for their proxy lane.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn watchdog() -> Watchdog {
    Watchdog::new(Some(Duration::from_secs(10)), Some(Duration::from_secs(60)))
}

impl Job {
    pub(crate) fn new(seed: u64, shape: &Shape, script: Script) -> Self {
        let present = if shape.present == 0 { shape.n_pes } else { shape.present };
        Self::of(seed, &vec![shape; present as usize], script)
    }

    /// A job whose PEs are shaped differently: one shape for each that takes part. What PEs agree
    /// on, as rails, paths and how long messages are, is the same in all.
    pub(crate) fn of(seed: u64, shapes: &[&Shape], script: Script) -> Self {
        let fabric = FakeFabric::new(seed, shapes[0].n_pes, script);
        let of_pe = || (0..).zip(shapes.iter().copied());
        of_pe()
            .filter(|(pe, shape)| shape.shared.checked_shr(*pe).unwrap_or(0) & 1 != 0)
            .for_each(|(pe, _)| fabric.share_bounce(Pe(pe)));
        let members = of_pe()
            .map(|(pe, shape)| {
                let me = Pe(pe);
                let (bounce_len, out, inward) = shape.bounce;
                let memory = fabric.memory(me, shape.rails).with_bounce(bounce_len, out, inward);
                let regions = RegionTable::new(memory, me);
                let reach = |bit: u32| {
                    let has = |set: u32| set.checked_shr(2 * pe + bit).unwrap_or(0) & 1 != 0;
                    match (has(shape.staged), has(shape.by_fabric)) {
                        (false, _) => Reach::Direct,
                        (true, false) => Reach::Staged,
                        (true, true) => Reach::Fabric,
                    }
                };
                let alloc = |reach: Reach| {
                    let at = fabric.alloc_reached(me, shape.heap + 2 * CANARY, reach);
                    for canary in [at, at + CANARY + shape.heap] {
                        fabric.store(me, canary, &[SONG; CANARY]);
                    }
                    at + CANARY
                };
                let (base, scratch) = (alloc(reach(0)), alloc(reach(1)));
                let config = LaneConfig {
                    watchdog: match shape.deadline {
                        Some(deadline) => Watchdog::new(None, Some(deadline)),
                        None => watchdog(),
                    },
                    signals: shape.signals,
                    counted: shape.counted,
                    immediate_bytes: shape.immediate_bytes,
                    spread: shape.spread,
                    devices: shape.has_devices() && !shape.late,
                    ..lane_config(me, shape.paths(pe), regions.index())
                };
                let port = fabric.port(me, limits(shape)).with_fast_path(shape.fast);
                let lane = Lane::new(port, config);
                let handle = regions.register(base, shape.heap, Access::LocalAndRemote).unwrap();
                let scratch_handle = regions.register(scratch, shape.heap, Access::Local).unwrap();
                let (words, words_handle) = match shape.reach_of_words(pe) {
                    None => (base, handle),
                    Some(reach) => {
                        let words = alloc(reach);
                        let handle = regions.register(words, shape.heap, Access::LocalAndRemote);
                        (words, handle.unwrap())
                    }
                };
                Member { lane, regions, base, handle, words, words_handle, scratch, scratch_handle }
            })
            .collect();
        Self { fabric, members, heap: shapes[0].heap }
    }

    /// With lanes that order their signals.
    pub(crate) fn with_ordered_signals(mut self) -> Self {
        self.members.iter_mut().for_each(|member| member.lane.order_signals());
        self
    }

    /// Puts `len` bytes of `from`'s scratch at `offset` into `to`'s heap at `offset`.
    pub(crate) fn put(
        &mut self,
        from: u32,
        to: u32,
        offset: usize,
        len: usize,
    ) -> Result<(), EngineError> {
        self.transfer(Direction::Write, from, to, offset, len)
    }

    /// Gets `len` bytes of `to`'s heap at `offset` into `from`'s scratch at `offset`.
    pub(crate) fn get(
        &mut self,
        from: u32,
        to: u32,
        offset: usize,
        len: usize,
    ) -> Result<(), EngineError> {
        self.transfer(Direction::Read, from, to, offset, len)
    }

    fn transfer(
        &mut self,
        direction: Direction,
        from: u32,
        to: u32,
        offset: usize,
        len: usize,
    ) -> Result<(), EngineError> {
        let (remote_base, remote_handle) = self.target(to);
        let Member { lane, scratch, .. } = &mut self.members[from as usize];
        lane.start(&Request {
            direction,
            pe: Pe(to),
            remote_handle: &remote_handle,
            remote_addr: (remote_base + offset) as u64,
            local: LocalSide::Memory(*scratch + offset),
            len,
        })
    }

    /// Puts a value of `len` bytes.
    pub(crate) fn put_value(
        &mut self,
        from: u32,
        to: u32,
        offset: usize,
        value: u64,
        len: usize,
    ) -> Result<(), EngineError> {
        let (remote_base, remote_handle) = self.target(to);
        self.members[from as usize].lane.start(&Request {
            direction: Direction::Write,
            pe: Pe(to),
            remote_handle: &remote_handle,
            remote_addr: (remote_base + offset) as u64,
            local: LocalSide::Value(value),
            len,
        })
    }

    fn target(&self, pe: u32) -> (usize, HandleBytes) {
        // A PE outside the job has no member; the lane must refuse it before it uses the handle.
        let member = self.members.get(pe as usize).unwrap_or(&self.members[0]);
        (member.base, member.handle)
    }

    pub(crate) fn fence(&mut self, from: u32, to: u32) {
        self.members[from as usize].lane.fence(Pe(to)).unwrap();
    }

    pub(crate) fn quiet(&mut self, from: u32, to: u32) -> Result<(), EngineError> {
        self.members[from as usize].lane.quiet(Pe(to))
    }

    /// Fills a PE's scratch memory.
    pub(crate) fn fill_scratch(&self, pe: u32, bytes: &[u8]) {
        self.fabric.store(Pe(pe), self.members[pe as usize].scratch, bytes);
    }

    /// Iterates all lanes, none of which may fail.
    pub(crate) fn iterate(&mut self) {
        for member in &mut self.members {
            member.lane.progress().unwrap();
        }
        self.fabric.pass_time(1000);
    }

    /// Iterates these lanes, whether they have failed or not.
    pub(crate) fn iterate_some(&mut self, pes: &[u32], iterations: u32) {
        self.iterate_slowly(pes, iterations, 1000);
    }

    /// As [`Job::iterate_some`], where an iteration takes so many nanoseconds.
    pub(crate) fn iterate_slowly(&mut self, pes: &[u32], iterations: u32, nanoseconds: u64) {
        for _ in 0..iterations {
            for pe in pes {
                let _ = self.members[*pe as usize].lane.progress();
            }
            self.fabric.pass_time(nanoseconds);
        }
    }

    /// Iterates these lanes until one PE is quiet towards another, or has given it up.
    #[track_caller]
    pub(crate) fn settle(
        &mut self,
        pes: &[u32],
        (from, to): (u32, u32),
        nanoseconds: u64,
    ) -> Result<(), EngineError> {
        for _ in 0..30_000 {
            if self.members[from as usize].lane.is_quiet(Pe(to))? {
                return Ok(());
            }
            self.iterate_slowly(pes, 1, nanoseconds);
        }
        panic!("PE {from} waits for PE {to} for ever");
    }

    /// Iterates all lanes until one PE is quiet towards another.
    pub(crate) fn until_quiet(&mut self, from: u32, to: u32) {
        while !self.members[from as usize].lane.is_quiet(Pe(to)).unwrap() {
            self.iterate();
        }
    }

    /// A lane of PE 0's user threads, over one rail.
    pub(crate) fn host_lane(&self, shape: &Shape) -> HostLane<FakePort> {
        let port = self.fabric.port(Pe(0), limits(shape)[..1].to_vec());
        let paths = some_paths(shape.n_pes, 1, |_, _| true);
        let config = LaneConfig {
            kind: LaneKind::Host,
            counted: 0,
            devices: shape.has_devices(),
            ..lane_config(Pe(0), paths, self.members[0].regions.index())
        };
        HostLane::new(Lane::new(port, config))
    }

    /// A lane of PE 0's user threads, which hands over to its proxy lane what is staged.
    pub(crate) fn with_user_threads(
        mut self,
        shape: &Shape,
        patience: Option<Duration>,
    ) -> (Self, HostLane<FakePort>) {
        let (outbox, inbox) = handover(shape.n_pes, None, patience);
        let host = self.host_lane(shape).with_outbox(outbox);
        let mut first = self.members.remove(0);
        first.lane = first.lane.with_inbox(inbox);
        self.members.insert(0, first);
        (self, host)
    }

    /// Puts `len` bytes of `from`'s scratch memory to `at` in `to`'s heap, with a signal that adds
    /// one to a word.
    pub(crate) fn put_signal(
        &mut self,
        from: u32,
        to: u32,
        (at, len): (usize, usize),
        word: usize,
    ) -> Result<(), EngineError> {
        let targets = Targets::of(self);
        self.members[from as usize].put_signal(&targets, to, (at, len), word)
    }

    /// Adds one to a word of a PE.
    pub(crate) fn inc(&mut self, from: u32, to: u32, at: usize) {
        let targets = Targets::of(self);
        let inc = targets.atomic(to, at, AtomicOp::Inc, 0);
        self.members[from as usize].lane.atomic(&inc).unwrap();
    }

    /// A word of a PE.
    pub(crate) fn word(&self, pe: u32, at: usize) -> u64 {
        let bytes = self.fabric.load(Pe(pe), self.members[pe as usize].words + at, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    pub(crate) fn heap(&self, pe: u32, offset: usize, len: usize) -> Vec<u8> {
        self.fabric.load(Pe(pe), self.members[pe as usize].base + offset, len)
    }
}

/// The numbers of a seed, for choosing operations.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Spreads that cut operations of a few hundred bytes, and others.
pub(crate) fn random_spread(random: &mut Random) -> Spread {
    let from = [9, 64, 200][random.below(3)];
    match random.below(4) {
        0 => Spread::ROUND_ROBIN,
        1 => Spread { balanced_from: from, ..Spread::ROUND_ROBIN },
        _ => Spread {
            balanced_from: from,
            striped_from: [from, 300][random.below(2)],
            segment: [16, 100, 1000, 1 << 20][random.below(4)],
        },
    }
}

/// Rates of rails 0 to 3, of which some may be slow.
pub(crate) fn random_rates(random: &mut Random) -> Vec<(RailId, u64)> {
    if random.below(2) == 0 {
        return Vec::new();
    }
    (0..4).map(|rail| (RailId(rail), [1, 10, 10, 100][random.below(4)])).collect()
}
