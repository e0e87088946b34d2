//! The program of a PE.

use test_support::random::bytes;

use super::{
    AGAIN, APART, AREA, CHANGED, HEAP, LANDING, LAST, LONGEST_RUN, MAX_AGAIN, ONCE, PART, Plan,
    SOURCES, STEADY, STEADY_LEN, SUMS,
};
use crate::prelude::*;

pub(crate) type Region = (usize, usize, HandleBytes);

/// An effect that the target sees once.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) at: usize,
    /// How many fences it comes behind.
    pub(super) fences: usize,
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
    pub(super) op: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Put,
    /// Behind fences alone.
    Atomic,
    /// Behind all puts before it.
    Signal,
    /// Behind so many puts right before it.
    SignalOfPuts(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Refused,
    /// Begun, and not yet promised to be delivered.
    Open,
    Promised,
}

/// Operations of one PE towards another.
#[derive(Default, Debug)]
pub(crate) struct Link {
    pub(super) ops: Vec<(End, Batch)>,
    pub(super) asked: Vec<Asked>,
    fences: usize,
    /// Where the next put goes, and how many words were changed once.
    end: usize,
    words: usize,
    /// What is put again and again, and words that are changed so by width.
    again: Vec<u8>,
    last: [u64; 3],
    /// Operations that add to a word, which has a byte for each sender.
    pub(super) sums: Vec<(usize, usize)>,
    /// Local places and what their operation has come there.
    pub(super) fetched: Vec<(usize, usize, Vec<u8>)>,
}

impl Link {
    pub(super) fn is_promised(&self, op: usize) -> bool {
        self.ops[op].0 == End::Promised
    }

    pub(crate) fn all_promised(&self) -> bool {
        self.ops.iter().all(|(end, _)| *end == End::Promised)
    }

    pub(crate) fn batches(&self) -> impl Iterator<Item = Batch> + '_ {
        self.ops.iter().map(|(_, batch)| *batch)
    }
}

pub(super) struct Program<'a> {
    pub(super) me: u32,
    pub(super) member: &'a mut Member,
    pub(super) targets: &'a Targets,
    /// The regions of each PE that its peers know, inside of one another too.
    pub(super) known: &'a [Vec<Region>],
    pub(super) fabric: &'a FakeFabric,
    pub(super) random: Random,
    /// Local memory, and where in each bytes are fetched to next.
    pub(super) areas: Vec<(usize, usize)>,
    pub(super) extra: Vec<Region>,
    pub(super) plan: &'a Plan,
    pub(super) batch: Batch,
    /// The PE that most operations go to, and the one that the next one goes to.
    pub(super) favourite: usize,
    pub(super) to: usize,
    pub(super) links: Vec<Link>,
}

impl<'a> Program<'a> {
    fn link(&mut self) -> &mut Link {
        &mut self.links[self.to]
    }

    fn pe(&self) -> Pe {
        Pe(self.to as u32)
    }

    fn op(&mut self) -> usize {
        self.link().ops.len() - 1
    }

    fn fill(&mut self, may_be_used: bool) {
        let sources = (0..LANDING).step_by(APART);
        let all = sources.flat_map(|at| self.areas.iter().map(move |(base, _)| base + at));
        for source in all.collect::<Vec<usize>>() {
            let is_unused = self.member.lane.check_unused(source, APART).is_ok();
            assert!(may_be_used || is_unused, "wrong: after a quiet {source:#x} is in use");
            if is_unused {
                let key = self.random.below(1 << 20) as u64;
                self.fabric.store(Pe(self.me), source, &bytes(key, APART));
            }
        }
    }

    fn source(&mut self, len: usize) -> (usize, Vec<u8>) {
        // Across the borders between the sources, too.
        let from = self.random.below(SOURCES) * APART + self.random.below(3) * 500;
        let mut at = self.areas[self.random.below(self.areas.len())].0 + from.min(LANDING - len);
        if len < STEADY_LEN && self.random.below(8) == 0 {
            at = self.member.base + STEADY + self.random.below(STEADY_LEN - len);
        }
        (at, self.fabric.load(Pe(self.me), at, len))
    }

    fn land(&mut self, len: usize) -> Option<usize> {
        let count = self.areas.len();
        let (base, end) = &mut self.areas[self.random.below(count)];
        let at = end.next_multiple_of(8) + self.random.below(2) * 8;
        *end = at + len;
        (*end <= AREA).then_some(*base + at)
    }

