//! Operations on a peer as users mix them. Whichever of them go together, what comes behind a fence
//! is seen behind all before it, and a signal behind the puts before it.

use std::collections::BTreeMap;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::batches::Batch;
use engine::port::Direction;
use engine::request::{AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request};
use sim_fabric::{Event, FakeFabric};
use test_support::seeds::for_seeds;

use super::{PATIENCE, script};
use crate::job::{Job, Member, Random, Shape, random_words};
use crate::signals::{Targets, race_with, random_shape};
use crate::staged::{ALL, pattern};

const HEAP: usize = 1 << 18;

const AGAIN: usize = HEAP - 5120;
const MAX_AGAIN: usize = 1024;

/// Words: some that are added to, one that is changed in any way behind fences, and those that are
/// changed once.
const SUMS: usize = HEAP - 4096;
const LAST: usize = SUMS + 64;
const ONCE: usize = LAST + 64;

/// What a word holds that was changed once.
const CHANGED: u64 = 0x77;

/// Local places that puts are from, so many bytes apart.
const SOURCES: usize = 4;
const APART: usize = 25 << 10;

/// Where bytes are fetched to and words, behind what is put.
const LANDING: usize = SOURCES * APART;
const FETCHED: usize = LANDING + (16 << 10);

/// Something that is seen at the target once.
#[derive(Debug)]
struct Asked {
    /// Its offset in the heap, or in the memory of words, and its address.
    offset: usize,
    at: usize,
    len: usize,
    /// How many fences it comes behind.
    fences: usize,
    kind: Kind,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Put,
    /// Behind fences alone.
    Atomic,
    /// Behind all puts before it.
    Signal,
    /// Behind so many puts right before it.
    SignalOfPuts(usize),
}

#[derive(Default, Debug)]
struct Told {
    asked: Vec<Asked>,
    again: Vec<u8>,
    sums: [u32; 4],
    last: u64,
}

struct Program<'a> {
    member: &'a mut Member,
    targets: &'a Targets,
    fabric: &'a FakeFabric,
    random: Random,
    me: u32,
    to: u32,
    /// Where bytes are put from.
    local: usize,
    /// Most bytes of a put.
    longest: usize,
    fences: usize,
    /// Where the next put goes, and how many words were changed once.
    end: usize,
    words: usize,
    sources: [Vec<u8>; SOURCES],
    told: Told,
}

impl<'a> Program<'a> {
    fn source(&self, source: usize) -> usize {
        self.local + source * APART
    }

    fn fill(&mut self, source: usize) {
        let of = self.random.below(256) as u32;
        self.sources[source] = (0..APART).map(|at| pattern(of, at)).collect();
        self.fabric.store(Pe(self.me), self.source(source), &self.sources[source]);
    }

    /// Where bytes are from, their place in the target's heap, and themselves. None without room.
    fn draw_put(&mut self) -> Option<(usize, usize, Vec<u8>)> {
        let source = self.random.below(SOURCES);
        let from = self.random.below(3) * 500;
        let len = match self.random.below(16) {
            0 => 1 + self.random.below(232),
            1 => 233 + self.random.below(20_000),
            2 => 60_000 + self.random.below(40_000),
            _ => 233 + self.random.below(1500),
        };
        // Across the borders between the sources, too.
        let bytes: Vec<u8> = self.sources[source..].concat().into_iter().skip(from).collect();
        let len = len.min(bytes.len()).min(self.longest);
        let at = self.end + self.random.below(3) * 40;
        if at + len > AGAIN {
            return None;
        }
        self.end = at + len;
        Some((self.source(source) + from, at, bytes[..len].to_vec()))
    }

    fn ask(&mut self, kind: Kind, offset: usize, at: usize, bytes: Vec<u8>) {
        let (len, fences) = (bytes.len(), self.fences);
        self.told.asked.push(Asked { offset, at, len, fences, kind, bytes });
    }

