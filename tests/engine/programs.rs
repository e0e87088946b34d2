//! Random programs of all PEs at once, over every shape and every misbehaviour: operations as users
//! mix them, between PEs that differ in their memory and their limits, with regions, overlapping
//! ones too, that come and go beside the traffic.
//!
//! Whichever operations go together, what comes behind a fence is seen behind all before it, and a
//! signal behind the puts before it. After a quiet every byte is there.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::batches::Batch;
use engine::port::copies::Reach;
use engine::port::{Access, Direction};
use engine::request::{AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request};
use engine::wire::handle::HandleBytes;
use sim_fabric::{Event, FakeFabric, Script};
use test_support::seeds::for_seeds;

use crate::job::{Job, Member, Outcome, Shape, Targets};
use crate::race::{Random, race, random_script, random_shape, random_words};
use crate::staged::{ALL, pattern};

/// The part of a heap that one sender has for itself: what is put once, what is put again and
/// again, and words that are changed once, behind those that are changed again and again.
const PART: usize = 1 << 17;
const AGAIN: usize = PART - 5120;
const MAX_AGAIN: usize = 1024;
const LAST: usize = PART - 4096;
const ONCE: usize = LAST + 64;

/// Behind the parts of four senders: words that all of them add to, and bytes that never change.
const SUMS: usize = 4 * PART;
const STEADY: usize = SUMS + 64;
const STEADY_LEN: usize = 10_000;
const HEAP: usize = STEADY + STEADY_LEN;

/// What a word holds that was changed once.
const CHANGED: u64 = 0x77;

/// Local memory: places that bytes are put from, and behind them places for bytes that are fetched.
const SOURCES: usize = 4;
const APART: usize = 25 << 10;
const LANDING: usize = SOURCES * APART;
const AREA: usize = LANDING + (64 << 10);

/// Whatever waits for a bounce buffer or for room behind others may wait for minutes.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(3600));

/// A region: where it begins, its length, and what names it.
type Region = (usize, usize, HandleBytes);

/// Something that is seen at the target once.
#[derive(Debug)]
struct Asked {
    at: usize,
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

/// What a PE does to another.
#[derive(Default)]
struct Link {
    asked: Vec<Asked>,
    fences: usize,
    /// Where the next put goes, and how many words were changed once.
    end: usize,
    words: usize,
    /// What is put again and again, words that are changed so by width, and what was added.
    again: Vec<u8>,
    last: [u64; 3],
    sums: [u32; 4],
    /// Local places and what must be there after a quiet.
    fetched: Vec<(usize, Vec<u8>)>,
}

/// Local memory: its address, what its sources hold, and where bytes are fetched to next.
struct Area {
    base: usize,
    sources: Vec<u8>,
    end: usize,
}

struct Program<'a> {
    me: u32,
    member: &'a mut Member,
    targets: &'a Targets,
    /// The regions of each PE that its peers know, inside of one another too.
    known: &'a [Vec<Region>],
    fabric: &'a FakeFabric,
    random: Random,
    areas: Vec<Area>,
    extra: Vec<Region>,
    /// Most bytes of a put.
    longest: usize,
    /// The PE that most operations go to, and the one that the next one goes to.
    favourite: usize,
    to: usize,
    links: Vec<Link>,
}

impl<'a> Program<'a> {
    fn link(&mut self) -> &mut Link {
        &mut self.links[self.to]
    }

    fn pe(&self) -> Pe {
        Pe(self.to as u32)
    }

    /// Fills sources anew, whose bytes nothing takes any more.
    fn fill(&mut self, all: bool) {
        for area in &mut self.areas {
            for source in (0..LANDING).step_by(APART) {
                if !all && self.random.below(3) != 0 {
                    continue;
                }
                let of = self.random.below(256) as u32;
                let bytes: Vec<u8> = (0..APART).map(|at| pattern(of, at)).collect();
                self.fabric.store(Pe(self.me), area.base + source, &bytes);
                area.sources[source..source + APART].copy_from_slice(&bytes);
            }
        }
    }

    fn source(&mut self, len: usize) -> (usize, Vec<u8>) {
        if len < STEADY_LEN && self.random.below(8) == 0 {
            let at = self.random.below(STEADY_LEN - len);
            let bytes = (at..at + len).map(|at| pattern(self.me, at)).collect();
            return (self.member.base + STEADY + at, bytes);
        }
        // Across the borders between the sources, too.
        let from = self.random.below(SOURCES) * APART + self.random.below(3) * 500;
        let area = &self.areas[self.random.below(self.areas.len())];
        let from = from.min(LANDING - len);
        (area.base + from, area.sources[from..from + len].to_vec())
    }

