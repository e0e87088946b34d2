//! Ranks driven by hand: one thread calls for several ranks of its process, in passes as NCCL's
//! progress thread makes them, so that calls can be counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, SIGNAL_INC};
use test_jobs::Meeting;
use test_jobs::Place;
use test_jobs::memory::{Kind, Memory, bound, device};

use crate::mock::group::{Communicator, Connection, DEVICE};
use crate::mock::library::{
    Answer, At, Block, Context, Group, On, Plugin, Rank, Region, Request, Signal,
};
use crate::mock::log;
use crate::mock::pair::communicator;
use crate::mock::proxy::Style;
use crate::mock::wait::until;

const LEN: usize = 512;
const MEMORY: usize = 4096 + 64 * LEN;

pub(crate) struct Driven {
    connection: Connection,
    plugin: Arc<Plugin>,
    rank: usize,
    group: Group,
    block: Block,
    region: Region,
    memory: Memory,
    open: Vec<Request>,
}

impl Driven {
    fn on(&self, to: usize) -> On {
        On { block: self.block, context: Context(0), rank: Rank(to as u32), flags: 0 }
    }

    fn at(&self, offset: usize) -> At {
        At { region: self.region, offset: offset as u64 }
    }

    fn source(&self) -> At {
        self.at(MEMORY - LEN)
    }

    fn put_signal(&mut self, to: usize, len: usize) {
        let signal =
            Signal { at: self.at(8 * self.rank), value: 0, operation: SIGNAL_INC, strong: true };
        let target = self.at(4096 + self.rank * LEN);
        let on = self.on(to);
        let request = self.plugin.put_signal(on, self.source(), len, target, signal).unwrap();
        self.open.push(request);
    }

    fn test_all(&mut self) {
        let Self { plugin, group, open, .. } = self;
        open.retain(|request| !plugin.test(*group, *request).unwrap());
    }

    fn progress(&self) {
        self.plugin.progress(self.block).unwrap();
    }

    fn pass(&mut self) {
        self.test_all();
        self.progress();
    }

    fn signals(&self, from: usize) -> u64 {
        self.memory.word(8 * from).load(Ordering::Acquire)
    }

    fn end(self) {
        self.connection.end();
    }
}

