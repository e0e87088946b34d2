//! A whole job in one thread: PEs with a heap, a proxy lane and a host lane each, on one fake
//! fabric.

use std::sync::Arc;

use engine::Watchdog;
use engine::ids::LaneKind;
use engine::lane::LaneConfig;
use engine::lane::host::HostLane;
use engine::lane::host::handover::handover;
use engine::port::{PeerAddr, RailLimits};
use engine::rails::counters::RailCounters;
use engine::rails::paths::{Path, PathTable};
use engine::regions::RegionTable;
use engine::wire::cookie::Cookie;
use sim_fabric::{FakeMemory, FakePort, SHARE, lane_config};

use crate::prelude::*;

pub(crate) type Outcome = Result<(), EngineError>;

#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) n_pes: u32,
    pub(crate) rails: u8,
    /// Connections for bulk of each rail.
    pub(crate) bulk: u8,
    pub(crate) depth: u32,
    pub(crate) max_segment: usize,
    pub(crate) needs_desc: bool,
    pub(crate) fast: bool,
    pub(crate) heap: usize,
    pub(crate) immediate_data: bool,
    pub(crate) longest_message: usize,
    /// Most counted puts to one peer.
    pub(crate) counted: u16,
    pub(crate) immediate_bytes: u8,
    pub(crate) signals: SignalChoice,
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
    /// Rails, a bit for each, that lead from a PE to every second one only.
    pub(crate) lonely: u32,
}

impl Shape {
    /// How a PE's heap (bit 0) or scratch memory (bit 1) is reached.
    fn reach(&self, pe: u32, bit: u32) -> Reach {
        let has = |set: u32| set.checked_shr(2 * pe + bit).unwrap_or(0) & 1 != 0;
        match (has(self.staged), has(self.by_fabric)) {
            (false, _) => Reach::Direct,
            (true, false) => Reach::Staged,
            (true, true) => Reach::Fabric,
        }
    }

    /// How the region of a PE's words is reached; none if they are in its heap.
    fn reach_of_words(&self, pe: u32) -> Option<Reach> {
        let kinds = [None, Some(Reach::Direct), Some(Reach::Staged), Some(Reach::Fabric)];
        kinds[self.words.checked_shr(2 * pe).unwrap_or(0) as usize & 3]
    }

    fn has_devices(&self) -> bool {
        self.staged != 0
            || (0..self.n_pes)
                .any(|pe| self.reach_of_words(pe).is_some_and(|reach| reach != Reach::Direct))
    }

    /// Paths to all PEs, with addresses of nobody where rails do not lead.
    pub(crate) fn paths(&self, me: u32) -> PathTable {
        let (mut paths, mut missing) = (Vec::new(), Vec::new());
        for (pe, rail) in (0..self.n_pes).flat_map(|pe| (0..self.rails).map(move |at| (pe, at))) {
            // Not the same rail at the other end, so that a mix-up of the two is found.
            let remote = RailId((rail + 1) % self.rails);
            let mut to = FakeFabric::address(Pe(pe), remote);
            if (me + pe) % 2 != 0 && self.lonely >> rail & 1 != 0 {
                to = PeerAddr(u64::MAX);
                missing.push((Pe(pe), RailId(rail)));
            }
            paths.push(Path { to, remote });
        }
        let table = PathTable::new(&paths, usize::from(self.rails));
        missing.into_iter().fold(table, |table, (pe, rail)| table.without(pe, rail))
    }

    pub(crate) fn limits(&self) -> Vec<RailLimits> {
        let rail = RailLimits {
            max_segment: self.max_segment,
            depth: self.depth,
            needs_desc: self.needs_desc,
            immediate_data: self.immediate_data,
            longest_message: self.longest_message,
            bulk: self.bulk,
        };
        vec![rail; usize::from(self.rails)]
    }
}

