//! Users' threads (de)register memory while progress threads of two communicators send.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, SIGNAL_ADD};
use test_jobs::Place;
use test_jobs::memory::{Kind, Memory, bound};
use test_jobs::{Meeting, seeds_of_process};
use test_support::full;
use test_support::random::{Random, bytes, mix};

use crate::mock::group::{Communicator, Connection};
use crate::mock::library::{At, Plugin, Rank, Region, Signal};
use crate::mock::proxy::{Call, ContextId, Style};
use crate::plan::{Mix, Round};
use crate::stage::Stage;

const ALIVE: usize = 96;

const PLACE: usize = 40 << 10;

pub(crate) fn regions(place: &Place) {
    let meeting = Meeting::of(place);
    let _bound = bound();
    let plugin = Arc::new(Plugin::of_process());
    let communicators = [1, 2].map(|number| Communicator::new(&plugin, number));
    let stage = |of: usize, style, blocks: &[usize]| {
        Stage::new(&communicators[of], (style, Mix::Order), blocks, &meeting)
    };
    let mut stages = [stage(0, Style::Device, &[2]), stage(1, Style::Host, &[1, 1])];
    for seed in seeds_of_process() {
        let connections = stages.each_ref().map(|stage| Arc::clone(&stage.connection));
        let (me, n_pes) = (meeting.me, meeting.n_pes);
        thread::scope(|scope| {
            let users = scope.spawn(move || {
                let _bound = bound();
                for (number, connection) in connections.iter().enumerate() {
                    churn(connection, (me, n_pes), mix(seed + number as u64));
                }
            });
            for number in 0.. {
                if meeting.allgather(&[u8::from(users.is_finished())])[0] == [1] {
                    break;
                }
                let round = Round { seed, number, mix: Mix::Order };
                stages.iter_mut().for_each(|stage| stage.play(&round, &meeting));
            }
        });
    }
    stages.into_iter().for_each(Stage::end);
    communicators.into_iter().for_each(Communicator::end);
    meeting.barrier();
}

/// Registers, by turns with the others, which may not have released yet what was there before.
fn churn(connection: &Connection, (me, n_pes): (usize, usize), seed: u64) {
    let memory = Memory::new(Kind::of_pe(me), ALIVE * PLACE);
    // The same on all ranks, and one of this rank's own.
    let (mut ours, mut mine) = (Random::new(seed), Random::of(&[seed, me as u64]));
    let mut made = 0;
    while made < if full() { 1500 } else { 400 } {
        let mut regions = Vec::new();
        for place in 0..ours.between(1, ALIVE) {
            let offset = place * PLACE + 8 * ours.below(64);
            let most = if ours.once_in(4) { PLACE - 1024 } else { 500 };
            let part = (offset, 16 + ours.below(most));
            // Nobody sends before all have registered.
            memory.word(offset).store(0, Ordering::Release);
            let region = connection.register_part(&memory, part, MR_FORCE_SO, None).unwrap();
            regions.push((region, part));
            made += 1;
        }
        for (number, (region, part)) in regions.iter().enumerate() {
            if ours.once_in(3) {
                let key = (made + number) as u64 ^ seed;
                exchange(connection, &memory, (*region, *part), key, (me, n_pes));
            }
        }
        while !regions.is_empty() {
            connection.deregister(regions.swap_remove(mine.below(regions.len())).0);
        }
    }
}

/// Each rank sends the region's bytes to the next; the first word tells that they are there.
fn exchange(
    connection: &Connection,
    memory: &Memory,
    (region, (offset, len)): (Region, (usize, usize)),
    key: u64,
    (me, n_pes): (usize, usize),
) {
    let (next, last) = ((me + 1) % n_pes, (me + n_pes - 1) % n_pes);
    // In halves: the second is sent, and comes into the first.
    let half = (len - 8) / 2;
    let key = |pe: usize| mix(key + pe as u64);
    memory.write(offset + 8 + half, &bytes(key(me), half));
    let at = |offset: usize| At { region, offset: offset as u64 };
    let signal = Signal { at: at(0), value: 9, operation: SIGNAL_ADD, strong: true };
    let call = Call::PutSignal { from: at(8 + half), len: half, to: at(8), signal };
    let queues = connection.queues();
    let done = queues.start(ContextId(0), Rank(next as u32), call);
    queues.wait("the signal of a region", || memory.word(offset).load(Ordering::Acquire) != 0);
    assert_eq!(memory.word(offset).load(Ordering::Acquire), 9);
    assert!(memory.bytes(offset + 8, half) == bytes(key(last), half), "{half} bytes of a region");
    queues.wait("a put into a region", || done.load(Ordering::Acquire));
}
