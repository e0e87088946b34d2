//! What waits: barriers of all PEs, blocking forms, values that are got, quiet with one PE.

use std::sync::atomic::Ordering;

use channel_producer::set_block;
use nvshmem_transport_libfabric::channel::Channel;
use nvshmem_transport_libfabric::channel::sys as c;

use super::memory::symmetric;
use super::traffic::{bootstrap, options, producer};
use test_jobs::Place;

const TOLD: usize = 0;
const BLOCKS: usize = 1 << 12;
const BLOCK: usize = 1 << 12;

pub(crate) fn collective(place: &Place) {
    const ROUNDS: u64 = 100;
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    let (me, n) = (place.me as usize, place.n_pes as usize);
    let (heap, _own) = symmetric(&channel, place, BLOCKS + (n + 2) * BLOCK);
    let p = producer(&channel);
    let word = |pe: usize| heap.at(TOLD + 8 * pe);
    let byte = |pe: usize, round: u64, at: usize| (pe * 77 + round as usize * 13 + at * 3) as u8;
    let (source, back) = (BLOCKS + n * BLOCK, BLOCKS + (n + 1) * BLOCK);
    channel.barrier().unwrap();
    for round in 1..=ROUNDS {
        set_block(round as u32 % 3);
        let len = [8, 1, 333, BLOCK][round as usize % 4];
        for to in (0..n).map(|step| (me + step) % n) {
            let pe = to as i32;
            heap.fill(source, len, |at| byte(me, round, at));
            assert_eq!(p.put(heap.at(BLOCKS + me * BLOCK), heap.at(source), len, pe), 0);
            // The put has returned, so its source may change.
            heap.fill(source, len, |_| 0);
            assert_eq!(p.get(heap.at(back), heap.at(BLOCKS + me * BLOCK), len, pe), 0);
            let found = heap.bytes(back, len);
            assert!((0..len).all(|at| found[at] == byte(me, round, at)), "{len} bytes of PE {to}");
            // The barrier waits for puts of every ring.
            assert_eq!(p.p(word(me), round, 8, pe), 0);
            if round % 4 == 0 {
                assert_eq!(p.quiet_pe(pe), 0);
                let mut told = 0;
                assert_eq!(p.g(&mut told, word(me).cast(), pe), 0);
                assert_eq!(told, round, "by PE {to}");
            }
        }
        set_block(round as u32 % 2);
        assert_eq!(p.barrier_all(), 0);
        for from in 0..n {
            assert_eq!(heap.word(TOLD + 8 * from).load(Ordering::Acquire), round, "of PE {from}");
            let found = heap.bytes(BLOCKS + from * BLOCK, len);
            assert!((0..len).all(|at| found[at] == byte(from, round, at)), "of PE {from}");
        }
        assert_eq!(p.sync_all(), 0);
    }
    assert_eq!(p.quiet_pe(n as i32), c::NLF_ERROR_PE as i32);
    assert!(channel.error().is_some());
    channel.barrier().unwrap();
    channel.stop().unwrap();
}
