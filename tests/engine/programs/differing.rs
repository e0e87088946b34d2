//! Random programs over PEs that differ from one another: in the kinds of their memory, in their
//! limits, in who sees whose bounce memory; with regions, overlapping ones too, that come and go
//! beside the traffic.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::copies::Reach;
use engine::port::{Access, Direction};
use engine::request::{AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request};
use engine::wire::handle::HandleBytes;
use sim_fabric::FakeFabric;
use test_support::seeds::for_seeds;

use super::{PATIENCE, script};
use crate::job::{Job, Member, Random, Shape, random_words};
use crate::signals::{race_with, random_shape};

/// An eighth of each memory of a PE.
///
/// Of the heap, the first four are for puts of one sender each, the fifth never changes, the sixth
/// and seventh have the data of signals, and the words are at the offset of the eighth. Of the
/// local memory, the first half never changes, and into the second half bytes are fetched.
const PART: usize = 4096;
const HEAP: usize = 8 * PART;
const STEADY: usize = 4 * PART;
const SIGNALLED: usize = 5 * PART;
const SIGNALLED_LONG: usize = 6 * PART;
const WORDS: usize = 7 * PART;
const LANDING: usize = 4 * PART;

const SUMS: usize = 8;
const FETCHES: usize = WORDS + 8 * SUMS;
const SIGNALS: usize = FETCHES + 8 * 4;

const EACH: usize = 16;

fn steady(pe: u32, at: usize) -> u8 {
    (pe as usize * 89 + at * 37 + (at >> 8) * 11 + 3) as u8
}

fn bytes_of(pe: u32, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| steady(pe, at)).collect()
}

/// A region of a PE: where it begins, its length, and what names it.
type Region = (usize, usize, HandleBytes);

#[derive(Clone)]
struct Known {
    heap: usize,
    words: usize,
    regions: Vec<Region>,
}

/// Data of a signal, by its sender, target and number: where it is from in the sender's steady
/// local memory, where it goes in the heap, and its length.
fn signalled(seed: u64, from: u32, to: u32, number: usize) -> (usize, usize, usize) {
    let mut random = Random(seed ^ u64::from(from * 64 + to * 16 + number as u32 + 1) << 24 | 1);
    random.below(2);
    let (place, most) = match number + 1 == EACH {
        true => (SIGNALLED_LONG + 1024 * from as usize, 1024),
        false => (SIGNALLED + 1024 * from as usize + 64 * number, 64),
    };
    let len = 1 + random.below(most);
    (random.below(LANDING - len), place, len)
}

struct Program<'a> {
    me: u32,
    member: &'a mut Member,
    known: &'a [Known],
    fabric: &'a FakeFabric,
    seed: u64,
    random: Random,
    /// Memory that is registered with nobody, of which the first half is steady.
    loose: Vec<usize>,
    extra: Vec<Region>,
    /// By PE: where the next put goes, and what its part of that heap holds.
    ends: Vec<usize>,
    mirrors: Vec<Vec<u8>>,
    /// Where bytes are fetched to next, in each memory.
    landing: Vec<usize>,
    /// What is being fetched: from whom, to where, and what it is.
    fetched: Vec<(u32, usize, Vec<u8>)>,
    /// By PE: how many fetching additions have ended, and where the results of others come, and
    /// their flags.
    added: Vec<u64>,
    results: Vec<(u32, usize, Option<u64>)>,
    /// By PE: how many signals were sent.
    signals: Vec<usize>,
    /// By PE and word: what was added.
    sums: Vec<[u64; SUMS]>,
}

