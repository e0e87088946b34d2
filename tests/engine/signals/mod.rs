//! Signals and atomics on the fake: several lanes at once, every engine, every misbehaviour.

mod atomics;
mod counted;
mod forged;
mod long;
mod own;
mod race;
mod separate;
mod ways;

use std::collections::HashMap;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::channel::counts::TAGS;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::port::Direction;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::request::{AtomicRequest, PutSignalRequest, ResultPlace};
use engine::request::{LocalSide, Request};
use engine::wire::handle::HandleBytes;
use sim_fabric::{Event, Script};
use test_support::seeds::for_seeds;

pub(crate) use self::race::{race, race_with};
use crate::job::{
    Job, Member, Random, Shape, random_lonely, random_rates, random_spread, random_words,
};

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

    /// The events, with those in the memory of words where they would be in the heaps.
    pub(crate) fn in_heaps(&self, heap: usize, events: Vec<Event>) -> Vec<Event> {
        let place = |pe: Pe, addr| {
            let (words, base) = (self.1[pe.index()].0, self.0[pe.index()].0);
            if (words..words + heap).contains(&addr) { addr - words + base } else { addr }
        };
        let place = |event| match event {
            Event::Applied { pe, addr } => Event::Applied { pe, addr: place(pe, addr) },
            Event::Copied { pe, addr, len } => Event::Copied { pe, addr: place(pe, addr), len },
            // By its offset.
            Event::Delivered(delivery) => Event::Delivered(delivery),
        };
        events.into_iter().map(place).collect()
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
        bulk: 0,
        n_pes: 2 + random.below(3) as u32,
        present: 0,
        rails,
        lonely: random_lonely(random, rails),
        depth: [1, 1, 2, 3, 16][random.below(5)],
        max_segment: [64, 1000, 1 << 20][random.below(3)],
        needs_desc: random.below(2) == 0,
        fast: random.below(4) != 0,
        heap: 1 << 17,
        signals: {
            // Drawn for nothing, so that what is drawn after it stays as it was.
            random.below(2);
            [Auto, Chained, Auto, Eager, Counted, Counted][random.below(6)]
        },
        // One, so that every put uses the same slot; or all.
        counted: [1, 2, TAGS][random.below(3)],
        immediate_data: random.below(8) != 0,
        // Not drawn, so that what is drawn after it stays as it was.
        mark_bytes: [4, 8][random.0 as usize % 2],
        staged: {
            // Drawn for nothing, as above.
            random.below(3);
            [0, 0, u32::MAX, random.below(1 << 8) as u32][random.below(4)]
        },
        by_fabric: [0, random.below(1 << 8) as u32][random.below(2)],
        words: 0,
        bounce: ([64, 100, 1024, 1 << 16][random.below(4)], 1 + random.below(3) as u16, 1),
        // Not drawn, so that what is drawn after it stays as it was.
        shared: [0, u32::MAX, (random.0 >> 40) as u32 & 0xf][(random.0 >> 32) as usize % 3],
        spread: random_spread(random),
        // Not drawn, so that what is drawn after it stays as it was.
        longest_message: [MAX_MESSAGE, MAX_MESSAGE, 300, MAX_LONG_MESSAGE][random.0 as usize % 4],
        late: random.0 >> 16 & 1 == 0,
        deadline: None,
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

/// Each put_signal has places and a signal word of its own, so the log says what came first.
#[test]
fn no_signal_comes_before_its_data() {
    const EACH: usize = 24;
    for_seeds("no_signal_comes_before_its_data", &[], 150, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 3);
        let shape = Shape { words: random_words(seed), ..random_shape(&mut random) };
        let n = shape.n_pes;
        let job = Job::new(seed, &shape, random_script(&mut random));
        let targets = Targets::of(&job);
        for pe in 0..n {
            let bytes: Vec<u8> =
                (0..shape.heap).map(|at| (at * 7 + pe as usize) as u8 | 1).collect();
            job.fill_scratch(pe, &bytes);
        }
        // A slot of 1 KiB per (sender, number): words first, then data.
        let slot = |sender: u32, number: usize| (sender as usize * EACH + number) * 1024;
        let plan = |sender: u32, number: usize| {
            let mut random = Random(seed ^ (u64::from(sender) << 32) ^ (number as u64 + 1) << 8);
            for _ in 0..3 {
                random.below(2);
            }
            let to = random.below(n as usize) as u32;
            let parts: Vec<(usize, usize)> = (0..random.below(4))
                .map(|part| {
                    (64 + part * 256 + random.below(9), [1, 8, 60, 200, 240][random.below(5)])
                })
                .collect();
            (to, parts)
        };
        let bases: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        // Some parts go where the words are.
        let is_beside = |number: usize, part: usize| (number + part) % 3 == 0;
        let fences = random.below(3) == 0;
        let (fabric, _) = race(job, seed, |me, member, targets| {
            for number in 0..EACH {
                let (to, parts) = plan(me, number);
                let at = slot(me, number);
                let request = |(part, (offset, len)): (usize, &(usize, usize))| {
                    let local = member.scratch + at + offset;
                    match is_beside(number, part) {
                        true => targets.part_beside(local, to, at + offset, *len),
                        false => targets.part(local, to, at + offset, *len),
                    }
                };
                let requests: Vec<Request<'_>> = parts.iter().enumerate().map(request).collect();
                let signal = targets.atomic(to, at, AtomicOp::SignalAdd, 1);
                let request = PutSignalRequest { parts: &requests, signal };
                member.lane.put_signal(&request)?;
                if fences && number % 5 == 0 {
                    member.lane.fence(Pe(to))?;
                }
            }
            (0..n).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
        // Place of each address in the log.
        let events = targets.in_heaps(shape.heap, fabric.events());
        let mut applied: HashMap<(Pe, usize), Vec<usize>> = HashMap::new();
        let mut delivered: Vec<(Pe, usize, usize, usize)> = Vec::new();
        for (place, event) in events.iter().enumerate() {
            match event {
                Event::Applied { pe, addr } => applied.entry((*pe, *addr)).or_default().push(place),
                // Reads change memory of their sender, which none of this is about.
                Event::Delivered(d) if d.direction == Direction::Read => {}
                Event::Delivered(d) => {
                    delivered.push((d.to, bases[d.to.index()] + d.remote as usize, d.len, place));
                }
                Event::Copied { pe, addr, len } => delivered.push((*pe, *addr, *len, place)),
            }
        }
        for sender in 0..n {
            for number in 0..EACH {
                let (to, parts) = plan(sender, number);
                let at = bases[to as usize] + slot(sender, number);
                let signals = &applied[&(Pe(to), at)];
                assert_eq!(signals.len(), 1, "the signal was applied once");
                for (part, (offset, len)) in parts.into_iter().enumerate() {
                    // By the fabric, or by the target out of an eager message.
                    let last = delivered
                        .iter()
                        .filter(|(pe, addr, _, _)| {
                            *pe == Pe(to) && (at + offset..at + offset + len).contains(addr)
                        })
                        .map(|(_, _, _, place)| *place)
                        .chain(applied.get(&(Pe(to), at + offset)).into_iter().flatten().copied())
                        .max();
                    assert!(last.is_some_and(|last| last < signals[0]), "signal before data");
                    let is_beside = is_beside(number, part);
                    let memory = if is_beside { targets.word(to, 0) } else { bases[to as usize] };
                    let found = fabric.load(Pe(to), memory + slot(sender, number) + offset, len);
                    let from = slot(sender, number) + offset;
                    let expected: Vec<u8> =
                        (from..from + len).map(|at| (at * 7 + sender as usize) as u8 | 1).collect();
                    assert_eq!(found, expected);
                }
            }
        }
    });
}

/// Everybody adds to everybody's words, and fetches; totals are exact and no request id is given
/// twice.
#[test]
fn atomics_are_exact_under_contention() {
    const EACH: u64 = 40;
    for_seeds("atomics_are_exact_under_contention", &[], 150, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 11);
        let shape = Shape { words: random_words(seed), ..random_shape(&mut random) };
        let n = shape.n_pes;
        let job = Job::new(seed, &shape, random_script(&mut random));
        let bases: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        let targets = Targets::of(&job);
        let (fabric, members) = race(job, seed, |me, member, targets| {
            for round in 0..EACH {
                for pe in 0..n {
                    let mut add = targets.atomic(pe, 0, AtomicOp::Add, u64::from(me) + 1);
                    member.lane.atomic(&add)?;
                    add = targets.atomic(pe, 8, AtomicOp::Inc, 0);
                    add.atomic.width = Width::Four;
                    member.lane.atomic(&add)?;
                    if round % 4 == 0 {
                        let mut take = targets.atomic(pe, 16, AtomicOp::FetchInc, 1);
                        // Into the part of the own heap that nobody else writes to.
                        let place = (round / 4 * u64::from(n) + u64::from(pe)) as usize;
                        let addr = member.base + 4096 + place * 16;
                        take.result = Some(ResultPlace { addr, flag: Some(round + 1) });
                        member.lane.atomic(&take)?;
                    }
                }
                if round % 16 == 3 {
                    member.lane.fence(Pe(0))?;
                }
            }
            (0..n).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
        let load = |pe: u32, addr: usize| {
            u64::from_le_bytes(fabric.load(Pe(pe), addr, 8).try_into().unwrap())
        };
        let word = |pe: u32, at: usize| load(pe, targets.word(pe, at));
        let fetched = |pe: u32, at: usize| load(pe, bases[pe as usize] + at);
        let mut request_ids: HashMap<u32, Vec<u64>> = HashMap::new();
        for pe in 0..n {
            assert_eq!(word(pe, 0), EACH * u64::from(n * (n + 1) / 2));
            assert_eq!(word(pe, 8), EACH * u64::from(n));
            for me in 0..n {
                for round in 0..EACH / 4 {
                    let place = 4096 + (round * u64::from(n) + u64::from(pe)) as usize * 16;
                    assert_eq!(fetched(me, place + 8), round * 4 + 1, "the flag of a fetch");
                    request_ids.entry(pe).or_default().push(fetched(me, place));
                }
            }
        }
        for taken in request_ids.values_mut() {
            taken.sort_unstable();
            assert_eq!(*taken, (0..EACH / 4 * u64::from(n)).collect::<Vec<_>>());
        }
        assert!(members.iter().all(|member| !member.lane.has_work()));
    });
}

/// Puts, atomics and put_signals behind a fence come after everything before it.
#[test]
fn fences_order_puts_signals_and_atomics() {
    for_seeds("fences_order_puts_signals_and_atomics", &[], 150, |seed| {
        let mut random = Random(seed * 0x0bad_cafe + 5);
        let words = random_words(seed);
        let shape = Shape { n_pes: 2, words, ..random_shape(&mut random) };
        let job = Job::new(seed, &shape, random_script(&mut random));
        let (base, targets) = (job.members[1].base, Targets::of(&job));
        let plan: Vec<usize> = (0..60).map(|_| random.below(6)).collect();
        let (fabric, _) = race(job, seed, |me, member, targets| {
            if me == 1 {
                return Ok(());
            }
            let local = member.scratch;
            for (number, kind) in plan.iter().enumerate() {
                let at = number * 512;
                match kind {
                    0 | 1 => member.lane.fence(Pe(1))?,
                    2 => member.lane.start(&targets.part(local, 1, at, 300))?,
                    3 => member.lane.atomic(&targets.atomic(1, at, AtomicOp::Set, 1))?,
                    4 => member.lane.start(&targets.part(local, 1, at, 8))?,
                    _ => {
                        let parts = [targets.part(local, 1, at + 8, 100)];
                        let signal = targets.atomic(1, at, AtomicOp::SignalSet, 1);
                        member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })?;
                    }
                }
            }
            member.lane.quiet(Pe(1))
        });
        let mut epoch = 0;
        let epochs: Vec<usize> = plan
            .iter()
            .map(|kind| {
                epoch += usize::from(*kind < 2);
                epoch
            })
            .collect();
        let mut seen = Vec::new();
        for event in targets.in_heaps(shape.heap, fabric.events()) {
            let addr = match event {
                Event::Applied { pe: Pe(1), addr } | Event::Copied { pe: Pe(1), addr, .. } => addr,
                Event::Delivered(d) if d.to == Pe(1) && d.direction == Direction::Write => {
                    base + d.remote as usize
                }
                _ => continue,
            };
            seen.push(epochs[(addr - base) / 512]);
        }
        assert!(seen.is_sorted(), "epochs in order of arrival: {seen:?}");
    });
}