    fn handle(&mut self, addr: usize, len: usize) -> &'a HandleBytes {
        let known = self.known;
        let holds = |region: &&Region| region.0 <= addr && addr + len <= region.0 + region.1;
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
        let (fences, op) = (self.link().fences, self.op());
        self.link().asked.push(Asked { at, fences, kind, bytes, op });
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

    fn promise(&mut self, of: Option<Batch>) {
        let is_meant = |(end, batch): &&mut (End, Batch)| {
            *end == End::Open && of.is_none_or(|of| of == *batch && of != Batch::NONE)
        };
        let mut count = 0;
        for (end, _) in self.link().ops.iter_mut().filter(is_meant) {
            (*end, count) = (End::Promised, count + 1);
        }
        if count > 0 {
            self.links[self.to].check(self.fabric, (Pe(self.me), self.pe()), |_| false);
        }
    }

    fn quiet(&mut self) -> Outcome {
        self.member.lane.quiet(self.pe())?;
        self.promise(None);
        let (fabric, pe, again) = (self.fabric, self.pe(), self.place(AGAIN));
        let last = self.targets.word(self.to as u32, self.me as usize * PART + LAST);
        let link = self.link();
        link.fences += 1;
        if link.all_promised() {
            let found = fabric.load(pe, again, link.again.len());
            assert!(found == link.again, "wrong: what was put again and again to {pe}");
            let changed = link.last.map(u64::to_le_bytes).concat();
            assert_eq!(fabric.load(pe, last, changed.len()), changed, "wrong: words of {pe}");
        }
        Ok(())
    }

    fn wait(&mut self) -> Outcome {
        while self.plan.has_faults() && !self.member.lane.is_quiet(self.pe())? {
            let _ = self.member.lane.progress();
            self.fabric.pass_time(2_000_000);
            self.fabric.step();
            let took = Duration::from_nanos(self.fabric.now());
            assert!(took < LONGEST_RUN, "hang: PE {} waits for {}", self.me, self.pe());
        }
        self.quiet()
    }

    fn quiet_all(&mut self) -> Outcome {
        let quiets: Vec<Outcome> = (0..self.links.len())
            .map(|to| {
                self.to = to;
                self.wait()
            })
            .collect();
        quiets.into_iter().collect::<Outcome>()?;
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
        let len = len.min(self.plan.longest);
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
        self.link().ops.last_mut().unwrap().0 = End::Promised;
        self.links[self.to].check(self.fabric, (Pe(self.me), self.pe()), |_| false);
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

    /// Gets in a row may share a request.
    fn get_some(&mut self) -> Outcome {
        let most = [1, 8, 64][self.random.below(3)];
        (0..=self.random.below(most)).try_for_each(|_| self.get(most))
    }

    fn get(&mut self, most: usize) -> Outcome {
        let len = 1 + self.random.below(self.plan.longest.min(STEADY_LEN - 1) / most);
        let at = self.random.below(STEADY_LEN - len);
        let Some(local) = self.land(len) else { return Ok(()) };
        let place = self.targets.heap(self.to as u32, STEADY + at);
        let get = Request { direction: Direction::Read, ..self.part_at(place, local, len) };
        let (op, bytes) = (self.op(), self.fabric.load(self.pe(), place, len));
        if self.random.below(8 * most) == 0 {
            self.member.lane.complete(&get)?;
            assert!(self.fabric.load(Pe(self.me), local, len) == bytes, "wrong: got to its end");
        }
        self.link().fetched.push((op, local, bytes));
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
        let op = self.op();
        self.link().fetched.push((op, addr, bytes));
    }

    fn change(&mut self, kind: Kind) -> AtomicRequest<'a> {
        let (add, set) = match kind {
            Kind::Atomic => (AtomicOp::Add, AtomicOp::Set),
            _ => (AtomicOp::SignalAdd, AtomicOp::SignalSet),
        };
        if self.random.below(4) == 0 {
            let (word, op) = (self.random.below(4), self.op());
            self.link().sums.push((op, word));
            return self.word(SUMS + word * 8, add, 1 << (8 * self.me), Width::Four);
        }
        let at = self.me as usize * PART + ONCE + self.link().words * 8;
        self.link().words += 1;
        // Some are in the heap, which may be memory of another kind.
        let places = [self.targets.word(self.to as u32, at), self.targets.heap(self.to as u32, at)];
        let place = places[self.random.below(4) / 3];
        self.ask(kind, place, CHANGED.to_le_bytes().to_vec());
        let width = [Width::Four, Width::Eight][self.random.below(2)];
        let op = [add, set][self.random.below(2)];
        let mut request = self.word(at, op, CHANGED, width);
        request.remote_addr = place as u64;
        request.remote_handle = self.handle(place, 8);
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
        let begun = self.member.lane.atomic(&request);
        if begun.is_ok() {
            self.link().last[at] = request.atomic.apply(before);
        }
        begun
    }