/// Two PEs with two rails, all of whose memory is the host's.
pub(crate) const PLAIN: Shape = Shape {
    n_pes: 2,
    rails: 2,
    bulk: 0,
    depth: 16,
    max_segment: 1 << 20,
    needs_desc: true,
    fast: false,
    heap: 1 << 16,
    immediate_data: true,
    longest_message: MAX_MESSAGE,
    counted: TAGS,
    immediate_bytes: 8,
    signals: SignalChoice::Auto,
    spread: Spread::ROUND_ROBIN,
    staged: 0,
    by_fabric: 0,
    words: 0,
    bounce: (1024, 2, 2),
    shared: 0,
    late: false,
    deadline: None,
    lonely: 0,
};

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
    pub(crate) fn put_signal(
        &mut self,
        targets: &Targets,
        to: u32,
        parts: &[(usize, usize)],
        word: usize,
    ) -> Outcome {
        let part = |(at, len): &(usize, usize)| targets.part(self.scratch + at, to, *at, *len);
        let parts: Vec<_> = parts.iter().map(part).collect();
        let signal = targets.atomic(to, word, AtomicOp::SignalAdd, 1);
        self.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
    }

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
    pub(crate) targets: Targets,
    pub(crate) heap: usize,
    /// PE 0's.
    shape: Shape,
}

/// Where the peers' heaps are, and their words, with the handles of both.
#[derive(Clone)]
pub(crate) struct Targets(Vec<(usize, HandleBytes)>, Vec<(usize, HandleBytes)>);

impl Targets {
    /// Of PEs whose words are in their heaps.
    #[cfg(feature = "model")]
    pub(crate) fn of(heaps: &[(usize, HandleBytes)]) -> Self {
        Self(heaps.to_vec(), heaps.to_vec())
    }

    /// Where a PE has the word that it would have at this offset of its heap.
    pub(crate) fn word(&self, pe: u32, offset: usize) -> usize {
        self.1[pe as usize].0 + offset
    }

    pub(crate) fn heap(&self, pe: u32, offset: usize) -> usize {
        self.0[pe as usize].0 + offset
    }

    pub(crate) fn atomic(&self, pe: u32, at: usize, op: AtomicOp, by: u64) -> AtomicRequest<'_> {
        let (base, handle) = &self.1[pe as usize];
        AtomicRequest {
            pe: Pe(pe),
            remote_handle: handle,
            remote_addr: (base + at) as u64,
            atomic: Atomic { op, width: Width::Eight, float: false, operand: by, compare: 0 },
            result: None,
        }
    }

    /// A fetch-and-add of one, whose word comes to a local address.
    pub(crate) fn fetch(&self, pe: u32, offset: usize, addr: usize) -> AtomicRequest<'_> {
        let result = Some(FetchTarget { addr, flag: None });
        AtomicRequest { result, ..self.atomic(pe, offset, AtomicOp::FetchAdd, 1) }
    }

    pub(crate) fn part(&self, addr: usize, pe: u32, at: usize, len: usize) -> Request<'_> {
        // A PE outside the job has no heap; the lane must refuse it before it uses the handle.
        let (base, remote_handle) = self.0.get(pe as usize).unwrap_or(&self.0[0]);
        Request {
            direction: Direction::Write,
            pe: Pe(pe),
            remote_handle,
            remote_addr: (base + at) as u64,
            local: LocalSide::Memory(addr),
            len,
        }
    }
}

/// The id of the region that a PE has registered first, as its handle has it.
pub(crate) const FIRST_REGION: u32 = 1 << 20;

pub(crate) fn cookie() -> Cookie {
    Cookie::of([SHARE])
}

/// How long user threads wait for their proxy lane.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

impl Job {
    /// A job on a fabric that behaves.
    pub(crate) fn with(shape: Shape) -> Self {
        Self::new(1, &shape, CALM)
    }

    pub(crate) fn new(seed: u64, shape: &Shape, script: Script) -> Self {
        Self::of(seed, &vec![shape.clone(); shape.n_pes as usize], script)
    }

