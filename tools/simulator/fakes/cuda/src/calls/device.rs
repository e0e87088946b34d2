//! Queries about the driver, its devices and their attributes.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering::Relaxed;

use crate::state::device::{Device, INITS, device, devices, init};
use crate::state::settings::{self, variable};
use crate::state::status::{INVALID_VALUE, Outcome, SUCCESS, Status, answer, put};

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuInit(flags: u32) -> Status {
    INITS.fetch_add(1, Relaxed);
    if flags != 0 {
        return INVALID_VALUE;
    }
    init();
    SUCCESS
}

/// # Safety
/// As the driver API has it, here and for every function of this crate that C calls: a pointer is
/// null or leads to a place of the type it has.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(unsafe { put(version, settings::version()) })
}

/// There are no kernels to load; a program may be interested in the mode all the same.
///
/// # Safety
/// As [`cuDriverGetVersion`].
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut u32) -> Status {
    const EAGER: u32 = 1;
    const LAZY: u32 = 2;
    // SAFETY: the caller's promise.
    answer(unsafe { put(mode, if loads_eagerly() { EAGER } else { LAZY }) })
}

pub(crate) fn loads_eagerly() -> bool {
    variable("CUDA_MODULE_LOADING", String::from("LAZY")) == "EAGER"
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Status {
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

/// No device reaches another's memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(into: *mut c_int, one: c_int, other: c_int) -> Status {
    // SAFETY: the caller's promise.
    answer(device(one).and(device(other)).and_then(|_| unsafe { put(into, 0) }))
}

fn attribute(device: &Device, which: u32) -> Option<c_int> {
    let behaviour = &device.behaviour;
    Some(match which {
        // ASYNC_ENGINE_COUNT
        40 => 2,
        // UNIFIED_ADDRESSING
        41 => 1,
        // COMPUTE_CAPABILITY_MAJOR and _MINOR
        75 => 9,
        76 => 0,
        // MANAGED_MEMORY
        83 => 1,
        // CAN_USE_64_BIT_STREAM_MEM_OPS
        122 => behaviour.stream_ops.load(Relaxed) as c_int,
        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        102 => behaviour.vmm.load(Relaxed) as c_int,
        // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED and GPU_DIRECT_RDMA_SUPPORTED: no NIC reaches
        // these pages.
        110 | 116 => 0,
        // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: the flush call
        117 => 1,
        // GPU_DIRECT_RDMA_WRITES_ORDERING
        118 => behaviour.writes_ordering.load(Relaxed) as c_int,
        // DMA_BUF_SUPPORTED
        124 => (behaviour.dma_buf.load(Relaxed) > 0).into(),
        // HOST_NUMA_ID
        134 => 0,
        0..=200 => 0,
        _ => return None,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(into: *mut c_int, which: u32, number: c_int) -> Status {
    answer(device(number).and_then(|device| {
        let value = attribute(device, which).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(into, value) }
    }))
}