impl<'a> Program<'a> {
    /// A handle of some region that holds these bytes of a PE.
    fn handle(&mut self, pe: u32, addr: usize, len: usize) -> &'a HandleBytes {
        let holds = |(base, size, _): &&Region| *base <= addr && addr + len <= base + size;
        let regions: Vec<&Region> = self.known[pe as usize].regions.iter().filter(holds).collect();
        &regions[self.random.below(regions.len())].2
    }

    fn request(
        &mut self,
        direction: Direction,
        to: u32,
        at: usize,
        (local, len): (usize, usize),
    ) -> Request<'a> {
        let remote = self.known[to as usize].heap + at;
        Request {
            direction,
            pe: Pe(to),
            remote_handle: self.handle(to, remote, len),
            remote_addr: remote as u64,
            local: LocalSide::Memory(local),
            len,
        }
    }

    fn word(&mut self, to: u32, at: usize, op: AtomicOp, operand: u64) -> AtomicRequest<'a> {
        let remote_addr = self.known[to as usize].words + at;
        AtomicRequest {
            pe: Pe(to),
            remote_handle: self.handle(to, remote_addr, 8),
            remote_addr: remote_addr as u64,
            atomic: Atomic { op, width: Width::Eight, float: false, operand, compare: 0 },
            result: None,
        }
    }

    fn any_pe(&mut self) -> u32 {
        self.random.below(self.known.len()) as u32
    }

    fn any_len(&mut self) -> usize {
        match self.random.below(6) {
            0 => 1 + self.random.below(8),
            1 => 1 + self.random.below(PART / 2),
            _ => 1 + self.random.below(400),
        }
    }

    /// Local bytes that never change: their address, and the offset that says what they are.
    fn source(&mut self, len: usize) -> (usize, usize) {
        let loose = self.random.below(2 * self.loose.len() + 3);
        if let Some(base) = self.loose.get(loose) {
            let at = self.random.below(PART - len);
            return (base + at, at);
        }
        if self.random.below(3) == 0 {
            let at = STEADY + self.random.below(PART - len);
            return (self.known[self.me as usize].heap + at, at);
        }
        let at = self.random.below(LANDING - len);
        (self.member.scratch + at, at)
    }

    /// A place for bytes that are fetched; none until what is under way has ended.
    fn land(&mut self, len: usize) -> Option<usize> {
        let loose = self.random.below(2 * self.loose.len() + 3).min(self.loose.len());
        let (base, size) = match self.loose.get(loose) {
            Some(base) => (base + PART, PART),
            None => (self.member.scratch + LANDING, HEAP - LANDING),
        };
        let at = self.landing[loose].next_multiple_of(8) + self.random.below(2) * 8;
        self.landing[loose] = at + len;
        (at + len <= size).then_some(base + at)
    }

    fn put(&mut self) -> Result<(), EngineError> {
        let (to, len) = (self.any_pe(), self.any_len());
        let at = self.ends[to as usize] + self.random.below(9);
        if at + len > PART {
            self.quiet(to)?;
            self.ends[to as usize] = 0;
            return Ok(());
        }
        self.ends[to as usize] = at + len;
        let (local, of) = self.source(len);
        let place = self.me as usize * PART + at;
        let mut request = self.request(Direction::Write, to, place, (local, len));
        let bytes = bytes_of(self.me, of, len);
        if len <= 8 && self.random.below(2) == 0 {
            let mut value = [0; 8];
            value[..len].copy_from_slice(&bytes);
            request.local = LocalSide::Value(u64::from_le_bytes(value));
        }
        self.mirrors[to as usize][at..at + len].copy_from_slice(&bytes);
        match self.random.below(12) {
            0 => self.member.lane.complete(&request),
            _ => self.member.lane.start(&request),
        }
    }

    fn get(&mut self) -> Result<(), EngineError> {
        let (from, len) = (self.any_pe(), self.any_len());
        let Some(local) = self.land(len) else { return self.quiet_all() };
        let at = STEADY + self.random.below(PART - len);
        let request = self.request(Direction::Read, from, at, (local, len));
        self.fetched.push((from, local, bytes_of(from, at, len)));
        self.member.lane.start(&request)
    }

    fn fetch(&mut self) -> Result<(), EngineError> {
        let to = self.any_pe();
        let Some(addr) = self.land(16) else { return self.quiet_all() };
        let mut request = self.word(to, FETCHES + 8 * self.me as usize, AtomicOp::FetchAdd, 1);
        let flag = [None, Some(self.seed | 1)][self.random.below(2)];
        request.result = Some(FetchTarget { addr, flag });
        self.fabric.store(Pe(self.me), addr + 8, &[0; 8]);
        self.results.push((to, addr, flag));
        self.member.lane.atomic(&request)
    }

    fn put_signal(&mut self) -> Result<(), EngineError> {
        let to = self.any_pe();
        let number = self.signals[to as usize];
        if number == EACH {
            return Ok(());
        }
        self.signals[to as usize] += 1;
        let (from, at, len) = signalled(self.seed, self.me, to, number);
        let local = self.member.scratch + from;
        let put = self.request(Direction::Write, to, at, (local, len));
        let word = SIGNALS + 8 * (self.me as usize * EACH + number);
        let op = [AtomicOp::SignalAdd, AtomicOp::SignalSet, AtomicOp::Signal][number % 3];
        let signal = self.word(to, word, op, 1);
        if self.random.below(4) == 0 {
            self.member.lane.start(&put)?;
            return self.member.lane.atomic(&signal);
        }
        // In two parts, if not in one.
        let cut = self.random.below(2) * self.random.below(len);
        let rest = self.request(Direction::Write, to, at + cut, (local + cut, len - cut));
        let parts = [Request { len: cut, ..put }, rest];
        let parts = if cut == 0 { &parts[1..] } else { &parts[..] };
        self.member.lane.put_signal(&PutSignalRequest { parts, signal })
    }

    fn add(&mut self) -> Result<(), EngineError> {
        let (to, word, operand) = (self.any_pe(), self.random.below(SUMS), self.random.below(99));
        self.sums[to as usize][word] += operand as u64;
        let op = [AtomicOp::Add, AtomicOp::SignalAdd][self.random.below(2)];
        let request = self.word(to, WORDS + 8 * word, op, operand as u64);
        self.member.lane.atomic(&request)
    }

    fn quiet(&mut self, pe: u32) -> Result<(), EngineError> {
        self.member.lane.quiet(Pe(pe))?;
        let (me, fabric) = (self.me, self.fabric);
        let place = self.known[pe as usize].heap + me as usize * PART;
        assert!(
            fabric.load(Pe(pe), place, PART) == self.mirrors[pe as usize],
            "PE {me}'s part of PE {pe}'s heap"
        );
        self.fetched.retain(|(from, at, bytes)| {
            let is_it = *from == pe;
            let found = || fabric.load(Pe(me), *at, bytes.len());
            assert!(!is_it || found() == *bytes, "{} bytes at {at:#x} of PE {pe}", bytes.len());
            !is_it
        });
        let mut results: Vec<u64> = Vec::new();
        let word = |at| u64::from_le_bytes(fabric.load(Pe(me), at, 8).try_into().unwrap());
        self.results.retain(|(of, at, flag)| {
            if *of == pe {
                results.push(word(*at));
                assert!(flag.is_none_or(|flag| word(at + 8) == flag), "the flag of a fetch");
            }
            *of != pe
        });
        results.sort_unstable();
        let first = self.added[pe as usize];
        self.added[pe as usize] += results.len() as u64;
        let expected: Vec<u64> = (first..self.added[pe as usize]).collect();
        assert_eq!(results, expected, "what PE {me} has fetched and added at PE {pe}");
        Ok(())
    }

    fn quiet_all(&mut self) -> Result<(), EngineError> {
        (0..self.known.len() as u32).try_for_each(|pe| self.quiet(pe))?;
        self.landing.fill(0);
        Ok(())
    }

    fn look(&self) {
        let Known { heap, words, .. } = self.known[self.me as usize];
        for (from, number) in (0..self.known.len() as u32)
            .flat_map(|from| (0..EACH).map(move |number| (from, number)))
        {
            let word = words + SIGNALS + 8 * (from as usize * EACH + number);
            if self.fabric.load(Pe(self.me), word, 8) == [0; 8] {
                continue;
            }
            let (of, at, len) = signalled(self.seed, from, self.me, number);
            let found = self.fabric.load(Pe(self.me), heap + at, len);
            assert!(
                found == bytes_of(from, of, len),
                "signal {number} of PE {from} to PE {} is before its data",
                self.me
            );
        }
    }

    fn register(&mut self) {
        let memory = self.random.below(3 + self.loose.len());
        let (base, len) = match memory.checked_sub(3) {
            // What begins in a region and ends beside it is a mistake of the caller's.
            Some(loose) => (self.loose[loose], 2 * PART),
            None => {
                let base = [self.member.base, self.member.scratch, self.member.words][memory];
                let at = self.random.below(HEAP);
                match self.random.below(6) {
                    0 => (base, HEAP),
                    _ => (base + at, 1 + self.random.below(HEAP - at)),
                }
            }
        };
        let access = [Access::Local, Access::LocalAndRemote][self.random.below(2)];
        let handle = self.member.regions.register(base, len, access).unwrap();
        self.extra.push((base, len, handle));
    }

    fn release(&mut self) {
        if self.extra.is_empty() {
            return;
        }
        let at = self.random.below(self.extra.len());
        let (base, len, handle) = self.extra[at];
        if self.member.lane.check_unused(base, len).is_ok() {
            self.member.regions.release(&handle).unwrap();
            self.extra.swap_remove(at);
        }
    }

    fn step(&mut self) -> Result<(), EngineError> {
        self.look();
        match self.random.below(25) {
            0..7 => self.put(),
            7..10 => self.get(),
            10..12 => self.fetch(),
            12..15 => self.put_signal(),
            15 => self.add(),
            16 => {
                let pe = self.any_pe();
                self.member.lane.fence(Pe(pe))
            }
            17 => {
                let pe = self.any_pe();
                self.quiet(pe)
            }
            18..20 => {
                self.register();
                Ok(())
            }
            20..22 => {
                self.release();
                Ok(())
            }
            22 => {
                let (rail, rate) = (RailId(self.random.below(4) as u8), self.random.below(100));
                self.fabric.world().set_rate(rail, 1 + rate as u64);
                Ok(())
            }
            _ => (0..self.random.below(8)).try_for_each(|_| {
                self.fabric.step();
                Ok(self.member.lane.progress().map(drop)?)
            }),
        }
    }

    fn run(&mut self, steps: usize) -> Result<(), EngineError> {
        (0..steps).try_for_each(|_| self.step())?;
        self.quiet_all()?;
        while !self.extra.is_empty() {
            self.release();
            self.fabric.step();
            self.member.lane.progress()?;
        }
        Ok(())
    }
}

