//! All operations among all PEs, from several threads, with every byte and word checked.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;

use channel_producer::{Producer, set_block};
use engine::wire::handle::Handle;
use nvshmem_transport_libfabric::bootstrap::TcpBootstrap;
use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, Options};

use super::memory::{load_early, local, symmetric};
use test_jobs::Place;
use test_jobs::memory::Heap;

/// `NLF_CMP_GE` of the device header.
pub(crate) const AT_LEAST: u32 = 3;

pub(crate) fn bootstrap(place: &Place) -> Box<TcpBootstrap> {
    load_early();
    Box::new(test_jobs::bootstrap(place))
}

pub(crate) fn options() -> Options {
    Options { rings: 2, slots: 256, ..Options::from_env().unwrap() }
}

pub(crate) fn producer(channel: &Channel) -> Producer {
    // SAFETY: scenarios end their threads before they end the channel.
    unsafe { Producer::new(channel.context()) }
}

const THREADS: usize = 2;
const ROUNDS: u64 = 12;

/// Where things are in the heap. Words first: what all add to, tickets, a lock.
const SUM: usize = 0;
const TICKET: usize = 8;
const SWAPPED: usize = 16;
const NARROW: usize = 24;
const MARKS: usize = 4096;
const SIGNALS: usize = 16 << 10;
const ACKS: usize = 20 << 10;
const ORDERED: usize = 24 << 10;
const VALUES: usize = 28 << 10;
const STATIC: usize = 64 << 10;
const STATIC_LEN: usize = 64 << 10;
const AREAS: usize = 256 << 10;
const AREA: usize = 192 << 10;

/// Values that travel with their requests: where in a sender's 16 bytes, and how many.
const WIDTHS: [(usize, u32); 4] = [(0, 8), (8, 4), (12, 2), (14, 1)];

const SIZES: [usize; 7] = [8, 1, 200, 4096, 333, 70_001, 180_000];

fn pattern(sender: usize, thread: usize, round: u64, at: usize) -> u8 {
    (sender * 31 + thread * 17 + round as usize * 7 + at * 3 + (at >> 8) * 5 + 1) as u8
}

/// Odd rounds take two slots of a ring for eight bytes, even ones one.
fn wide(round: u64) -> u64 {
    if round % 2 == 0 {
        round << 8 | 1
    } else {
        round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
    }
}

fn fixed(pe: usize, at: usize) -> u8 {
    (pe * 13 + at * 5 + (at >> 8) * 3 + 7) as u8
}

struct Worker<'a> {
    p: Producer,
    heap: Heap,
    /// Its own registered memory: what it sends, then what it gets.
    local: Heap,
    me: usize,
    n: usize,
    thread: usize,
    tickets: &'a Mutex<Vec<u64>>,
}

const GOT: usize = AREA;
const RESULTS: usize = 2 * AREA;
const LOCAL: usize = RESULTS + 4096;

