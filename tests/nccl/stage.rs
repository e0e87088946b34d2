//! A connection with memory, on which rounds are played: everybody sends what the plan says, and
//! looks at what comes in when the signals say that it is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, MR_SIGNAL_NEVER_RESET};
use test_jobs::Meeting;
use test_jobs::memory::{Kind, Memory};
use test_support::random::{bytes, bytes_from};

use crate::mock::group::{Communicator, Connection};
use crate::mock::library::{At, Rank, Region, Signal};
use crate::mock::proxy::{Call, ContextId, Done, Style};
use crate::plan::{
    From, Mark, Mix, PlannedOp, Round, SHARED, STATIC, STEPS, Step, WORDS, Way, Word, fixed,
};

const SPENT: u8 = 0xee;

#[derive(Clone)]
struct Named {
    area: Arc<Memory>,
    region: Region,
}

impl Named {
    fn new(connection: &Connection, area: Memory, flags: u64) -> Self {
        let region = connection.register(&area, flags);
        Self { area: Arc::new(area), region }
    }

    fn at(&self, offset: usize) -> At {
        At { region: self.region, offset: offset as u64 }
    }
}

pub(crate) struct Stage {
    pub(crate) connection: Arc<Connection>,
    me: usize,
    n_pes: usize,
    area: usize,
    n_contexts: usize,
    /// Of each context: its block, and which it is there.
    places: Vec<(usize, usize)>,
    /// What is got by all, an area for each context and sender, and [`Word::BesideData`].
    window: Named,
    /// An area for each context and target of what is put there, and of what is got from there.
    local: Named,
    /// Of each context: values on the host, for each target and step one.
    inlines: Vec<Named>,
    signals: Vec<Named>,
    words: BTreeMap<(usize, usize, Word), u64>,
}

impl Stage {
    pub(crate) fn new(
        communicator: &Communicator,
        (style, mix): (Style, Mix),
        blocks: &[usize],
        meeting: &Meeting,
    ) -> Self {
        let (me, n_pes) = (meeting.me, meeting.n_pes);
        let kind = Kind::of_pe(me);
        let mut connection = communicator.connect(style, meeting);
        let (mut places, mut inlines, mut signals) = (Vec::new(), Vec::new(), Vec::new());
        let n_contexts: usize = blocks.iter().sum();
        let area = mix.area();
        let areas = n_contexts * n_pes * area;
        // A window that is there before kernels are, and one that comes later.
        let beside = n_contexts * SHARED * 8;
        let memory = Memory::new(kind, STATIC + areas + beside);
        memory.write(0, &bytes(fixed(me), STATIC));
        let window = Named::new(&connection, memory, MR_FORCE_SO);
        for (block, contexts) in blocks.iter().enumerate() {
            connection.create_block(*contexts);
            let words = contexts * (n_pes * WORDS + SHARED);
            let flags = MR_FORCE_SO | MR_SIGNAL_NEVER_RESET;
            signals.push(Named::new(&connection, Memory::new(kind, 8 * words), flags));
            for context in 0..*contexts {
                places.push((block, context));
                // Unaligned.
                let values = Memory::host(8 * n_pes * STEPS, 3);
                inlines.push(Named::new(&connection, values, 0));
            }
        }
        let local = match kind {
            Kind::Host => Memory::host(2 * areas, 5),
            kind => Memory::new(kind, 2 * areas),
        };
        let local = Named::new(&connection, local, 0);
        if let Some(properties) = connection.plugin.rma_properties(connection.group) {
            properties.unwrap();
        }
        connection.start();
        let (connection, words) = (Arc::new(connection), BTreeMap::new());
        Self {
            connection,
            me,
            n_pes,
            area,
            n_contexts,
            places,
            window,
            local,
            inlines,
            signals,
            words,
        }
    }