    fn fence(&mut self) -> Result<(), EngineError> {
        self.fences += 1;
        match self.random.below(4) {
            0 => self.member.lane.fence_all(),
            _ => self.member.lane.fence(Pe(self.to))?,
        }
        Ok(())
    }

    fn quiet(&mut self) -> Result<(), EngineError> {
        self.member.lane.quiet(Pe(self.to))?;
        for Asked { at, len, bytes, .. } in &self.told.asked {
            let found = self.fabric.load(Pe(self.to), *at, *len);
            assert!(found == *bytes, "{len} bytes at {at:#x} after quiet");
        }
        self.fences += 1;
        for source in 0..SOURCES {
            if self.random.below(2) == 0 {
                self.fill(source);
            }
        }
        Ok(())
    }

    fn word(&self, at: usize, op: AtomicOp, operand: u64, width: Width) -> AtomicRequest<'a> {
        let targets = self.targets;
        let request = targets.atomic(self.to, at, op, operand);
        AtomicRequest { atomic: Atomic { width, ..request.atomic }, ..request }
    }

    fn change(&mut self, kind: Kind) -> AtomicRequest<'a> {
        let (add, set) = match kind {
            Kind::Atomic => (AtomicOp::Add, AtomicOp::Set),
            _ => (AtomicOp::SignalAdd, AtomicOp::SignalSet),
        };
        if self.random.below(4) == 0 {
            let word = self.random.below(4);
            self.told.sums[word] += 3;
            return self.word(SUMS + word * 4, add, 3, Width::Four);
        }
        let at = ONCE + self.words * 8;
        let landing = self.member.scratch + FETCHED + self.words * 16;
        self.words += 1;
        self.ask(kind, at, self.targets.word(self.to, at), CHANGED.to_le_bytes().to_vec());
        let width = [Width::Four, Width::Eight][self.random.below(2)];
        if kind == Kind::Atomic && self.random.below(3) == 0 {
            let fetch = self.word(at, AtomicOp::FetchAdd, CHANGED, width);
            return AtomicRequest {
                result: Some(FetchTarget { addr: landing, flag: None }),
                ..fetch
            };
        }
        let op = [add, set][self.random.below(2)];
        self.word(at, op, CHANGED, width)
    }

    /// Draws a put into the heap, or into the memory of the words, which may be of another kind.
    fn part(&mut self) -> Option<Request<'a>> {
        let (to, targets) = (self.to, self.targets);
        let (from, at, bytes) = self.draw_put()?;
        let (request, place) = match self.random.below(16) {
            0 => (targets.part_beside(from, to, at, bytes.len()), targets.word(to, at)),
            _ => (targets.part(from, to, at, bytes.len()), targets.0[to as usize].0 + at),
        };
        self.ask(Kind::Put, at, place, bytes);
        Some(request)
    }

    fn put(&mut self) -> Result<(), EngineError> {
        let Some(request) = self.part() else { return Ok(()) };
        match self.random.below(16) {
            0 => self.member.lane.complete(&request),
            _ => self.member.lane.start(&request),
        }
    }

    fn put_signal(&mut self) -> Result<(), EngineError> {
        let parts = [0, 1, 1, 1, 2, 3][self.random.below(6)];
        let parts: Vec<Request<'a>> = (0..parts).filter_map(|_| self.part()).collect();
        let signal = self.change(Kind::SignalOfPuts(parts.len()));
        self.member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
    }

    fn put_value(&mut self) -> Result<(), EngineError> {
        let (value, len) = (self.random.below(1 << 30) as u64, [1, 2, 4, 8][self.random.below(4)]);
        // None joins another one: the events do not tell of each then.
        let at = self.end.next_multiple_of(8) + 8;
        if at + 16 > AGAIN {
            return Ok(());
        }
        self.end = at + 16;
        let place = self.targets.0[self.to as usize].0 + at;
        self.ask(Kind::Put, at, place, value.to_le_bytes()[..len].to_vec());
        let put = self.targets.part(0, self.to, at, len);
        self.member.lane.start(&Request { local: LocalSide::Value(value), ..put })
    }

    fn put_again(&mut self) -> Result<(), EngineError> {
        self.fence()?;
        let (source, len) = (self.random.below(SOURCES), MAX_AGAIN - self.random.below(500));
        self.told.again.resize(MAX_AGAIN, 0);
        self.told.again[..len].copy_from_slice(&self.sources[source][..len]);
        let put = self.targets.part(self.source(source), self.to, AGAIN, len);
        self.member.lane.start(&put)
    }

    fn change_again(&mut self) -> Result<(), EngineError> {
        self.fence()?;
        let ops = [AtomicOp::SignalAdd, AtomicOp::SignalSet, AtomicOp::Add, AtomicOp::Xor];
        let (op, operand) = (ops[self.random.below(4)], self.random.below(1 << 20) as u64);
        let request = self.word(LAST, op, operand, Width::Eight);
        self.told.last = request.atomic.apply(self.told.last);
        self.member.lane.atomic(&request)
    }

    fn get(&mut self) -> Result<(), EngineError> {
        let local = self.member.scratch + LANDING;
        let (at, len) = (self.random.below(1000), 1 + self.random.below(9000));
        let part = self.targets.part(local, self.to, at, len);
        self.member.lane.start(&Request { direction: Direction::Read, ..part })
    }

    fn step(&mut self) -> Result<(), EngineError> {
        match self.random.below(40) {
            0..12 => self.put(),
            12..16 => self.put_signal(),
            16..24 => self.fence(),
            24..32 => {
                let kind = if self.random.below(4) == 0 { Kind::Atomic } else { Kind::Signal };
                let request = self.change(kind);
                self.member.lane.atomic(&request)
            }
            32 => self.put_value(),
            33 => self.put_again(),
            34 => self.change_again(),
            35 => self.get(),
            36 => self.quiet(),
            _ => (0..self.random.below(6)).try_for_each(|_| {
                self.fabric.step();
                Ok(self.member.lane.progress().map(drop)?)
            }),
        }
    }
}