    /// A job whose PEs are shaped differently: one shape for each that takes part. What PEs agree
    /// on, as rails, paths and how long messages are, is the same in all.
    pub(crate) fn of(seed: u64, shapes: &[Shape], script: Script) -> Self {
        let fabric = FakeFabric::new(seed, shapes[0].n_pes, script);
        let of_pe = || (0..).zip(shapes);
        let shares = |(pe, shape): &(u32, &Shape)| shape.shared.checked_shr(*pe).unwrap_or(0) & 1;
        let sharing = of_pe().filter(|of| shares(of) != 0).map(|(pe, _)| Pe(pe));
        fabric.world().sharing.extend(sharing);
        let members = of_pe()
            .map(|(pe, shape)| {
                let me = Pe(pe);
                let (bounce_len, out, inward) = shape.bounce;
                let memory = fabric.memory(me, shape.rails).with_bounce(bounce_len, out, inward);
                let regions = RegionTable::new(memory, me);
                let alloc = |reach: Reach| {
                    let at = fabric.alloc_reached(me, shape.heap + 2 * CANARY, reach);
                    for canary in [at, at + CANARY + shape.heap] {
                        fabric.store(me, canary, &[SONG; CANARY]);
                    }
                    at + CANARY
                };
                let [base, scratch] = [0, 1].map(|bit| alloc(shape.reach(pe, bit)));
                let usual = lane_config(me, shape.paths(pe), regions.directory());
                let config = LaneConfig {
                    watchdog: match shape.deadline {
                        Some(deadline) => Watchdog::new(None, Some(deadline)),
                        None => usual.watchdog,
                    },
                    signals: shape.signals,
                    counted: shape.counted,
                    immediate_bytes: shape.immediate_bytes,
                    spread: shape.spread,
                    devices: shape.has_devices() && !shape.late,
                    ..usual
                };
                let port = fabric.port(me, shape.limits()).with_fast_path(shape.fast);
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
            .collect::<Vec<Member>>();
        let targets = Targets(
            members.iter().map(|member| (member.base, member.handle)).collect(),
            members.iter().map(|member| (member.words, member.words_handle)).collect(),
        );
        Self { fabric, members, targets, heap: shapes[0].heap, shape: shapes[0].clone() }
    }

    pub(crate) fn with_ordered_signals(mut self) -> Self {
        self.members.iter_mut().for_each(|member| member.lane.order_signals());
        self
    }

    pub(crate) fn put(&mut self, from: u32, to: u32, at: usize, len: usize) -> Outcome {
        let Member { lane, scratch, .. } = &mut self.members[from as usize];
        lane.start(&self.targets.part(*scratch + at, to, at, len))
    }

    pub(crate) fn get(&mut self, from: u32, to: u32, at: usize, len: usize) -> Outcome {
        let Member { lane, scratch, .. } = &mut self.members[from as usize];
        let part = self.targets.part(*scratch + at, to, at, len);
        lane.start(&Request { direction: Direction::Read, ..part })
    }

    pub(crate) fn put_value(&mut self, from: u32, to: u32, at: usize, value: u64) -> Outcome {
        let part = self.targets.part(0, to, at, 8);
        let put = Request { local: LocalSide::Value(value), ..part };
        self.members[from as usize].lane.start(&put)
    }

    pub(crate) fn amo(&mut self, from: u32, to: u32, at: usize, op: AtomicOp, by: u64) -> Outcome {
        self.members[from as usize].lane.atomic(&self.targets.atomic(to, at, op, by))
    }

    /// Fetches a word and adds one to it; the word before comes to `at` of the scratch memory.
    pub(crate) fn fetch(&mut self, from: u32, to: u32, at: usize) -> Outcome {
        let Member { lane, scratch, .. } = &mut self.members[from as usize];
        lane.atomic(&self.targets.fetch(to, at, *scratch + at))
    }

    pub(crate) fn lane(&mut self, pe: u32) -> &mut Lane<FakePort> {
        &mut self.members[pe as usize].lane
    }

    pub(crate) fn release_heap(&self, pe: u32) {
        let Member { regions, handle, .. } = &self.members[pe as usize];
        regions.release(handle).unwrap();
    }

    pub(crate) fn in_batch<T>(&mut self, begin: impl FnOnce(&mut Self) -> T) -> (Batch, T) {
        let batch = self.lane(0).begin_batch().unwrap();
        self.lane(0).enter_batch(batch);
        let begun = begin(self);
        self.lane(0).enter_batch(Batch::NONE);
        (batch, begun)
    }

    pub(crate) fn fence(&mut self, from: u32, to: u32) {
        self.lane(from).fence(Pe(to)).unwrap();
    }

    pub(crate) fn quiet(&mut self, from: u32, to: u32) -> Outcome {
        self.lane(from).quiet(Pe(to))
    }

    pub(crate) fn is_quiet(&mut self, from: u32, to: u32) -> Result<bool, EngineError> {
        self.lane(from).is_quiet(Pe(to))
    }

    pub(crate) fn fill_scratch(&self, pe: u32, bytes: &[u8]) {
        self.fabric.store(Pe(pe), self.members[pe as usize].scratch, bytes);
    }

    pub(crate) fn iterate(&mut self) {
        for member in &mut self.members {
            member.lane.progress().unwrap();
        }
        self.fabric.pass_time(1000);
    }

    #[track_caller]
    pub(crate) fn progress(&mut self, pe: u32, times: u32) {
        for _ in 0..times {
            self.lane(pe).progress().unwrap();
        }
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
    pub(crate) fn settle(&mut self, pes: &[u32], (from, to): (u32, u32), step: u64) -> Outcome {
        for _ in 0..30_000 {
            if self.is_quiet(from, to)? {
                return Ok(());
            }
            self.iterate_slowly(pes, 1, step);
        }
        panic!("PE {from} waits for PE {to} for ever");
    }

    pub(crate) fn until_quiet(&mut self, from: u32, to: u32) {
        while !self.is_quiet(from, to).unwrap() {
            self.iterate();
        }
    }

    /// Iterates these lanes, none of which may fail, until it is so.
    #[track_caller]
    pub(crate) fn progress_until(&mut self, pes: &[u32], mut done: impl FnMut(&mut Job) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            for pe in pes {
                self.lane(*pe).progress().unwrap();
            }
        }
        panic!("it does not come to that");
    }

    /// A lane of PE 0's user threads, over one rail.
    pub(crate) fn host_lane(&self) -> HostLane<FakePort> {
        HostLane::new(self.user_lane())
    }

    pub(crate) fn user_lane(&self) -> Lane<FakePort> {
        let shape = Shape { rails: 1, lonely: 0, ..self.shape.clone() };
        let port = self.fabric.port(Pe(0), shape.limits());
        let config = LaneConfig {
            kind: LaneKind::Host,
            counted: 0,
            devices: shape.has_devices(),
            ..lane_config(Pe(0), shape.paths(0), self.members[0].regions.directory())
        };
        Lane::new(port, config)
    }

    /// A lane of PE 0's user threads, which hands over to its proxy lane what is staged.
    pub(crate) fn with_user_threads(
        mut self,
        patience: Option<Duration>,
    ) -> (Self, HostLane<FakePort>) {
        let (outbox, inbox) = handover(self.shape.n_pes, None, patience);
        let host = self.host_lane().with_outbox(outbox);
        let mut first = self.members.remove(0);
        first.lane = first.lane.with_inbox(inbox);
        self.members.insert(0, first);
        (self, host)
    }

    /// Puts parts, each with an offset and a length, of `from`'s scratch memory to the same places
    /// of `to`'s heap, with a signal that adds one to a word.
    pub(crate) fn put_signal(
        &mut self,
        from: u32,
        to: u32,
        parts: &[(usize, usize)],
        word: usize,
    ) -> Outcome {
        self.members[from as usize].put_signal(&self.targets, to, parts, word)
    }

    pub(crate) fn inc(&mut self, from: u32, to: u32, at: usize) {
        self.amo(from, to, at, AtomicOp::Inc, 0).unwrap();
    }

    pub(crate) fn word(&self, pe: u32, at: usize) -> u64 {
        let bytes = self.fabric.load(Pe(pe), self.members[pe as usize].words + at, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    pub(crate) fn heap(&self, pe: u32, offset: usize, len: usize) -> Vec<u8> {
        self.fabric.load(Pe(pe), self.members[pe as usize].base + offset, len)
    }

    pub(crate) fn scratch(&self, pe: u32, offset: usize, len: usize) -> Vec<u8> {
        self.fabric.load(Pe(pe), self.members[pe as usize].scratch + offset, len)
    }

    pub(crate) fn counted(&self, pe: u32, of: impl Fn(&RailCounters) -> u64) -> u64 {
        self.members[pe as usize].lane.counters().map(|rail| of(&rail)).sum()
    }

    /// Operations and messages that a PE has posted since calls are traced.
    pub(crate) fn posts(&self, pe: u32) -> usize {
        let calls = self.fabric.calls();
        calls.iter().filter(|call| matches!(call, Call::Post(of, _) if of.0 == pe)).count()
    }

    /// Calls with copies that a PE has made since calls are traced.
    pub(crate) fn copies(&self, pe: u32) -> usize {
        self.fabric.calls().iter().filter(|call| **call == Call::Copy(Pe(pe))).count()
    }
}