    pub(crate) fn play(&mut self, round: &Round, meeting: &Meeting) {
        assert!(round.mix.area() <= self.area);
        let incoming: Vec<Incoming> = self.ways_in().map(|way| Incoming::new(round, way)).collect();
        for way in self.ways_in() {
            self.window.area.write(self.inbound(way), &bytes(round.guards(way), self.area));
        }
        for way in self.ways_out() {
            let guards = bytes(round.guards(way), self.area);
            self.local.area.write(self.outbound(way), &guards);
            self.local.area.write(self.got(way), &guards);
        }
        meeting.barrier();
        let before = self.words.clone();
        for way in self.ways_out() {
            for (number, step) in round.steps(way).iter().enumerate() {
                self.post(way, number, step);
            }
        }
        self.watch(incoming, &before);
        self.connection.queues().drain();
        self.look_at_everything(round);
        assert!(!self.connection.has_error());
        meeting.barrier();
        // Words beside data may be set back by who has them.
        for context in 0..self.n_contexts {
            for word in (0..SHARED).map(Word::BesideData) {
                self.word(context, 0, word).store(0, Ordering::Release);
                self.words.remove(&(context, 0, word));
            }
        }
    }

    fn ways_in(&self) -> impl Iterator<Item = Way> + use<> {
        let (n_contexts, n_pes, target) = (self.n_contexts, self.n_pes, self.me);
        (0..n_contexts)
            .flat_map(move |context| (0..n_pes).map(move |sender| Way { context, sender, target }))
    }

    fn ways_out(&self) -> impl Iterator<Item = Way> + use<> {
        let (n_contexts, n_pes, sender) = (self.n_contexts, self.n_pes, self.me);
        (0..n_contexts)
            .flat_map(move |context| (0..n_pes).map(move |target| Way { context, sender, target }))
    }

    fn inbound(&self, way: Way) -> usize {
        STATIC + (way.context * self.n_pes + way.sender) * self.area
    }

    fn outbound(&self, way: Way) -> usize {
        (way.context * self.n_pes + way.target) * self.area
    }

    fn got(&self, way: Way) -> usize {
        self.outbound(way) + self.n_contexts * self.n_pes * self.area
    }

    fn inline(&self, way: Way, number: usize) -> usize {
        8 * (way.target * STEPS + number)
    }

    fn place_of(&self, context: usize, sender: usize, word: Word) -> (&Named, usize) {
        let (block, at) = self.places[context];
        let contexts = self.connection.blocks[block].1;
        let its = (at * self.n_pes + sender) * WORDS;
        let place = match word {
            Word::Count => its,
            Word::Own(number) => its + 1 + number,
            Word::Slot(number) => its + WORDS - STEPS + number,
            Word::Shared(number) => contexts * self.n_pes * WORDS + at * SHARED + number,
            Word::BesideData(number) => {
                let areas = self.n_contexts * self.n_pes * self.area;
                return (&self.window, STATIC + areas + 8 * (context * SHARED + number));
            }
        };
        (&self.signals[block], 8 * place)
    }

    fn word(&self, context: usize, sender: usize, word: Word) -> &std::sync::atomic::AtomicU64 {
        let (named, place) = self.place_of(context, sender, word);
        named.area.word(place)
    }