impl Worker<'_> {
    fn slot(&self, kind: usize, sender: usize) -> usize {
        kind + (sender * THREADS + self.thread) * 16
    }

    fn area(&self, sender: usize) -> usize {
        AREAS + (sender * THREADS + self.thread) * AREA
    }

    fn len(&self, sender: usize, to: usize, round: u64) -> usize {
        SIZES[(round as usize * 5 + sender * 3 + to + self.thread) % SIZES.len()]
    }

    fn run(&self) {
        let ok = c::NLF_OK as i32;
        set_block(self.thread as u32);
        for round in 1..=ROUNDS {
            self.send(round);
            self.receive(round);
            self.read_and_count(round);
            let acks = self.heap.here(self.slot(ACKS, self.me), 8).cast();
            // SAFETY: a word of the heap.
            let waited = unsafe { self.p.wait_until(acks, AT_LEAST, round * self.n as u64) };
            assert_eq!(waited, ok);
        }
        assert_eq!(self.p.quiet(), ok);
    }

    fn send(&self, round: u64) {
        let Self { p, heap, local, me, .. } = self;
        let ok = c::NLF_OK as i32;
        let longest = (0..self.n).map(|to| self.len(*me, to, round)).max().unwrap_or(0);
        local.fill(0, longest, |at| pattern(*me, self.thread, round, at));
        local.word(RESULTS + 64).store(round, Ordering::Relaxed);
        for to in 0..self.n {
            let (len, pe) = (self.len(*me, to, round), to as i32);
            let (area, signal) = (heap.at(self.area(*me)), heap.at(self.slot(SIGNALS, *me)));
            let (kind, value) =
                if to % 2 == 0 { (c::NLF_KIND_SET, round) } else { (c::NLF_KIND_ADD, 1) };
            assert_eq!(
                p.put_signal_nbi(area, local.at(0), len, signal.cast(), value, kind, pe),
                ok
            );
            // The word in front is seen no later than the one behind the fence.
            let ordered = self.slot(ORDERED, *me);
            let from = local.at(RESULTS + 64);
            assert_eq!(p.put_nbi(heap.at(ordered), from, 8, pe), ok);
            for (at, bytes) in WIDTHS {
                let to = heap.at(self.slot(VALUES, *me) + at);
                assert_eq!(p.p(to, wide(round), bytes, pe), ok);
            }
            assert_eq!(if round % 3 == 0 { p.fence_all() } else { p.fence(pe) }, ok);
            if round % 4 == 0 {
                assert_eq!(p.p(heap.at(ordered + 8), round, 8, pe), ok);
            } else {
                assert_eq!(p.put_nbi(heap.at(ordered + 8), from, 8, pe), ok);
            }
        }
    }

    fn receive(&self, round: u64) {
        let Self { p, heap, me, .. } = self;
        let ok = c::NLF_OK as i32;
        for sender in 0..self.n {
            let signal = heap.here(self.slot(SIGNALS, sender), 8).cast();
            // SAFETY: a word of the heap.
            assert_eq!(unsafe { p.wait_until(signal, AT_LEAST, round) }, ok);
            let len = self.len(sender, *me, round);
            let found = heap.bytes(self.area(sender), len);
            let right = (0..len).all(|at| found[at] == pattern(sender, self.thread, round, at));
            assert!(right, "round {round}: {len} bytes of PE {sender}");
            let ordered = self.slot(ORDERED, sender);
            let last = heap.here(ordered + 8, 8).cast();
            // SAFETY: a word of the heap.
            assert_eq!(unsafe { p.wait_until(last, AT_LEAST, round) }, ok);
            assert_eq!(
                heap.word(ordered).load(Ordering::Acquire),
                round,
                "what was before the fence"
            );
            for (at, bytes) in WIDTHS {
                let found = heap.bytes(self.slot(VALUES, sender) + at, bytes as usize);
                let expected = wide(round).to_le_bytes();
                assert_eq!(*found, expected[..bytes as usize], "{bytes} bytes");
            }
            let ack = heap.at(self.slot(ACKS, sender)).cast();
            assert_eq!(p.signal(ack, 1, c::NLF_KIND_ADD, sender as i32), ok);
        }
    }

    fn read_and_count(&self, round: u64) {
        let Self { p, heap, local, n, .. } = self;
        let ok = c::NLF_OK as i32;
        let null = std::ptr::null_mut();
        let (from, len) = ((round as usize * 97) % 4096, [8, 4000, 60_000][round as usize % 3]);
        let to = (self.me + self.thread + round as usize) % n;
        let result = |at: usize| local.at(RESULTS + at);
        assert_eq!(p.get_nbi(local.at(GOT), heap.at(STATIC + from), len, to as i32), ok);
        for pe in 0..*n {
            let sum = heap.at(SUM).cast();
            assert_eq!(p.atomic64_nbi(c::NLF_KIND_ADD, null, sum, 3, 0, pe as i32), ok);
            let narrow = heap.at(NARROW).cast();
            let none = std::ptr::null_mut();
            assert_eq!(p.atomic32_nbi(c::NLF_KIND_XOR, none, narrow, 1 << 30, 0, pe as i32), ok);
        }
        local.fill(RESULTS, 32, |_| 0xaa);
        let ticket = heap.at(TICKET).cast();
        assert_eq!(p.atomic64_nbi(c::NLF_KIND_ADD, result(0).cast(), ticket, 1, 0, 0), ok);
        let wide = heap.at(SWAPPED).cast();
        let before = round - 1;
        let (old, new) = if self.thread == 0 { (before, round) } else { (u64::MAX, 0) };
        let swap = c::NLF_KIND_COMPARE_SWAP;
        assert_eq!(p.atomic64_nbi(swap, result(8).cast(), wide, new, old, self.me as i32), ok);
        let fetch = c::NLF_KIND_FETCH;
        let half = heap.at(STATIC).cast();
        assert_eq!(p.atomic32_nbi(fetch, result(16).cast(), half, 0, 0, to as i32), ok);
        assert_eq!(p.quiet(), ok);

        let found = local.bytes(GOT, len);
        assert!((0..len).all(|at| found[at] == fixed(to, from + at)), "get of round {round}");
        self.tickets.lock().unwrap().push(local.word(RESULTS).load(Ordering::Acquire));
        let swapped = local.word(RESULTS + 8).load(Ordering::Acquire);
        if self.thread == 0 {
            assert_eq!(swapped, before, "nobody else changes it");
        } else {
            assert!(swapped <= ROUNDS, "compared and left alone");
        }
        let fetched = local.bytes(RESULTS + 16, 8);
        assert!((0..4).all(|at| fetched[at] == fixed(to, at)), "the low half alone");
        assert_eq!(fetched[4..], [0xaa; 4], "four bytes and no more");
    }
}

