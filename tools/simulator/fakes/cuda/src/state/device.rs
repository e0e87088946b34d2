//! The devices.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::state::settings::{Behaviour, variable};
use crate::state::status::{INVALID_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, Outcome, Status};

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) behaviour: Behaviour,
    pub(crate) pinned: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) begun: AtomicU64,
    pub(crate) writes: AtomicU64,
    /// Calls that ask whether a stream or an event is done.
    pub(crate) asked: AtomicU64,
    /// Work that waited for its turn, since another context had a kernel on the device.
    pub(crate) turns: AtomicU64,
    /// Calls that give work to a stream: copies, several of them in a call, words, and events.
    pub(crate) calls: AtomicU64,
    /// Dma-bufs that were asked for with the mapping through PCIe.
    pub(crate) exported: AtomicU64,
    /// Copies to the host, by which it is chosen in which order their bytes come.
    pub(crate) carried_out: AtomicU64,
    /// The copy engine of each direction, to the host and to the device.
    pub(crate) engines: [Mutex<()>; 2],
    /// Copies that have waited for one.
    pub(crate) queued: AtomicU64,
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// How often `cuInit` was called.
pub(crate) static INITS: AtomicU64 = AtomicU64::new(0);

/// The devices, once `cuInit` was called.
pub(crate) fn devices() -> Result<&'static [Device], Status> {
    DEVICES.get().map(Vec::as_slice).ok_or(NOT_INITIALIZED)
}

pub(crate) fn init() {
    DEVICES.get_or_init(|| (0..variable("FAKE_CUDA_DEVICES", 8)).map(Device::new).collect());
}

pub(crate) fn device(number: c_int) -> Result<&'static Device, Status> {
    let index = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    devices()?.get(index).ok_or(INVALID_DEVICE)
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            behaviour: Behaviour::from_environment(),
            pinned: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            exported: AtomicU64::new(0),
            carried_out: AtomicU64::new(0),
            engines: Default::default(),
            queued: AtomicU64::new(0),
        }
    }
}

/// Takes bytes from a limit.
pub(crate) fn take(used: &AtomicU64, limit: &AtomicU64, len: usize) -> Outcome {
    let limit = limit.load(Relaxed);
    used.fetch_update(Relaxed, Relaxed, |used| {
        used.checked_add(len as u64).filter(|sum| *sum <= limit)
    })
    .map(drop)
    .map_err(|_| OUT_OF_MEMORY)
}