    /// Gives a step to the progress thread; what was sent is spoilt once the plugin is done.
    fn post(&self, way: Way, number: usize, step: &Step) {
        let (context, rank) = (ContextId(way.context), Rank(way.target as u32));
        let queues = self.connection.queues();
        let signal = |mark: Mark| {
            let (named, place) = self.place_of(way.context, way.sender, mark.word);
            let Mark { value, operation, strong, .. } = mark;
            Signal { at: named.at(place), value, operation, strong }
        };
        match step.what {
            PlannedOp::Put { from, to, len, mark } => {
                let (source, offset) = match from {
                    From::Area(from) => (&self.local, self.outbound(way) + from),
                    From::Inline => (&self.inlines[way.context], self.inline(way, number)),
                };
                source.area.write(offset, &step.bytes());
                let spent = Arc::clone(&source.area);
                let done: Done = Box::new(move || {
                    spent.fill(offset, len, |_| SPENT);
                    Ok(())
                });
                let (from, to) = (source.at(offset), self.window.at(self.inbound(way) + to));
                let call = match mark {
                    None => Call::Put { from, len, to },
                    Some(mark) => Call::PutSignal { from, len, to, signal: signal(mark) },
                };
                queues.post(context, rank, call, done);
            }
            PlannedOp::Signal(mark) => {
                let (from, to) = (At::NOWHERE, At::NOWHERE);
                let call = Call::PutSignal { from, len: 0, to, signal: signal(mark) };
                queues.post(context, rank, call, Box::new(|| Ok(())));
            }
            PlannedOp::Get { from, to, len } => {
                let to = self.got(way) + to;
                let call = Call::Get { from: self.window.at(from), len, to: self.local.at(to) };
                let got = Arc::clone(&self.local.area);
                // What was got is there behind a flush, which goes to the own rank.
                let flush = Call::Flush { region: self.signals[self.places[way.context].0].region };
                let me = Rank(self.me as u32);
                let again = Arc::downgrade(queues);
                let look: Done = Box::new(move || {
                    let right = got.bytes(to, len) == bytes_from(fixed(way.target), from, len);
                    right.then_some(()).ok_or_else(|| format!("{len} bytes got, {way:?}"))
                });
                let done: Done = Box::new(move || {
                    let queues = again.upgrade().ok_or("the thread has ended")?;
                    queues.post(context, me, flush, look);
                    Ok(())
                });
                queues.post(context, rank, call, done);
            }
        }
    }

    fn watch(&mut self, mut incoming: Vec<Incoming>, before: &Words) {
        self.connection.queues().wait("what others send", || {
            for one in &mut incoming {
                one.look(self, before);
            }
            incoming.iter().all(|one| one.is_complete())
        });
        for one in &incoming {
            for mark in one.steps.iter().filter_map(Step::mark) {
                *self.words.entry(one.key(mark.word)).or_default() += mark.adds();
            }
        }
    }

    fn look_at_everything(&self, round: &Round) {
        for way in self.ways_in() {
            let (mut expected, steps) = (bytes(round.guards(way), self.area), round.steps(way));
            for step in &steps {
                if let PlannedOp::Put { to, len, .. } = step.what {
                    expected[to..to + len].copy_from_slice(&step.bytes());
                }
            }
            let found = self.window.area.bytes(self.inbound(way), self.area);
            compare("what was put", way, &expected, found);
        }
        for way in self.ways_out() {
            let (mut sent, steps) = (bytes(round.guards(way), self.area), round.steps(way));
            let mut got = sent.clone();
            for step in &steps {
                match step.what {
                    PlannedOp::Put { from: From::Area(from), len, .. } => {
                        sent[from..from + len].fill(SPENT);
                    }
                    PlannedOp::Get { from, to, len } => {
                        let its = bytes_from(fixed(way.target), from, len);
                        got[to..to + len].copy_from_slice(&its);
                    }
                    _ => {}
                }
            }
            let local = &self.local.area;
            compare("what was sent", way, &sent, local.bytes(self.outbound(way), self.area));
            compare("what was got", way, &got, local.bytes(self.got(way), self.area));
        }
        let fixed = bytes(fixed(self.me), STATIC);
        assert!(self.window.area.bytes(0, STATIC) == fixed, "what others get has changed");
        for (&(context, sender, word), &value) in &self.words {
            let found = self.word(context, sender, word).load(Ordering::Acquire);
            assert_eq!(found, value, "{word:?} of context {context}, of PE {sender}");
        }
    }

    pub(crate) fn end(self) {
        let mut connection = Arc::into_inner(self.connection).expect("nobody uses it any longer");
        connection.destroy_blocks();
        drop(self.inlines);
        connection.end();
    }
}

type Words = BTreeMap<(usize, usize, Word), u64>;

struct Incoming {
    way: Way,
    steps: Vec<Step>,
    /// Of the steps, those that are known to be there with all before them.
    checked: usize,
    /// Steps with a signal to a word of their own that was not seen.
    unseen: Vec<usize>,
    /// Steps with a signal to the count, and how many of these were seen.
    counted: Vec<usize>,
    seen: usize,
}

