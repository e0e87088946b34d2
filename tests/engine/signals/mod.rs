//! Signals and atomics on the fake: several lanes at once, every engine, every misbehaviour.

mod atomics;
mod counted;
mod forged;
mod long;
mod own;
mod race;
mod separate;
mod ways;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::channel::counts::TAGS;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::port::Direction;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::request::{AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request};
use engine::wire::handle::HandleBytes;
use sim_fabric::{Event, Script};

pub(crate) use self::race::{race, race_with};
use crate::job::{Job, Member, Random, Shape, random_lonely, random_rates, random_spread};

/// Where the peers' heaps are, and their words.
pub(crate) struct Targets(pub(crate) Vec<(usize, HandleBytes)>, Vec<(usize, HandleBytes)>);

impl Targets {
    pub(crate) fn of(job: &Job) -> Self {
        let of =
            |place: fn(&Member) -> (usize, HandleBytes)| job.members.iter().map(place).collect();
        Self(
            of(|member| (member.base, member.handle)),
            of(|member| (member.words, member.words_handle)),
        )
    }

    /// Where a PE has the word that it would have at this offset of its heap.
    pub(crate) fn word(&self, pe: u32, offset: usize) -> usize {
        self.1[pe as usize].0 + offset
    }

    /// As [`Targets::part`], of the memory that the PE has its words in.
    pub(crate) fn part_beside<'a>(
        &'a self,
        local: usize,
        pe: u32,
        offset: usize,
        len: usize,
    ) -> Request<'a> {
        let (base, remote_handle) = &self.1[pe as usize];
        let remote_addr = (base + offset) as u64;
        Request { remote_handle, remote_addr, ..self.part(local, pe, offset, len) }
    }

    pub(crate) fn atomic(
        &self,
        pe: u32,
        offset: usize,
        op: AtomicOp,
        operand: u64,
    ) -> AtomicRequest<'_> {
        let (base, handle) = &self.1[pe as usize];
        let width = Width::Eight;
        AtomicRequest {
            pe: Pe(pe),
            remote_handle: handle,
            remote_addr: (base + offset) as u64,
            atomic: Atomic { op, width, float: false, operand, compare: 0 },
            result: None,
        }
    }

    /// A fetch-and-add of one, whose word comes to a local address.
    pub(crate) fn fetch(&self, pe: u32, offset: usize, addr: usize) -> AtomicRequest<'_> {
        let result = Some(FetchTarget { addr, flag: None });
        AtomicRequest { result, ..self.atomic(pe, offset, AtomicOp::FetchAdd, 1) }
    }

    /// A write of `len` bytes at a local address.
    pub(crate) fn part<'a>(
        &'a self,
        addr: usize,
        pe: u32,
        offset: usize,
        len: usize,
    ) -> Request<'a> {
        let (base, remote_handle) = &self.0[pe as usize];
        Request {
            direction: Direction::Write,
            pe: Pe(pe),
            remote_handle,
            remote_addr: (base + offset) as u64,
            local: LocalSide::Memory(addr),
            len,
        }
    }
}

pub(crate) fn random_shape(random: &mut Random) -> Shape {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    let rails = 1 + random.below(4) as u8;
    Shape {
        n_pes: 2 + random.below(3) as u32,
        rails,
        lonely: random_lonely(random, rails),
        depth: [1, 1, 2, 3, 16][random.below(5)],
        max_segment: [64, 1000, 1 << 20][random.below(3)],
        needs_desc: random.below(2) == 0,
        fast: random.below(4) != 0,
        heap: 1 << 17,
        signals: [Auto, Chained, Auto, Eager, Counted, Counted][random.below(6)],
        // One, so that every put uses the same slot; or all.
        counted: [1, 2, TAGS][random.below(3)],
        immediate_data: random.below(8) != 0,
        immediate_bytes: [4, 8][random.below(2)],
        staged: [0, 0, u32::MAX, random.below(1 << 8) as u32][random.below(4)],
        by_fabric: [0, random.below(1 << 8) as u32][random.below(2)],
        bounce: ([64, 100, 1024, 1 << 16][random.below(4)], 1 + random.below(3) as u16, 1),
        shared: [0, u32::MAX, random.below(16) as u32][random.below(3)],
        spread: random_spread(random),
        longest_message: [MAX_MESSAGE, MAX_MESSAGE, 300, MAX_LONG_MESSAGE][random.below(4)],
        late: random.below(2) == 0,
        ..Shape::default()
    }
}

pub(crate) fn random_script(random: &mut Random) -> Script {
    Script {
        again_percent: [0, 0, 20, 90][random.below(4)],
        delay: [(1, 1), (1_000, 100_000), (1, 10_000_000)][random.below(3)],
        slow_rails: if random.below(3) == 0 { vec![(RailId(0), 50)] } else { Vec::new() },
        rates: random_rates(random),
        duplicate_percent: [0, 0, 50][random.below(3)],
        shared_queue: random.below(2) == 0,
        stragglers: [(0, 0), (0, 0), (5, 20_000_000)][random.below(3)],
        connecting: [(0, 0), (0, 0), (1, 5_000_000)][random.below(3)],
        is_virtual: random.below(2) == 0,
        takes_lists: random.below(2) == 0,
    }
}