fn draw_shapes(random: &mut Random) -> Vec<Shape> {
    // What PEs agree on.
    let agreed = random_shape(random);
    let words = random_words(random);
    let mut of_pe = || {
        let drawn = random_shape(random);
        Shape {
            n_pes: agreed.n_pes,
            rails: agreed.rails,
            lonely: agreed.lonely,
            immediate_data: agreed.immediate_data,
            immediate_bytes: agreed.immediate_bytes,
            longest_message: agreed.longest_message,
            shared: agreed.shared,
            staged: agreed.staged,
            by_fabric: agreed.by_fabric,
            late: false,
            bulk: agreed.bulk,
            words,
            heap: HEAP,
            deadline: PATIENCE,
            max_segment: [8, drawn.max_segment][random.below(2)],
            depth: [64, drawn.depth][random.below(2)],
            bounce: [drawn.bounce, (256, 4, 3), (4096, 2, 4)][random.below(3)],
            ..drawn
        }
    };
    (0..agreed.n_pes).map(|_| of_pe()).collect()
}

fn has_devices(shape: &Shape, pe: u32) -> bool {
    let of = |set: u32| set.checked_shr(2 * pe).unwrap_or(0) & 3;
    of(shape.staged) != 0 || of(shape.words) > 1
}

#[test]
fn pes_that_differ_in_everything() {
    for_seeds("pes_that_differ_in_everything", &[], 60, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 23);
        let shapes = draw_shapes(&mut random);
        let script = script(&mut random);
        let job = Job::of(seed, &shapes.iter().collect::<Vec<_>>(), script);
        let fabric = job.fabric.clone();
        for pe in (0..shapes[0].n_pes).filter(|_| random.below(4) == 0) {
            fabric.world().blind.insert(Pe(pe));
        }
        let mut loose = Vec::new();
        let mut known = Vec::new();
        for (pe, member) in (0..).zip(&job.members) {
            job.fill_scratch(pe, &bytes_of(pe, 0, LANDING));
            fabric.store(Pe(pe), member.base + STEADY, &bytes_of(pe, STEADY, PART));
            let kinds = match has_devices(&shapes[0], pe) {
                false => vec![Reach::Direct],
                true => vec![Reach::Direct, [Reach::Staged, Reach::Fabric][random.below(2)]],
            };
            let alloc = |reach| {
                let base = fabric.alloc_reached(Pe(pe), 2 * PART, reach);
                fabric.store(Pe(pe), base, &bytes_of(pe, 0, PART));
                base
            };
            loose.push(kinds.into_iter().map(alloc).collect::<Vec<_>>());
            let mut regions =
                vec![(member.base, HEAP, member.handle), (member.words, HEAP, member.words_handle)];
            // Peers know some regions inside of others, and equal to them.
            for _ in 0..random.below(4) {
                let base = [member.base, member.words][random.below(2)];
                let at = random.below(HEAP) * random.below(2);
                let len = [HEAP - at, 1 + random.below(HEAP - at)][random.below(2)];
                let handle = member.regions.register(base + at, len, Access::LocalAndRemote);
                regions.push((base + at, len, handle.unwrap()));
            }
            known.push(Known { heap: member.base, words: member.words, regions });
        }
        let n = known.len();
        let ordered = random.below(6) == 0;
        let job = if ordered { job.with_ordered_signals() } else { job };
        let steps = 20 + random.below(100);
        let run = |me: u32, member: &mut Member, _: &_| {
            let loose = loose[me as usize].clone();
            let mut program = Program {
                me,
                member,
                known: &known,
                fabric: &fabric,
                seed,
                random: Random(seed ^ u64::from(me + 1) << 40),
                landing: vec![0; loose.len() + 1],
                loose,
                extra: Vec::new(),
                ends: vec![0; n],
                mirrors: vec![vec![0; PART]; n],
                fetched: Vec::new(),
                added: vec![0; n],
                results: Vec::new(),
                signals: vec![0; n],
                sums: vec![[0; SUMS]; n],
            };
            program.run(steps).unwrap();
            (program.sums, program.signals)
        };
        let (fabric, members) = race_with(job, seed, run, |member| {
            member.lane.progress().unwrap();
        });
        for (pe, Known { words, .. }) in (0..).zip(&known) {
            let word = |at: usize| {
                let bytes = fabric.load(Pe(pe), words + at, 8);
                u64::from_le_bytes(bytes.try_into().unwrap())
            };
            for sum in 0..SUMS {
                let added = members.iter().map(|(_, (sums, _))| sums[pe as usize][sum]).sum();
                assert_eq!(word(WORDS + 8 * sum), added, "sum {sum} of PE {pe}");
            }
            for (from, (_, (_, signals))) in members.iter().enumerate() {
                for number in 0..EACH {
                    let sent = u64::from(number < signals[pe as usize]);
                    let found = word(SIGNALS + 8 * (from * EACH + number));
                    assert_eq!(found, sent, "signal {number} of PE {from} to PE {pe}");
                }
            }
        }
    });
}