pub(crate) fn traffic(place: &Place) {
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    let (me, n) = (place.me as usize, place.n_pes as usize);
    let (heap, _own) = symmetric(&channel, place, AREAS + n * THREADS * AREA);
    let pe = place.me;
    let handle = channel.on_proxy(move |view| view.remote(0, pe).unwrap().1).unwrap();
    assert_eq!(Handle::decode(&handle).unwrap().staged.is_some(), heap.is_on_device());
    heap.fill(STATIC, STATIC_LEN, |at| fixed(me, at));
    let locals: Vec<_> = (0..THREADS).map(|_| local(&channel, place, LOCAL)).collect();
    channel.barrier().unwrap();
    let tickets = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (thread, local) in locals.iter().enumerate() {
            let (p, local, tickets) = (producer(&channel), **local, &tickets);
            let worker = Worker { p, heap, local, me, n, thread, tickets };
            scope.spawn(move || worker.run());
        }
    });
    let p = producer(&channel);
    for ticket in tickets.into_inner().unwrap() {
        let mark = heap.at(MARKS + ticket as usize * 8).cast();
        assert_eq!(p.signal(mark, 1, c::NLF_KIND_ADD, 0), 0);
    }
    assert_eq!(p.quiet_all(), 0);
    channel.barrier().unwrap();
    let each = n as u64 * THREADS as u64 * ROUNDS;
    assert_eq!(heap.word(SUM).load(Ordering::Acquire), 3 * each);
    assert_eq!(heap.word(NARROW).load(Ordering::Acquire), (each % 2) << 30);
    if me == 0 {
        let marks = (0..each as usize).map(|at| heap.word(MARKS + at * 8).load(Ordering::Acquire));
        assert!(marks.into_iter().all(|mark| mark == 1), "each ticket was given once");
    }
    assert_eq!(channel.error(), None);
    for local in &locals {
        channel.release(local.at(0)).unwrap();
    }
    channel.release(heap.at(0)).unwrap();
    assert!(channel.release(heap.at(0)).is_err());
    channel.stop().unwrap();
}
