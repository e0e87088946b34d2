//! Many threads of kernels that wait for one another over one context, as in a barrier.

use std::sync::atomic::Ordering;
use std::thread;

use launcher::Place;
use nvshmem_transport_libfabric::nccl::abi::{MR_FORCE_SO, MR_SIGNAL_NEVER_RESET, SIGNAL_INC};
use test_jobs::Meeting;
use test_jobs::memory::{Kind, Memory, bound};

use crate::mock::library::{At, Rank, Signal};
use crate::mock::pair::communicator;
use crate::mock::proxy::{Call, ContextId, Style};

const PARTNERS: usize = 16;
const TIMES: u64 = 200;
const PUTS: usize = 200;
const LEN: usize = 4096;

/// Partners of two ranks signal one another and wait, then rank 0 puts and waits for the end.
pub(crate) fn meetings(place: &Place) {
    let mut meeting = Meeting::of(place);
    let _bound = bound();
    let me = place.me as usize;
    let communicator = communicator();
    let mut connection = communicator.connect(Style::Device, &mut meeting);
    connection.create_block(1);
    connection.create_block(1);
    let kind = Kind::of_pe(me);
    let words = Memory::new(kind, 4096);
    let data = Memory::new(kind, 2 * LEN);
    let region = connection.register(&words, MR_FORCE_SO | MR_SIGNAL_NEVER_RESET);
    let bytes = connection.register(&data, 0);
    connection.start();
    meeting.barrier();
    let at = |region, offset: usize| At { region, offset: offset as u64 };
    let queues = connection.queues();
    let post = |call| queues.start(ContextId(0), Rank(1 - me as u32), call);
    thread::scope(|scope| {
        for partner in 0..PARTNERS {
            let (post, words) = (&post, &words);
            scope.spawn(move || {
                let (value, operation, strong) = (0, SIGNAL_INC, true);
                let signal = Signal { at: at(region, 8 * partner), value, operation, strong };
                let none = at(bytes, 0);
                for time in 1..=TIMES {
                    post(Call::PutSignal { from: none, len: 0, to: none, signal });
                    let word = words.word(8 * partner);
                    queues.wait("the partner", || word.load(Ordering::Acquire) >= time);
                }
            });
        }
    });
    for _ in (0..PUTS).filter(|_| me == 0) {
        let done = post(Call::Put { from: at(bytes, 0), len: LEN, to: at(bytes, LEN) });
        queues.wait("a put", || done.load(Ordering::Acquire));
    }
    queues.drain();
    meeting.barrier();
    connection.end();
    communicator.end();
}
