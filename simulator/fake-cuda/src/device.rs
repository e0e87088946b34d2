//! The devices, and what the driver says of itself.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use crate::context::Primary;
use crate::settings::{Behaviour, variable};
use crate::status::{INVALID_DEVICE, INVALID_VALUE, NOT_INITIALIZED, Outcome, Status, answer, put};

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) behaviour: Behaviour,
    pub(crate) primary: Mutex<Primary>,
    /// Bytes given out.
    pub(crate) pinned: AtomicU64,
    pub(crate) memory: AtomicU64,
    /// Copies accepted, for tests that count them.
    pub(crate) copies: AtomicU64,
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// How often `cuInit` was called.
pub(crate) static INITS: AtomicU64 = AtomicU64::new(0);

/// The devices, once `cuInit` was called.
pub(crate) fn devices() -> Result<&'static [Device], Status> {
    DEVICES.get().map(Vec::as_slice).ok_or(NOT_INITIALIZED)
}

/// The device of a number.
pub(crate) fn device(number: c_int) -> Result<&'static Device, Status> {
    let index = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    devices()?.get(index).ok_or(INVALID_DEVICE)
}

impl Device {
    fn new(ordinal: usize) -> Self {
        Self {
            ordinal,
            behaviour: Behaviour::from_environment(),
            primary: Mutex::default(),
            pinned: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            copies: AtomicU64::new(0),
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
    .map_err(|_| crate::status::OUT_OF_MEMORY)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> Status {
    INITS.fetch_add(1, Relaxed);
    if flags != 0 {
        return INVALID_VALUE;
    }
    DEVICES.get_or_init(|| (0..variable("FAKE_CUDA_DEVICES", 8)).map(Device::new).collect());
    crate::status::SUCCESS
}

/// # Safety
/// As the driver API has it, here and for every function of this crate that C calls: a pointer is
/// null or leads to a place of the type it has.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(unsafe { put(version, 12_020) })
}

/// There are no kernels to load; a program may be interested in the mode all the same.
///
/// # Safety
/// As [`cuDriverGetVersion`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut u32) -> Status {
    const EAGER: u32 = 1;
    const LAZY: u32 = 2;
    let eager = variable("CUDA_MODULE_LOADING", String::from("LAZY")) == "EAGER";
    // SAFETY: the caller's promise.
    answer(unsafe { put(mode, if eager { EAGER } else { LAZY }) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(devices().and_then(|all| unsafe { put(count, all.len() as c_int) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(into: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(device(ordinal).and_then(|_| unsafe { put(into, ordinal) }))
}

/// # Safety
/// `text` has room for `room` bytes.
unsafe fn write_text(text: *mut c_char, room: c_int, words: &str) -> Outcome {
    if text.is_null() || room < 1 {
        return Err(INVALID_VALUE);
    }
    let len = words.len().min(room as usize - 1);
    // SAFETY: `len` bytes and the final zero fit, by the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), len);
        text.add(len).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, number: c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(device(number).and_then(|_| unsafe { write_text(name, room, "Fake GPU") }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, room: c_int, number: c_int) -> Status {
    answer(device(number).and_then(|device| {
        let words = format!("FAFE:{:02X}:00.0", device.ordinal);
        // SAFETY: the caller's promise.
        unsafe { write_text(text, room, &words) }
    }))
}