impl Incoming {
    fn new(round: &Round, way: Way) -> Self {
        let steps = round.steps(way);
        let with = |is_it: fn(Word) -> bool| {
            let numbers = steps.iter().enumerate();
            let its = numbers.filter(|(_, step)| step.mark().is_some_and(|mark| is_it(mark.word)));
            its.map(|(number, _)| number).collect()
        };
        let unseen = with(|word| matches!(word, Word::Slot(_)));
        let counted = with(|word| word == Word::Count);
        Self { way, steps, checked: 0, unseen, counted, seen: 0 }
    }

    fn key(&self, word: Word) -> (usize, usize, Word) {
        let sender = match word {
            Word::Shared(_) | Word::BesideData(_) => 0,
            _ => self.way.sender,
        };
        (self.way.context, sender, word)
    }

    fn is_complete(&self) -> bool {
        self.seen == self.counted.len() && self.unseen.is_empty()
    }

    fn grown(&self, stage: &Stage, before: &Words, word: Word) -> u64 {
        let (context, sender, word) = self.key(word);
        let found = stage.word(context, sender, word).load(Ordering::Acquire);
        found.wrapping_sub(before.get(&(context, sender, word)).copied().unwrap_or(0))
    }

    fn look(&mut self, stage: &Stage, before: &Words) {
        // What a step's own signal says: that its data is there, and if it is strong, all before.
        let mut unseen = std::mem::take(&mut self.unseen);
        unseen.retain(|&number| {
            let mark = self.steps[number].mark().expect("it has a signal");
            let grown = self.grown(stage, before, mark.word);
            if grown == 0 {
                return true;
            }
            assert_eq!(grown, mark.adds(), "{:?}, step {number}", self.way);
            self.data_is_there(stage, number);
            if mark.strong {
                self.all_is_there(stage, before, number);
            }
            false
        });
        self.unseen = unseen;
        let count = self.grown(stage, before, Word::Count) as usize;
        let most = self.counted.len();
        assert!(self.seen <= count && count <= most, "{:?}: {count} of {most}", self.way);
        if count > self.seen {
            self.all_is_there(stage, before, self.counted[count - 1]);
            self.seen = count;
        }
    }

    /// Checks that bytes and signals of all steps up to one are there.
    fn all_is_there(&mut self, stage: &Stage, before: &Words, last: usize) {
        for number in self.checked..=last {
            self.data_is_there(stage, number);
        }
        self.checked = self.checked.max(last + 1);
        // Of a word of its own at least as much as was added by then.
        let mut least = BTreeMap::new();
        for mark in self.steps[..=last].iter().filter_map(Step::mark) {
            if !matches!(mark.word, Word::Shared(_) | Word::BesideData(_)) {
                *least.entry(mark.word).or_insert(0_u64) += mark.adds();
            }
        }
        for (word, least) in least {
            let grown = self.grown(stage, before, word);
            let way = self.way;
            assert!(
                grown >= least,
                "{way:?}: step {last} is seen, and {word:?} is {grown} of {least}"
            );
        }
    }

    fn data_is_there(&self, stage: &Stage, number: usize) {
        let step = &self.steps[number];
        let PlannedOp::Put { to, len, .. } = step.what else { return };
        let found = stage.window.area.bytes(stage.inbound(self.way) + to, len);
        let expected = step.bytes();
        if found != expected {
            let first = (0..len).find(|at| found[*at] != expected[*at]);
            let way = self.way;
            panic!(
                "{way:?}: a signal is seen, and step {number} is not there, {step:?}: byte {first:?}"
            );
        }
    }
}

fn compare(what: &str, way: Way, expected: &[u8], found: &[u8]) {
    if expected != found {
        let first = (0..found.len()).find(|at| expected[*at] != found[*at]).unwrap_or(0);
        let (is, should) = (found[first], expected[first]);
        panic!("{what}, {way:?}: byte {first} is {is:#x} for {should:#x}");
    }
}