/// The first and the last moment of each at which it is seen by a PE, by the bases of its heap and
/// of its words.
fn moments(asked: &[Asked], pe: Pe, bases: [usize; 2], events: &[Event]) -> Vec<(usize, usize)> {
    let places: BTreeMap<usize, usize> = asked.iter().map(|asked| asked.offset).zip(0..).collect();
    let mut left: Vec<usize> = asked.iter().map(|asked| asked.len).collect();
    let mut moments = vec![(usize::MAX, 0); asked.len()];
    let offset = |addr| {
        bases.into_iter().find(|base| (*base..base + HEAP).contains(&addr)).map(|base| addr - base)
    };
    for (moment, event) in events.iter().enumerate() {
        let (at, len) = match *event {
            Event::Applied { pe: of, addr } if of == pe => (offset(addr), usize::MAX),
            Event::Copied { pe: of, addr, len } if of == pe => (offset(addr), len),
            Event::Delivered(d) if d.to == pe && d.direction == Direction::Write => {
                (Some(d.remote as usize), d.len)
            }
            _ => continue,
        };
        let place = at.and_then(|at| Some((at, places.range(..=at).next_back()?)));
        let Some((at, (begin, number))) = place else { continue };
        if at < begin + asked[*number].len {
            moments[*number] = (moments[*number].0.min(moment), moment);
            left[*number] = left[*number].saturating_sub(len);
        }
    }
    assert!(left.iter().all(|left| *left == 0), "all was seen");
    moments
}

