//! Jobs whose PEs are threads of this process, on a fabric of the loopback: for tests.

use std::cell::Cell;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use test_support::needs::libfabric2;

use super::{Collectives, Job, JobError, Shape};
use crate::settings::Settings;
use engine::Watchdog;
use engine::channel::counts::TAGS;
use engine::ids::{LaneKind, Pe, RailId};
use engine::lane::{LaneConfig, SignalChoice};
use engine::port::RailLimits;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::rails::Spread;
use engine::rails::paths::{Path, PathTable};
use engine::regions::RegionTable;
use engine::wire::cookie::Cookie;
use sim_fabric::{FakeFabric, FakeMemory};

/// Settings for a job on so many rails, with the newer libfabric if there are two.
pub(crate) fn settings(rails: usize, others: &[(&str, &str)]) -> Settings {
    let devices = ["127.0.0.1", "127.0.0.2"][..rails].join(",");
    let library = libfabric2().map(|file| file.to_string_lossy().into_owned());
    let mut variables =
        vec![("NVSHMEM_LIBFABRIC_PROVIDER", "tcp"), ("NVSHMEM_LIBFABRIC_DEVICES", &*devices)];
    variables.extend(library.iter().map(|file| ("NVSHMEM_LIBFABRIC_LIBRARY", file.as_str())));
    variables.extend(others);
    Settings::load(variables).unwrap().0
}

/// The proxy lane of one of two PEs with so many rails each on the fake fabric.
pub(crate) fn fake_lane(me: Pe, rails: u8, regions: &RegionTable<FakeMemory>) -> LaneConfig {
    let path = |pe: u32, rail: u8| {
        let remote = RailId(rail);
        Path { to: FakeFabric::address(Pe(pe), remote), remote }
    };
    let paths: Vec<Path> =
        (0..2).flat_map(|pe| (0..rails).map(move |rail| path(pe, rail))).collect();
    LaneConfig {
        me,
        cookie: Cookie::of([*b"0123456789abcdef"]),
        kind: LaneKind::Proxy,
        paths: PathTable::new(&paths, usize::from(rails)),
        regions: regions.directory(),
        watchdog: Watchdog::new(None, Some(Duration::from_secs(60))),
        signals: SignalChoice::Auto,
        counted: TAGS,
        immediate_bytes: 8,
        spread: Spread::ROUND_ROBIN,
        devices: false,
        longest_message: MAX_LONG_MESSAGE,
    }
}

pub(crate) const FAKE_RAIL: RailLimits = RailLimits {
    max_segment: 1 << 20,
    depth: 16,
    needs_desc: false,
    immediate_data: true,
    longest_message: MAX_MESSAGE,
    bulk: 0,
};

/// Where the threads meet.
struct Room {
    said: Mutex<Vec<Vec<u8>>>,
    all: Barrier,
}

struct Place<'a> {
    room: &'a Room,
    shape: Shape,
    calls: Cell<usize>,
    /// The gathering, counted from 1, of which it hears nothing that makes sense.
    mishears: Option<usize>,
}

impl Collectives for Place<'_> {
    fn shape(&self) -> Result<Shape, JobError> {
        Ok(self.shape)
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError> {
        let said = || self.room.said.lock().unwrap();
        said()[self.shape.me.index()] = mine.to_vec();
        self.room.all.wait();
        let mut all = said().concat();
        self.room.all.wait();
        self.calls.set(self.calls.get() + 1);
        if self.mishears == Some(self.calls.get()) {
            all.fill(0xff);
        }
        Ok(all)
    }
}

pub(crate) struct Outcome {
    pub(crate) pe: u32,
    pub(crate) job: Result<Job, JobError>,
}

/// Connects a job whose PEs each do something. `mishears`: a PE, and the gathering it hears wrong.
pub(crate) fn connect<T: Send>(
    n_pes: u32,
    settings: &Settings,
    mishears: Option<(u32, usize)>,
    with: impl Fn(Outcome) -> T + Sync,
) -> Vec<T> {
    let room = Room {
        said: Mutex::new(vec![Vec::new(); n_pes as usize]),
        all: Barrier::new(n_pes as usize),
    };
    let pe = |me: u32| {
        let mishears = mishears.filter(|(pe, _)| *pe == me).map(|(_, call)| call);
        let shape = Shape { n_pes, me: Pe(me), here: n_pes };
        let place = Place { room: &room, shape, calls: Cell::new(0), mishears };
        let job = Job::new(settings.clone()).and_then(|job| job.connect(&place, &[]).map(|()| job));
        // Nobody goes while others need it.
        room.all.wait();
        let done = with(Outcome { pe: me, job });
        room.all.wait();
        done
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n_pes).map(|me| scope.spawn(move || pe(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
