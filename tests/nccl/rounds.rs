//! Rounds among all PEs, with every byte and word checked.

use std::sync::Arc;

use test_jobs::Place;
use test_jobs::memory::{bound, on_device};
use test_jobs::{Meeting, seeds_of_process};

use crate::mock::group::Communicator;
use crate::mock::library::Plugin;
use crate::mock::log;
use crate::mock::proxy::Style;
use crate::plan::{Mix, Round};
use crate::stage::Stage;

const ROUNDS: u64 = 2;

/// A value of `NVSHMEM_LIBFABRIC_DEBUG` with which the log says at the end that there were flushes.
pub(crate) const FLUSHED: &str = "consistency=flush";

pub(crate) fn traffic(place: &Place) {
    play(place, Mix::Traffic, Style::Device, &[2, 1]);
}

pub(crate) fn order(place: &Place) {
    play(place, Mix::Order, Style::Device, &[2]);
}

pub(crate) fn host_order(place: &Place) {
    play(place, Mix::Order, Style::Host, &[1, 1]);
}

fn play(place: &Place, mix: Mix, style: Style, blocks: &[usize]) {
    let meeting = Meeting::of(place);
    let _bound = bound();
    let plugin = Arc::new(Plugin::of_process());
    let communicator = Communicator::new(&plugin, 0x1234);
    let mut stage = Stage::new(&communicator, (style, mix), blocks, &meeting);
    for seed in seeds_of_process() {
        for number in 0..ROUNDS {
            stage.play(&Round { seed, number, mix }, &meeting);
        }
    }
    stage.end();
    communicator.end();
    let lines = log::lines();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.subsystems != 0), "{lines:?}");
    if std::env::var("NVSHMEM_LIBFABRIC_DEBUG").is_ok_and(|debug| debug == FLUSHED) {
        let is_flushed = |line: &log::Line| line.text.contains("time(s) before flags");
        assert!(lines.iter().any(is_flushed), "{lines:?}");
    }
    if !on_device() {
        assert!(log::warnings().is_empty(), "there is nothing to warn of");
    }
    let plugin = Arc::into_inner(plugin).expect("nobody uses the library any longer");
    drop(plugin);
    // The library may be gone, and what it has left behind with it.
    meeting.barrier();
}