/// Signals of lanes that order them are behind all signals before them, too.
fn are_in_order(asked: &[Asked], moments: &[(usize, usize)], ordered: bool) {
    // The last moment of what comes before the last fence, of what else there was, and of puts and
    // ordered signals.
    let (mut fenced, mut others, mut puts) = (0, 0, 0);
    let mut fences = 0;
    for (number, (one, (first, last))) in asked.iter().zip(moments).enumerate() {
        if one.fences != fences {
            (fenced, fences) = (others, one.fences);
        }
        let behind = match one.kind {
            Kind::Put | Kind::Atomic => fenced,
            Kind::SignalOfPuts(parts) if !ordered => {
                let parts = &moments[number - parts..number];
                parts.iter().map(|(_, last)| *last).fold(fenced, usize::max)
            }
            Kind::Signal | Kind::SignalOfPuts(_) => fenced.max(puts),
        };
        let Asked { at, len, kind, .. } = one;
        assert!(*first >= behind, "{kind:?} of {len} bytes at {at:#x} is seen too early");
        if one.kind == Kind::Put || ordered && one.kind != Kind::Atomic {
            puts = puts.max(*last);
        }
        others = others.max(*last);
    }
}

fn draw_shape(random: &mut Random) -> Shape {
    let drawn = random_shape(random);
    let bounce = [drawn.bounce, (4096, 3, 2), (65_536, 4, 4), (1 << 17, 8, 8)][random.below(4)];
    let staged = [ALL, ALL, drawn.staged, 0][random.below(4)];
    let words = random_words(random);
    Shape { heap: HEAP, bounce, staged, words, deadline: PATIENCE, ..drawn }
}

/// Each PE does so to one of them, itself or another.
#[test]
fn mixed_operations_keep_their_order() {
    for_seeds("mixed_operations_keep_their_order", &[], 100, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 5);
        let shape = draw_shape(&mut random);
        let mut job = Job::new(seed, &shape, script(&mut random));
        let ordered = random.below(3) == 0;
        if ordered {
            job = job.with_ordered_signals();
        }
        let has_batches = random.below(3) == 0;
        let steps = 20 + random.below(120);
        let distance = [1, 1, 0, 2][random.below(4)];
        let target = |me: u32| (me + distance) % shape.n_pes;
        let longest = if shape.bounce.0 < 4096 || shape.max_segment < 1000 { 2000 } else { HEAP };
        let fabric = job.fabric.clone();
        let program = |me: u32, member: &mut Member, targets: &Targets| {
            // Registered memory, or some that nobody has registered.
            let local = match (seed + u64::from(me)) % 4 {
                0 => fabric.alloc(Pe(me), SOURCES * APART),
                _ => member.scratch,
            };
            let mut program = Program {
                local,
                member,
                targets,
                fabric: &fabric,
                random: Random(seed ^ u64::from(me + 1) << 40),
                me,
                to: target(me),
                longest,
                fences: 0,
                end: 0,
                words: 0,
                sources: Default::default(),
                told: Told::default(),
            };
            (0..SOURCES).for_each(|source| program.fill(source));
            let batch = program.member.lane.begin_batch().unwrap();
            for _ in 0..steps {
                if has_batches && program.random.below(6) == 0 {
                    let next = [batch, Batch::NONE][program.random.below(2)];
                    program.member.lane.enter_batch(next);
                }
                program.step().unwrap();
            }
            program.member.lane.enter_batch(Batch::NONE);
            program.quiet().unwrap();
            program.told
        };
        let (fabric, members) = race_with(job, seed, program, |member| {
            member.lane.progress().unwrap();
        });
        let events = fabric.events();
        for (me, (_, told)) in (0..).zip(&members) {
            let (target, pe) = (&members[target(me) as usize].0, Pe(target(me)));
            let moments = moments(&told.asked, pe, [target.base, target.words], &events);
            are_in_order(&told.asked, &moments, ordered);
            let word = |at: usize, len| fabric.load(pe, target.words + at, len);
            for (number, sum) in told.sums.iter().enumerate() {
                assert_eq!(word(SUMS + number * 4, 4), sum.to_le_bytes(), "sum {number}");
            }
            assert_eq!(word(LAST, 8), told.last.to_le_bytes());
            let again = fabric.load(pe, target.base + AGAIN, told.again.len());
            assert!(again == told.again, "the last one's bytes");
        }
    });
}