    fn land(&mut self, len: usize) -> Option<usize> {
        let count = self.areas.len();
        let area = &mut self.areas[self.random.below(count)];
        let at = area.end.next_multiple_of(8) + self.random.below(2) * 8;
        area.end = at + len;
        (area.end <= AREA).then_some(area.base + at)
    }

    fn handle(&mut self, addr: usize, len: usize) -> &'a HandleBytes {
        let known = self.known;
        let holds =
            |(base, size, _): &&(usize, usize, _)| *base <= addr && addr + len <= base + size;
        let regions: Vec<_> = known[self.to].iter().filter(holds).collect();
        &regions[self.random.below(regions.len())].2
    }

    fn part_at(&mut self, at: usize, local: usize, len: usize) -> Request<'a> {
        let put = self.targets.part(local, self.to as u32, 0, len);
        Request { remote_handle: self.handle(at, len), remote_addr: at as u64, ..put }
    }

    /// Where this PE's part of the target's heap has an offset.
    fn place(&self, at: usize) -> usize {
        self.targets.heap(self.to as u32, self.me as usize * PART + at)
    }

    fn ask(&mut self, kind: Kind, at: usize, bytes: Vec<u8>) {
        let fences = self.link().fences;
        self.link().asked.push(Asked { at, fences, kind, bytes });
    }

    fn fence(&mut self) -> Outcome {
        if self.random.below(4) == 0 {
            self.member.lane.fence_all();
            self.links.iter_mut().for_each(|link| link.fences += 1);
            return Ok(());
        }
        self.link().fences += 1;
        self.member.lane.fence(self.pe())
    }

    fn quiet(&mut self) -> Outcome {
        self.member.lane.quiet(self.pe())?;
        let (fabric, pe, me) = (self.fabric, self.pe(), Pe(self.me));
        let again = self.place(AGAIN);
        let last = self.targets.word(self.to as u32, self.me as usize * PART + LAST);
        let link = self.link();
        let asked = link.asked.iter().map(|Asked { at, bytes, .. }| (*at, bytes.clone()));
        let last = (last, link.last.map(u64::to_le_bytes).concat());
        for (at, bytes) in asked.chain([(again, link.again.clone()), last]) {
            let found = fabric.load(pe, at, bytes.len());
            assert!(found == bytes, "{} bytes at {at:#x} of {pe} after quiet", bytes.len());
        }
        for (at, bytes) in link.fetched.drain(..) {
            assert_eq!(fabric.load(me, at, bytes.len()), bytes, "fetched from {pe}");
        }
        link.fences += 1;
        Ok(())
    }

    fn quiet_all(&mut self) -> Outcome {
        for to in 0..self.links.len() {
            self.to = to;
            self.quiet()?;
        }
        self.fill(false);
        Ok(())
    }

    /// Draws a put to a place of its own in the heap, or in the memory of the words, which may be
    /// of another kind.
    fn part(&mut self) -> Option<Request<'a>> {
        let len = match self.random.below(16) {
            0 => 1 + self.random.below(232),
            1 => 233 + self.random.below(20_000),
            2 => 60_000 + self.random.below(40_000),
            _ => 233 + self.random.below(1500),
        };
        let len = len.min(self.longest);
        let at = self.link().end + self.random.below(3) * 40;
        if at + len > AGAIN {
            return None;
        }
        self.link().end = at + len;
        let (local, bytes) = self.source(len);
        let mut place = self.place(at);
        if self.random.below(16) == 0 {
            place = self.targets.word(self.to as u32, self.me as usize * PART + at);
        }
        self.ask(Kind::Put, place, bytes);
        Some(self.part_at(place, local, len))
    }

    fn put(&mut self) -> Outcome {
        let Some(request) = self.part() else { return Ok(()) };
        if self.random.below(16) != 0 {
            return self.member.lane.start(&request);
        }
        self.member.lane.complete(&request)?;
        let Some(Asked { at, bytes, .. }) = self.links[self.to].asked.last() else { return Ok(()) };
        assert!(self.fabric.load(self.pe(), *at, bytes.len()) == *bytes, "put to its end");
        Ok(())
    }

    fn put_signal(&mut self) -> Outcome {
        let parts = [0, 1, 1, 1, 2, 3][self.random.below(6)];
        let parts: Vec<Request<'a>> = (0..parts).filter_map(|_| self.part()).collect();
        let signal = self.change(Kind::SignalOfPuts(parts.len()));
        self.member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
    }

    fn put_value(&mut self) -> Outcome {
        let (value, len) = (self.random.below(1 << 30) as u64, [1, 2, 4, 8][self.random.below(4)]);
        // None joins another one: the events do not tell of each then.
        let at = self.link().end.next_multiple_of(8) + 8;
        if at + 16 > AGAIN {
            return Ok(());
        }
        self.link().end = at + 16;
        let place = self.place(at);
        self.ask(Kind::Put, place, value.to_le_bytes()[..len].to_vec());
        let put = self.part_at(place, 0, len);
        self.member.lane.start(&Request { local: LocalSide::Value(value), ..put })
    }

    fn put_again(&mut self) -> Outcome {
        self.fence()?;
        let len = MAX_AGAIN - self.random.below(500);
        let (local, bytes) = self.source(len);
        self.link().again.resize(MAX_AGAIN, 0);
        self.link().again[..len].copy_from_slice(&bytes);
        let put = self.part_at(self.place(AGAIN), local, len);
        self.member.lane.start(&put)
    }

    fn get(&mut self) -> Outcome {
        let len = 1 + self.random.below(STEADY_LEN - 1);
        let at = self.random.below(STEADY_LEN - len);
        let Some(local) = self.land(len) else { return Ok(()) };
        let bytes: Vec<u8> = (at..at + len).map(|at| pattern(self.to as u32, at)).collect();
        let place = self.targets.heap(self.to as u32, STEADY + at);
        let get = Request { direction: Direction::Read, ..self.part_at(place, local, len) };
        if self.random.below(8) == 0 {
            self.member.lane.complete(&get)?;
            assert!(self.fabric.load(Pe(self.me), local, len) == bytes, "got to its end");
        }
        self.link().fetched.push((local, bytes));
        self.member.lane.start(&get)
    }

    fn word(&mut self, at: usize, op: AtomicOp, operand: u64, width: Width) -> AtomicRequest<'a> {
        let request = self.targets.atomic(self.to as u32, at, op, operand);
        let remote_handle = self.handle(request.remote_addr as usize, 8);
        let atomic = Atomic { width, ..request.atomic };
        AtomicRequest { remote_handle, atomic, ..request }
    }

    /// Has the word before come to a local place, with a flag or without.
    fn fetch(&mut self, request: &mut AtomicRequest<'a>, before: u64) {
        let Some(addr) = self.land(16) else { return request.atomic.op = AtomicOp::Add };
        let flag = [None, Some(0xf1a6)][self.random.below(2)];
        request.result = Some(FetchTarget { addr, flag });
        let bytes = [before, flag.unwrap_or(0)].map(u64::to_le_bytes).concat();
        self.fabric.store(Pe(self.me), addr, &[0; 16]);
        self.link().fetched.push((addr, bytes));
    }

    /// Draws a change of a word that all add to, or of one that nobody has changed.
    fn change(&mut self, kind: Kind) -> AtomicRequest<'a> {
        let (add, set) = match kind {
            Kind::Atomic => (AtomicOp::Add, AtomicOp::Set),
            _ => (AtomicOp::SignalAdd, AtomicOp::SignalSet),
        };
        if self.random.below(4) == 0 {
            let word = self.random.below(4);
            self.link().sums[word] += 3;
            return self.word(SUMS + word * 8, add, 3, Width::Four);
        }
        let at = self.me as usize * PART + ONCE + self.link().words * 8;
        self.link().words += 1;
        self.ask(kind, self.targets.word(self.to as u32, at), CHANGED.to_le_bytes().to_vec());
        let width = [Width::Four, Width::Eight][self.random.below(2)];
        let op = [add, set][self.random.below(2)];
        let mut request = self.word(at, op, CHANGED, width);
        if kind == Kind::Atomic && self.random.below(3) == 0 {
            request.atomic.op = AtomicOp::FetchAdd;
            self.fetch(&mut request, 0);
        }
        request
    }

    /// Any operation of the table, on a word of its width behind all before it.
    fn change_again(&mut self) -> Outcome {
        self.fence()?;
        let at = self.random.below(3);
        let before = self.link().last[at];
        let small = self.random.below(9) as u64;
        let (op, width) = (AtomicOp::ALL[self.random.below(AtomicOp::ALL.len())], Width::ALL[at]);
        let place = self.me as usize * PART + LAST + 8 * at;
        let operand = small << self.random.below(40);
        let mut request = self.word(place, op, operand, width);
        request.atomic.float = self.random.below(2) == 0;
        request.atomic.compare = if small % 2 == 0 { before } else { small };
        if op.fetches() {
            self.fetch(&mut request, before);
        }
        self.link().last[at] = request.atomic.apply(before);
        self.member.lane.atomic(&request)
    }

    fn register(&mut self) {
        let memory = self.random.below(2 + self.areas.len());
        let (base, len) = match memory.checked_sub(3) {
            // What begins in a region and ends beside it is a mistake of the caller's.
            Some(loose) => (self.areas[loose + 1].base, AREA),
            None => {
                let base = [self.member.base, self.member.scratch, self.member.words][memory];
                let at = self.random.below(HEAP) * self.random.below(4).min(1);
                (base + at, 1 + self.random.below(HEAP - at))
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

    fn step(&mut self) -> Outcome {
        let any = self.random.below(self.links.len());
        self.to = if self.random.below(4) == 0 { any } else { self.favourite };
        match self.random.below(48) {
            0..12 => self.put()?,
            12..16 => self.put_signal()?,
            16..24 => self.fence()?,
            24..32 => {
                let kind = if self.random.below(4) == 0 { Kind::Atomic } else { Kind::Signal };
                let request = self.change(kind);
                self.member.lane.atomic(&request)?;
            }
            32 => self.put_value()?,
            33 => self.put_again()?,
            34..36 => self.change_again()?,
            36..39 => self.get()?,
            39 => self.quiet()?,
            40 => self.quiet_all()?,
            41 => self.register(),
            42 => self.release(),
            43 => self.fabric.world().set_rate(RailId(0), 1 + self.random.below(100) as u64),
            _ => {
                for _ in 0..self.random.below(6) {
                    self.fabric.step();
                    self.member.lane.progress()?;
                }
            }
        }
        Ok(())
    }

    fn run(mut self, steps: usize, has_batches: bool) -> Result<Vec<Link>, EngineError> {
        let batch = self.member.lane.begin_batch().unwrap();
        for _ in 0..steps {
            if has_batches && self.random.below(6) == 0 {
                self.member.lane.enter_batch([batch, Batch::NONE][self.random.below(2)]);
            }
            self.step()?;
        }
        self.member.lane.enter_batch(Batch::NONE);
        self.quiet_all()?;
        while !self.extra.is_empty() {
            self.release();
            self.fabric.step();
            self.member.lane.progress()?;
        }
        Ok(self.links)
    }
}

fn moments(asked: &[Asked], pe: Pe, events: &[Event]) -> Vec<(usize, usize)> {
    let places: BTreeMap<usize, usize> = asked.iter().map(|asked| asked.at).zip(0..).collect();
    let mut left: Vec<usize> = asked.iter().map(|asked| asked.bytes.len()).collect();
    let mut moments = vec![(usize::MAX, 0); asked.len()];
    for (moment, event) in events.iter().enumerate() {
        let (at, len) = match *event {
            Event::Applied { pe: of, addr } if of == pe => (addr, usize::MAX),
            Event::Copied { pe: of, addr, len } if of == pe => (addr, len),
            Event::Delivered(d) if d.to == pe && d.direction == Direction::Write => (d.addr, d.len),
            _ => continue,
        };
        let Some((begin, number)) = places.range(..=at).next_back() else { continue };
        if at < begin + asked[*number].bytes.len() {
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
        let Asked { at, bytes, kind, .. } = one;
        let len = bytes.len();
        assert!(*first >= behind, "{kind:?} of {len} bytes at {at:#x} is seen too early");
        if one.kind == Kind::Put || ordered && one.kind != Kind::Atomic {
            puts = puts.max(*last);
        }
        others = others.max(*last);
    }
}

/// Draws a shape for each PE, which agree in what PEs of a job agree on; or the same for all.
fn draw_shapes(random: &mut Random) -> Vec<Shape> {
    let agreed = random_shape(random);
    let staged = [ALL, ALL, agreed.staged, 0][random.below(4)];
    let (words, differ) = (random_words(random), random.below(2) == 0);
    let late = agreed.late && !differ;
    let agreed = Shape { staged, words, late, heap: HEAP, deadline: PATIENCE, ..agreed };
    let mut of_pe = |_| {
        let drawn = random_shape(random);
        let bounces = [drawn.bounce, (256, 4, 3), (4096, 3, 2), (65_536, 4, 4), (1 << 17, 8, 8)];
        Shape {
            depth: [64, drawn.depth][random.below(2)],
            max_segment: [3, drawn.max_segment][random.below(6).min(1)],
            bounce: bounces[random.below(5)],
            needs_desc: drawn.needs_desc,
            fast: drawn.fast,
            signals: drawn.signals,
            counted: drawn.counted,
            spread: drawn.spread,
            ..agreed.clone()
        }
    };
    let n = agreed.n_pes;
    if differ { (0..n).map(of_pe).collect() } else { vec![of_pe(0); n as usize] }
}

#[test]
fn mixed_operations_keep_their_order() {
    for_seeds("mixed_operations_keep_their_order", &[3844272156], 70, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 5);
        let shapes = draw_shapes(&mut random);
        // A program ends soon.
        let drawn = random_script(&mut random);
        let again_percent = drawn.again_percent.min(50);
        let script = Script { slow_rails: Vec::new(), again_percent, ..drawn };
        let mut job = Job::of(seed, &shapes, script);
        let fabric = job.fabric.clone();
        let n = shapes.len();
        for pe in (0..n as u32).filter(|_| random.below(6) == 0) {
            fabric.world().blind.insert(Pe(pe));
        }
        let ordered = random.below(3) == 0;
        if ordered {
            job = job.with_ordered_signals();
        }
        let (mut known, mut loose) = (Vec::new(), Vec::new());
        for (pe, member) in (0..).zip(&job.members) {
            let steady: Vec<u8> = (0..STEADY_LEN).map(|at| pattern(pe, at)).collect();
            fabric.store(Pe(pe), member.base + STEADY, &steady);
            let of = |set: u32| set.checked_shr(2 * pe).unwrap_or(0) & 3;
            let has_devices = of(shapes[0].staged) != 0 || of(shapes[0].words) > 1;
            let device = [Reach::Staged, Reach::Fabric][random.below(2)];
            let kinds = [Some(Reach::Direct), Some(device).filter(|_| has_devices)];
            let alloc = |reach| fabric.alloc_reached(Pe(pe), AREA, reach);
            loose.push(kinds.into_iter().flatten().map(alloc).collect::<Vec<usize>>());
            let mut regions =
                vec![(member.base, HEAP, member.handle), (member.words, HEAP, member.words_handle)];
            for _ in 0..random.below(4) {
                let base = [member.base, member.words][random.below(2)];
                let at = random.below(HEAP) * random.below(2);
                let len = [HEAP - at, 1 + random.below(HEAP - at)][random.below(2)];
                let handle = member.regions.register(base + at, len, Access::LocalAndRemote);
                regions.push((base + at, len, handle.unwrap()));
            }
            known.push(regions);
        }
        let is_slow = |shape: &Shape| shape.bounce.0 < 4096 || shape.max_segment < 1000;
        let longest = if shapes.iter().any(is_slow) { 2000 } else { HEAP };
        let (steps, has_batches) = (20 + random.below(100), random.below(3) == 0);
        let distance = [1, 1, 0, 2][random.below(4)];
        let (fabric, members) = race(job, seed, |me, member, targets| {
            let bases = std::iter::once(member.scratch).chain(loose[me as usize].iter().copied());
            let area = |base| Area { base, sources: vec![0; LANDING], end: LANDING };
            let mut program = Program {
                me,
                areas: bases.map(area).collect(),
                member,
                targets,
                known: &known,
                fabric: &fabric,
                random: Random(seed ^ u64::from(me + 1) << 40),
                extra: Vec::new(),
                longest,
                favourite: (me as usize + distance) % n,
                to: 0,
                links: (0..n).map(|_| Link::default()).collect(),
            };
            program.fill(true);
            program.run(steps, has_batches).unwrap()
        });
        let events = fabric.events();
        for (member, links) in &members {
            assert!(member.lane.failure().is_none());
            for (pe, link) in (0..).map(Pe).zip(links) {
                are_in_order(&link.asked, &moments(&link.asked, pe, &events), ordered);
            }
        }
        for (to, sum) in (0..n).flat_map(|to| (0..4).map(move |sum| (to, sum))) {
            let added: u32 = members.iter().map(|(_, links)| links[to].sums[sum]).sum();
            let found = fabric.load(Pe(to as u32), members[to].0.words + SUMS + 8 * sum, 4);
            assert_eq!(found, added.to_le_bytes(), "sum {sum} of PE {to}");
        }
    });
}