/// Rail 0 is a thousand times slower. Some data goes there, some does not.
#[test]
fn slow_rail_delays_only_its_signals() {
    // With two rails all counted data would take the one, and all signals the other.
    for (signals, rails, len) in [(SignalEngine::Chained, 2, 512), (SignalEngine::Counted, 3, 60)] {
        let shape = Shape { signals, rails, ..Shape::default() };
        let slow_rails = vec![(RailId(0), 1000)];
        let script = Script { delay: (1_000, 1_000), slow_rails, ..Script::default() };
        let mut job = Job::new(1, &shape, script);
        let base = job.members[1].base;
        for at in (0..8).map(|number| number * 1024) {
            job.put_signal(0, 1, (at + 64, len), at).unwrap();
        }
        job.until_quiet(0, 1);
        let applied = |event: &Event| match event {
            Event::Applied { pe: Pe(1), addr } => Some((addr - base) / 1024),
            _ => None,
        };
        let mut order: Vec<usize> = job.fabric.events().iter().filter_map(applied).collect();
        assert!(!order.is_sorted(), "{signals:?}: the fast ones overtake the slow ones: {order:?}");
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

#[test]
fn fenced_operations_leave_without_quiet() {
    // The sender only makes progress after its last call, as a proxy thread does whose GPU waits.
    for again_percent in [0, 90] {
        let script = Script { again_percent, ..Script::default() };
        let mut job = Job::new(7, &Shape::default(), script);
        let targets = Targets::of(&job);
        let add = targets.atomic(1, 0, AtomicOp::Add, 5);
        job.members[0].lane.atomic(&add).unwrap();
        job.fence(0, 1);
        job.put_value(0, 1, 8, 1, 8).unwrap();
        job.fence(0, 1);
        job.members[0].lane.atomic(&add).unwrap();
        job.fence(0, 1);
        job.put_value(0, 1, 16, 1, 8).unwrap();
        for _ in 0..100_000 {
            job.iterate();
        }
        assert_eq!(job.heap(1, 0, 8), 10u64.to_le_bytes());
        assert_eq!(job.heap(1, 8, 16), [1u64.to_le_bytes(); 2].concat());
    }
}

/// A signal that nobody waits for is not taken for one that is stuck.
#[test]
fn unawaited_signal_is_acknowledged() {
    let mut job = Job::new(7, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let add = targets.atomic(1, 0, AtomicOp::Add, 5);
    job.members[0].lane.atomic(&add).unwrap();
    // Twice the time after which the watchdog gives up.
    while job.fabric.now() < 120_000_000_000 {
        job.iterate();
        job.fabric.pass_time(1_000_000);
    }
    assert!(!job.members[0].lane.has_work(), "it was acknowledged");
}

/// A handle says whose region it is. With another PE's, an operation would go to whatever has the
/// same key there.
#[test]
fn handles_of_other_pes_are_refused() {
    for fast in [false, true] {
        let mut job = Job::new(5, &Shape { n_pes: 3, fast, ..Shape::default() }, Script::default());
        let targets = Targets::of(&job);
        let scratch = job.members[0].scratch;
        let lane = &mut job.members[0].lane;
        // So that there is a channel, and the fast path is taken.
        lane.atomic(&targets.atomic(2, 0, AtomicOp::Inc, 0)).unwrap();
        let astray = |refused: Result<(), EngineError>| {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("of a region of PE 1, not of PE 2"), "{why}");
        };
        let put = Request { pe: Pe(2), ..targets.part(scratch, 1, 8, 8) };
        let word = AtomicRequest { pe: Pe(2), ..targets.atomic(1, 8, AtomicOp::Inc, 0) };
        let signal = targets.atomic(2, 8, AtomicOp::SignalSet, 1);
        astray(lane.start(&put));
        astray(lane.start(&Request { direction: Direction::Read, ..put }));
        astray(lane.atomic(&word));
        astray(lane.put_signal(&PutSignalRequest { parts: &[put], signal }));
        astray(lane.put_signal(&PutSignalRequest { parts: &[put, put], signal }));
        let own_put = targets.part(scratch, 2, 8, 8);
        astray(lane.put_signal(&PutSignalRequest { parts: &[own_put], signal: word }));
        let foreign = job.members[0].regions.release(&targets.0[1].1).unwrap_err().to_string();
        assert!(foreign.contains("PE 1, not of PE 0"), "{foreign}");
        job.until_quiet(0, 2);
        assert_eq!(job.heap(2, 8, 8), [0; 8], "nothing of it has arrived");
    }
}

/// Lengths whose sum is beyond all addresses do not add up to nothing, when the signal would be
/// sent alone.
#[test]
fn overlong_data_holds_its_signal() {
    let mut job = Job::new(5, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let scratch = job.members[0].scratch;
    let part = |len| targets.part(scratch, 1, 0, len);
    let signal = targets.atomic(1, 64, AtomicOp::SignalSet, 5);
    for lens in [[8, usize::MAX - 7], [usize::MAX, 1], [usize::MAX, usize::MAX]] {
        let parts = lens.map(part);
        let refused = job.members[0].lane.put_signal(&PutSignalRequest { parts: &parts, signal });
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("not inside the region"), "{why}");
    }
    for _ in 0..100 {
        job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
        job.fabric.pass_time(100_000);
    }
    assert_eq!(job.heap(1, 64, 8), [0; 8]);
}

#[test]
fn bad_atomics_are_refused() {
    let mut job = Job::new(5, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let heap = job.heap;
    let mut refused = |request: &AtomicRequest<'_>, part: &str| {
        let error = job.members[0].lane.atomic(request).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&AtomicRequest { pe: Pe(2), ..targets.atomic(1, 0, AtomicOp::Inc, 0) }, "PE 2");
    refused(&targets.atomic(1, heap - 7, AtomicOp::Inc, 0), "not inside the region");
    refused(&targets.atomic(1, 4, AtomicOp::Inc, 0), "not aligned");
    let damaged = [7; 512];
    let request =
        AtomicRequest { remote_handle: &damaged, ..targets.atomic(1, 0, AtomicOp::Inc, 0) };
    refused(&request, "not made by this transport");
    assert!(!job.members[0].lane.has_work());
}