#[test]
fn a_stuck_signal_does_not_delay_another() {
    // Rail 0 is a thousand times slower. The first put goes there, the second does not.
    let shape = Shape { signals: SignalEngine::Chained, heap: 1 << 16, ..Shape::default() };
    let slow_rails = vec![(RailId(0), 1000)];
    let script = Script { delay: (1_000, 1_000), slow_rails, ..Script::default() };
    let job = Job::new(1, &shape, script);
    let base = job.members[1].base;
    let (fabric, _) = race(job, 1, |me, member, targets| {
        if me == 1 {
            return Ok(());
        }
        for number in 0..4 {
            let at = number * 1024;
            let parts = [targets.part(member.scratch, 1, at + 64, 512)];
            let signal = targets.atomic(1, at, AtomicOp::SignalSet, 1);
            member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })?;
        }
        member.lane.quiet(Pe(1))
    });
    let order: Vec<usize> = fabric
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Applied { pe: Pe(1), addr } => Some((addr - base) / 1024),
            _ => None,
        })
        .collect();
    assert_eq!(order.len(), 4);
    assert_ne!(order, [0, 1, 2, 3], "the fast ones overtake the slow ones");
}

#[test]
fn what_a_fence_holds_behind_atomics_leaves_without_a_quiet() {
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
            for member in &mut job.members {
                member.lane.progress().unwrap();
            }
        }
        assert_eq!(job.heap(1, 0, 8), 10u64.to_le_bytes());
        assert_eq!(job.heap(1, 8, 16), [1u64.to_le_bytes(); 2].concat());
    }
}