fn ranks(communicator: &Communicator, each: usize, meeting: &Meeting) -> Vec<Driven> {
    let plugin = &communicator.plugin;
    let instance = communicator.instance(Style::Device);
    let listens: Vec<_> = (0..each).map(|_| plugin.listen(instance, DEVICE).unwrap()).collect();
    let mine: Vec<u8> = listens.iter().flat_map(|(_, handle)| *handle).collect();
    let all = meeting.allgather(&mine).concat();
    let handles: Vec<Vec<u8>> = all.chunks(mine.len() / each).map(<[u8]>::to_vec).collect();
    let (first, handles) = (meeting.me * each, &handles);
    let connect = |at: usize| {
        let _bound = bound();
        let rank = first + at;
        let (style, rank_of) = (Style::Device, Rank(rank as u32));
        let mut connection =
            Connection::of_ranks(communicator, style, handles, rank_of, listens[at].0);
        let block = connection.create_block(1);
        let memory = Memory::new(Kind::of_pe(meeting.me), MEMORY);
        memory.fill(MEMORY - LEN, LEN, |at| (at + rank) as u8);
        let region = connection.register(&memory, MR_FORCE_SO);
        let (plugin, group) = (Arc::clone(plugin), connection.group);
        Driven { connection, plugin, rank, group, block, region, memory, open: Vec::new() }
    };
    thread::scope(|scope| {
        let connect = &connect;
        let threads: Vec<_> = (0..each).map(|at| scope.spawn(move || connect(at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn acquainted(communicator: &Communicator, meeting: &Meeting) -> [Driven; 2] {
    let two = ranks(communicator, 2, meeting);
    let Ok(mut two) = <[Driven; 2]>::try_from(two) else { panic!("two were asked for") };
    for one in &mut two {
        one.put_signal(1 - one.rank, LEN);
    }
    until("the first signals", || {
        two.iter_mut().for_each(Driven::pass);
        two[0].signals(1) == 1 && two[1].signals(0) == 1 && two.iter().all(|it| it.open.is_empty())
    });
    two
}

fn spread(mut counts: Vec<u64>) -> (u64, u64) {
    counts.sort_unstable();
    (counts[counts.len() / 2], counts[counts.len() - 1])
}

pub(crate) fn run(place: &Place, job: fn(&Communicator, &Meeting)) {
    let communicator = communicator();
    let _bound = bound();
    job(&communicator, &Meeting::of(place));
    communicator.end();
}

pub(crate) fn test_alone(communicator: &Communicator, meeting: &Meeting) {
    const TIMES: usize = 100;
    let [asks, has] = acquainted(communicator, meeting);
    let mut counts = Vec::new();
    for _ in 0..TIMES {
        // So that the helper does not make this rank's progress.
        asks.progress();
        let on = asks.on(1);
        let get = asks.plugin.get(on, asks.at(MEMORY - LEN), 8, asks.at(4096)).unwrap();
        let mut calls = 1;
        while !asks.plugin.test(asks.group, get).unwrap() {
            has.progress();
            calls += 1;
        }
        counts.push(calls);
    }
    let (median, most) = spread(counts);
    println!("calls of test until a get is done: {median} in the median, {most} at most");
    assert!(median <= 8 && most <= 64, "{median} calls in the median, {most} at most");
    asks.end();
    has.end();
}

/// One thread of each of two processes closes its ranks one after the other, which wait for no rank
/// that the same thread closes later. The first process closes as soon as it has seen its signals:
/// the second one's puts are acknowledged all the same.
pub(crate) fn closed_in_turn(communicator: &Communicator, meeting: &Meeting) {
    const EACH: usize = 4;
    let mut mine = ranks(communicator, EACH, meeting);
    let begun = std::time::Instant::now();
    if meeting.me == 0 {
        until("the others' signals", || {
            mine.iter().for_each(Driven::progress);
            mine.iter().enumerate().all(|(at, one)| one.signals(EACH + at) == 1)
        });
    } else {
        for (at, one) in mine.iter_mut().enumerate() {
            one.put_signal(at, LEN);
        }
        until("acknowledgements", || {
            mine.iter_mut().for_each(Driven::pass);
            mine.iter().all(|one| one.open.is_empty())
        });
        // In another order than the other process.
        mine.reverse();
    }
    mine.into_iter().for_each(Driven::end);
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(4), "closing {EACH} ranks took {took:?}");
    assert!(log::lines().iter().all(|line| !line.text.contains("without all ranks")));
}

pub(crate) fn seen_by_others(communicator: &Communicator, meeting: &Meeting) {
    let mut three = ranks(communicator, 3, meeting);
    let properties = three[0].plugin.rma_properties(three[0].group).expect("the newest table");
    assert!(properties.unwrap().flushes_all_puts_on_any_signal);
    for time in 1..=50_u8 {
        let [puts, signals, target] = &mut three[..] else { panic!("three") };
        puts.memory.fill(MEMORY - LEN, LEN, |at| time.wrapping_mul(7).wrapping_add(at as u8));
        let on = puts.on(2);
        let put = puts.plugin.put(on, puts.source(), LEN, puts.at(4096)).unwrap();
        puts.open.push(put);
        until("a put", || {
            puts.pass();
            target.pass();
            puts.open.is_empty()
        });
        signals.put_signal(2, 0);
        until("a signal", || {
            signals.pass();
            target.pass();
            target.signals(1) == u64::from(time)
        });
        assert!(target.memory.bytes(4096, LEN) == puts.memory.bytes(MEMORY - LEN, LEN));
    }
    three.into_iter().for_each(Driven::end);
}

/// A communicator's groups share what a device has once.
pub(crate) fn groups(communicator: &Communicator, meeting: &Meeting) {
    const LOCKED: u64 = 16 << 20;
    let before = (device().contexts(), device().locked());
    for count in [1, 2, 4, 8] {
        let groups: Vec<Driven> =
            (0..count).map(|_| ranks(communicator, 1, meeting).remove(0)).collect();
        assert_eq!(device().contexts(), before.0 + 1, "{count} groups");
        let locked = device().locked() - before.1;
        println!("{count} groups: {} MiB are page-locked", locked >> 20);
        let most = count * meeting.n_pes as u64 * LOCKED + (1 << 20);
        assert!(locked <= most, "{count} groups: {locked} bytes are page-locked");
        meeting.barrier();
        groups.into_iter().for_each(Driven::end);
        meeting.barrier();
    }
}

/// A rank that gives up before it connects ends the others' connect soon, with its name.
pub(crate) fn aborted_connect(place: &Place) {
    let meeting = Meeting::of(place);
    let communicator = communicator();
    let plugin = &communicator.plugin;
    let instance = communicator.instance(Style::Device);
    let (listening, handle) = plugin.listen(instance, DEVICE).unwrap();
    let handles = meeting.allgather(&handle);
    let last = place.n_pes - 1;
    if place.me != last {
        let begun = std::time::Instant::now();
        let refused: Answer<Group> = plugin.connect(instance, &handles, Rank(place.me), listening);
        assert!(refused.is_err() && begun.elapsed() < std::time::Duration::from_secs(30));
        let told = log::warnings().join("\n");
        assert!(place.me != 0 || told.contains(&format!("PE {last}")), "{told}");
    }
    plugin.close_listen(listening).unwrap();
    meeting.barrier();
    communicator.end();
}
