//! Users' threads (de)register memory while progress threads of two communicators send.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    let mut meeting = Meeting::of(place);
    let mut others = [(); 3].map(|()| meeting.another());
    let _bound = bound();
    let plugin = Arc::new(Plugin::of_process());
    let communicators = [1, 2].map(|number| Communicator::new(&plugin, number));
    let mut one = Stage::new(&communicators[0], (Style::Device, Mix::Order), &[2], &mut meeting);
    let mut two = Stage::new(&communicators[1], (Style::Host, Mix::Order), &[1, 1], &mut meeting);
    for seed in seeds_of_process() {
        // All ranks play as many rounds as rank 0 does, which goes on until regions are through.
        let over = AtomicUsize::new(0);
        thread::scope(|scope| {
            let over = &over;
            let [mine, its, users] = &mut others;
            let connections = [&one, &two].map(|stage| Arc::clone(&stage.connection));
            let play = move |stage: &mut Stage, meeting: &mut Meeting| {
                for number in 0.. {
                    let is_over = over.load(Ordering::Acquire) > 0;
                    if meeting.allgather(&[u8::from(is_over)])[0] == [1] {
                        return;
                    }
                    stage.play(&Round { seed, number, mix: Mix::Order }, meeting);
                }
            };
            let (one, two) = (&mut one, &mut two);
            scope.spawn(move || play(one, mine));
            scope.spawn(move || play(two, its));
            scope.spawn(move || {
                let _bound = bound();
                for (number, connection) in connections.iter().enumerate() {
                    churn(connection, users, mix(seed + number as u64));
                }
                over.fetch_add(1, Ordering::Release);
            });
        });
    }
    one.end();
    two.end();
    communicators.into_iter().for_each(Communicator::end);
    meeting.barrier();
}

struct Live {
    region: Region,
    place: usize,
    offset: usize,
    len: usize,
}

fn churn(connection: &Connection, meeting: &mut Meeting, seed: u64) {
    let (me, n_pes) = (meeting.me, meeting.n_pes);
    let memory = Arc::new(Memory::new(Kind::of_pe(me), ALIVE * PLACE));
    // The same on all ranks, and one of this rank's own.
    let (mut ours, mut mine) = (Random::new(seed), Random::of(&[seed, me as u64]));
    let mut free: Vec<usize> = (0..ALIVE).collect();
    let mut live: Vec<Live> = Vec::new();
    let mut made = 0;
    let most = if full() { 1500 } else { 400 };
    while made < most {
        let mut fresh = Vec::new();
        for _ in 0..ours.between(1, ALIVE - live.len()) {
            let place = free.pop().expect("as many as may be alive");
            let offset = place * PLACE + 8 * ours.below(64);
            let most = if ours.once_in(4) { PLACE - 1024 } else { 500 };
            let len = 16 + ours.below(most);
            let part = (offset, len);
            // Nobody sends before all have registered.
            memory.word(offset).store(0, Ordering::Release);
            let region = connection.register_part(&memory, part, MR_FORCE_SO, None).unwrap();
            fresh.push(Live { region, place, offset, len });
            made += 1;
        }
        for one in fresh.iter().filter(|_| ours.once_in(3)).collect::<Vec<_>>() {
            exchange(connection, &memory, one, made as u64 ^ seed, (me, n_pes));
        }
        live.append(&mut fresh);
        // All have what was sent to them.
        meeting.barrier();
        // Places are the same on all ranks, not the order in which they become free.
        let keep = if made < most { ours.below(live.len() / 2 + 1) } else { 0 };
        let mut gone = Vec::new();
        while live.len() > keep {
            gone.push(live.swap_remove(ours.below(live.len())));
        }
        free.extend(gone.iter().map(|one| one.place));
        while !gone.is_empty() {
            connection.deregister(gone.swap_remove(mine.below(gone.len())).region);
        }
        // Nobody registers what another one has not released, though that would be allowed.
        if ours.once_in(2) {
            meeting.barrier();
        }
    }
}

/// Each rank sends the region's bytes to the next; the first word tells that they are there.
fn exchange(
    connection: &Connection,
    memory: &Memory,
    one: &Live,
    key: u64,
    (me, n_pes): (usize, usize),
) {
    let Live { region, offset, len, .. } = *one;
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
