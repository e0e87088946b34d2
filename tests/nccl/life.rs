//! A process with the plugin: a host that does not call it, many lives, and what they leave.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use test_jobs::Meeting;
use test_jobs::Place;
use test_jobs::memory::{bound, device, on_device};
use test_support::held::Cycles;

use crate::mock::group::Communicator;
use crate::mock::library::Plugin;
use crate::mock::pair::{LEN, Pair};
use crate::mock::proxy::Style;
use crate::mock::wait::until;
use crate::plan::{Mix, Round};
use crate::stage::Stage;

/// Rank 0 calls nothing for a while: before its progress thread is there, and when that has ended.
/// The others put to it and get from it all the same.
pub(crate) fn paused(pair: &mut Pair, meeting: &Meeting) {
    const TIMES: u64 = 12;
    let mut so_far = 0;
    if meeting.me != 0 {
        pair.connection.start();
    }
    for turn in 0..2 {
        if turn > 0 {
            if meeting.me == 0 {
                pair.connection.start();
            }
            pair.exchange(meeting);
            so_far += 1;
            if meeting.me == 0 {
                pair.connection.stop();
            }
        }
        meeting.barrier();
        for time in 1..=TIMES {
            let len = [LEN, 1, 77, 9000][time as usize % 4];
            if meeting.me == 0 {
                for from in 1..meeting.n_pes {
                    until("a signal", || pair.signals(from) == so_far + time);
                    pair.look(from, len);
                }
            } else {
                pair.forget(0);
                let (put, got) = (pair.put(0, len), pair.get(0, len));
                let queues = pair.connection.queues();
                queues.wait("what rank 0 has no part in", || {
                    put.load(Ordering::Acquire) && got.load(Ordering::Acquire)
                });
                pair.look(0, len);
            }
            meeting.barrier();
        }
        so_far += TIMES;
    }
    if meeting.me == 0 {
        pair.connection.start();
    }
    pair.exchange(meeting);
}

/// The last rank exits while NCCL's thread calls for progress, and its counters are written.
pub(crate) fn left(pair: &mut Pair, meeting: &Meeting) {
    pair.connection.start();
    pair.exchange(meeting);
    meeting.barrier();
    let last = meeting.n_pes - 1;
    if meeting.me == last {
        std::process::exit(0);
    }
    let pattern = std::env::var("NVSHMEM_LIBFABRIC_COUNTERS").unwrap();
    let counters = PathBuf::from(pattern.replace("%p", &last.to_string()));
    until("the counters of a rank that has exited", || counters.exists());
}

pub(crate) fn cycles(place: &Place) {
    let meeting = Meeting::of(place);
    let _bound = bound();
    let provider = std::env::var("NVSHMEM_LIBFABRIC_PROVIDER").unwrap();
    let used = on_device().then(|| device().used());
    let mut cycles = Cycles::new(12, format!("nccl {provider}"), place.me == 0);
    for cycle in 1..=cycles.count {
        let plugin = Arc::new(Plugin::of_process());
        let communicator = Communicator::new(&plugin, cycle);
        let both = [Style::Device, Style::Host];
        let mut stages =
            both.map(|style| Stage::new(&communicator, (style, Mix::Order), &[1], &meeting));
        for stage in &mut stages {
            let (seed, number, mix) = (cycle, 0, Mix::Order);
            stage.play(&Round { seed, number, mix }, &meeting);
        }
        stages.into_iter().for_each(Stage::end);
        communicator.end();
        drop(Arc::into_inner(plugin).expect("nobody uses the library any longer"));
        meeting.barrier();
        if let Some(before) = used {
            // The stand-in's streams let go of memory a moment behind their last copy.
            until("memory of the device is given back", || device().used() <= before);
        }
        cycles.over(cycle).unwrap();
    }
}
