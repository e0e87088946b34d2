use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::state::context::Context;
use crate::state::settings::Behaviour;
use crate::state::status::{INVALID_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, Outcome, Status};

pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) behaviour: Behaviour,
    /// By their numbers for [`fake_cuda_count`](crate::calls::extras::fake_cuda_count).
    pub(crate) counts: [AtomicU64; 16],
    /// Copies to the host, by which it is chosen in which order their bytes come.
    pub(crate) carried_out: AtomicU64,
    pub(crate) engines: [Mutex<()>; 2],
    /// The primary context, and how many hold it.
    pub(crate) primary: Mutex<(Option<&'static Context>, u32)>,
}

pub(crate) const COPIES: usize = 2;
/// Bytes of page-locked memory in use, and of the device's.
pub(crate) const PINNED: usize = 3;
pub(crate) const MEMORY: usize = 4;
pub(crate) const WRITES: usize = 5;
/// Calls that ask whether a stream or an event is done.
pub(crate) const ASKED: usize = 6;
/// Work that waited for its turn, since another context had a kernel on the device.
pub(crate) const TURNS: usize = 7;
/// Orders that the resident kernel has executed, and its launches.
pub(crate) const ORDERS: usize = 9;
pub(crate) const LAUNCHES: usize = 15;
/// Calls that give work to a stream: copies, several of them in a call, words, and events.
pub(crate) const CALLS: usize = 11;
/// Dma-bufs that were asked for with the mapping through PCIe.
pub(crate) const EXPORTED: usize = 13;
pub(crate) const BEGUN: usize = 14;

const DEVICES_OF_MACHINE: usize = 8;

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

pub(crate) static INITS: AtomicU64 = AtomicU64::new(0);

/// The devices, once `cuInit` was called.
pub(crate) fn devices() -> Result<&'static [Device], Status> {
    DEVICES.get().map(Vec::as_slice).ok_or(NOT_INITIALIZED)
}

pub(crate) fn init() {
    DEVICES.get_or_init(|| (0..DEVICES_OF_MACHINE).map(Device::new).collect());
}

pub(crate) fn device(number: c_int) -> Result<&'static Device, Status> {
    let index = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    devices()?.get(index).ok_or(INVALID_DEVICE)
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            behaviour: Behaviour::new(),
            counts: Default::default(),
            carried_out: AtomicU64::new(0),
            engines: Default::default(),
            primary: Mutex::default(),
        }
    }

    pub(crate) fn count(&self, what: usize) {
        self.counts[what].fetch_add(1, Relaxed);
    }

    /// Takes bytes of page-locked memory or of the device's, if there are as many.
    pub(crate) fn take(&self, what: usize, len: usize) -> Outcome {
        let Behaviour { pinned_limit, memory_limit, .. } = &self.behaviour;
        let limit = if what == PINNED { pinned_limit } else { memory_limit }.load(Relaxed);
        let sum = |used: u64| used.checked_add(len as u64).filter(|sum| *sum <= limit);
        let taken = self.counts[what].fetch_update(Relaxed, Relaxed, sum);
        taken.map(drop).map_err(|_| OUT_OF_MEMORY)
    }

    pub(crate) fn give_back(&self, what: usize, len: usize) {
        self.counts[what].fetch_sub(len as u64, Relaxed);
    }
}