    fn register(&mut self) {
        let memory = self.random.below(2 + self.areas.len());
        let (base, len) = match memory.checked_sub(3) {
            // What begins in a region and ends beside it is a mistake of the caller's.
            Some(loose) => (self.areas[loose + 1].0, AREA),
            None => {
                let base = [self.member.base, self.member.scratch, self.member.words][memory];
                let at = self.random.below(HEAP) * self.random.below(4).min(1);
                (base + at, 1 + self.random.below(HEAP - at))
            }
        };
        let access = [Access::Local, Access::LocalAndRemote][self.random.below(2)];
        let before = self.member.regions.len();
        match self.member.regions.register(base, len, access) {
            Ok(handle) => self.extra.push((base, len, handle)),
            Err(error) => {
                assert!(matches!(error, EngineError::Register { .. }), "wrong: {error}");
                assert_eq!(self.member.regions.len(), before, "wrong: a region is left over");
            }
        }
    }

    fn release(&mut self) {
        if self.extra.is_empty() {
            return;
        }
        let at = self.random.below(self.extra.len());
        let (base, len, handle) = self.extra[at];
        // What has failed may still be under way, and the lane does not know.
        let is_unused = self.member.lane.check_unused(base, len).is_ok();
        if is_unused && self.member.regions.release(&handle).is_ok() {
            self.extra.swap_remove(at);
        }
    }

    fn begin(&mut self, begin: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let is_in = self.plan.has_batches && self.random.below(2) == 0;
        let batch = if is_in { self.batch } else { Batch::NONE };
        self.link().ops.push((End::Open, batch));
        self.member.lane.enter_batch(batch);
        let begun = begin(self);
        self.member.lane.enter_batch(Batch::NONE);
        if let (Err(_), Some((end, _))) = (&begun, self.link().ops.last_mut()) {
            *end = End::Refused;
        }
        begun
    }

    fn step(&mut self) -> Outcome {
        let any = self.random.below(self.links.len());
        self.to = if self.random.below(4) == 0 { any } else { self.favourite };
        let step = self.random.below(48);
        if (16..32).contains(&step) && self.random.below(4) == 0 {
            // Most own words are changed with no message.
            self.to = self.me as usize;
        }
        match step {
            0..12 => self.begin(Self::put)?,
            12..16 => self.begin(Self::put_signal)?,
            16..24 => self.fence()?,
            24..32 => self.begin(|program| {
                let kind = [Kind::Atomic, Kind::Signal][program.random.below(4).min(1)];
                let request = program.change(kind);
                program.member.lane.atomic(&request)
            })?,
            32 => self.begin(Self::put_value)?,
            33 => self.begin(Self::put_again)?,
            34..36 => self.begin(Self::change_again)?,
            36..39 => self.begin(Self::get_some)?,
            39 => self.quiet()?,
            40 => self.quiet_all()?,
            41 => self.register(),
            42 => self.release(),
            // What has failed may still be read, and the lane does not know.
            45 if !self.plan.has_faults() => self.fill(true),
            43 => self.fabric.world().set_rate(RailId(0), 1 + self.random.below(100) as u64),
            44 => self.batch = self.member.lane.begin_batch().unwrap(),
            _ => {
                for _ in 0..self.random.below(6) {
                    self.fabric.step();
                    self.member.lane.progress()?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn run(mut self) -> (Vec<Link>, Vec<Region>) {
        self.fill(true);
        for step in 0..self.plan.steps {
            self.plan.befall(self.me, step, self.fabric);
            let done = self.step();
            assert!(done.is_ok() || self.plan.has_faults(), "wrong: {done:?}");
            for to in 0..self.links.len() {
                self.to = to;
                if self.member.lane.failure().is_none()
                    && self.member.lane.is_batch_done(self.batch)
                {
                    self.promise(Some(self.batch));
                }
            }
        }
        self.plan.befall(self.me, self.plan.steps, self.fabric);
        let quiet = self.quiet_all();
        assert!(quiet.is_ok() || self.plan.has_faults(), "wrong: {quiet:?}");
        while !self.extra.is_empty() && !self.plan.has_faults() {
            self.release();
            self.fabric.step();
            self.member.lane.progress().unwrap();
        }
        (self.links, self.extra)
    }
}
