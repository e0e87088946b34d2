//! Jobs whose PEs are threads of this process, on a fabric of the loopback: for tests.

use std::cell::Cell;
use std::sync::{Barrier, Mutex};
use std::thread;

use test_support::needs::libfabric2;

use super::{Collectives, Job, JobError, Shape};
use crate::settings::Settings;
use engine::ids::Pe;

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

/// Where PEs meet that are threads.
pub(crate) struct Room {
    said: Mutex<Vec<Vec<u8>>>,
    all: Barrier,
}

impl Room {
    pub(crate) fn new(n_pes: u32) -> Self {
        let said = Mutex::new(vec![Vec::new(); n_pes as usize]);
        Self { said, all: Barrier::new(n_pes as usize) }
    }

    pub(crate) fn gather(&self, me: u32, mine: &[u8]) -> Vec<u8> {
        self.said.lock().unwrap()[me as usize] = mine.to_vec();
        self.all.wait();
        let all = self.said.lock().unwrap().concat();
        self.all.wait();
        all
    }
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
        let mut all = self.room.gather(self.shape.me.0, mine);
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
    let room = Room::new(n_pes);
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