/// A signal that nobody waits for is not taken for one that is stuck.
#[test]
fn nobody_needs_to_wait_for_a_signal() {
    let mut job = Job::new(7, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let add = targets.atomic(1, 0, AtomicOp::Add, 5);
    job.members[0].lane.atomic(&add).unwrap();
    // Twice the time after which the watchdog gives up.
    while job.fabric.now() < 120_000_000_000 {
        for member in &mut job.members {
            member.lane.progress().unwrap();
        }
        job.fabric.pass_time(1_000_000);
    }
    assert!(!job.members[0].lane.has_work(), "it was acknowledged");
}

#[test]
fn more_messages_than_any_window_go_through_a_depth_of_one() {
    let shape = Shape { depth: 1, rails: 1, ..Shape::default() };
    let job = Job::new(2, &shape, Script { duplicate_percent: 10, ..Script::default() });
    let base = job.members[1].base;
    let (fabric, _) = race(job, 2, |me, member, targets| {
        for _ in 0..if me == 0 { 3000 } else { 2500 } {
            member.lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0))?;
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base, 8), 5500u64.to_le_bytes());
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
        while !job.members[0].lane.is_quiet(Pe(2)).unwrap() {
            job.members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
        }
        assert_eq!(job.heap(2, 8, 8), [0; 8], "nothing of it has arrived");
    }
}

/// Lengths whose sum is beyond all addresses do not add up to nothing, when the signal would be
/// sent alone.
#[test]
fn a_signal_is_not_sent_without_data_that_is_too_long() {
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

#[test]
fn a_dead_receiver_of_atomics_ends_in_a_timeout() {
    // PE 1 never makes progress: its messages are delivered, and never acknowledged.
    let mut job = Job::new(6, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
    let error = job.members[0].lane.quiet(Pe(1)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("PE 1") && text.contains("not acknowledged"), "{text}");
}
