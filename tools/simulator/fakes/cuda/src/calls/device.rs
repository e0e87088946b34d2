//! Queries about the driver, its devices and their attributes.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering::Relaxed;

use crate::state::device::{Device, INITS, device, devices, init};
use crate::state::settings::{self, variable};
use crate::state::status::{INVALID_VALUE, Out, Outcome, Status, name_of, text_of};

pub(crate) fn loads_eagerly() -> bool {
    variable("CUDA_MODULE_LOADING", String::from("LAZY")) == "EAGER"
}

fn write_text(text: &Out<c_char>, room: c_int, words: &str) -> Outcome {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(INVALID_VALUE)?;
    text.put(0)?;
    let len = words.len().min(room - 1);
    let ended = words.bytes().take(len).chain([0]);
    ended.enumerate().try_for_each(|(at, byte)| text.at(at).put(byte as c_char))
}

fn attribute(device: &Device, which: u32) -> Option<c_int> {
    Some(match which {
        // ASYNC_ENGINE_COUNT
        40 => 2,
        // UNIFIED_ADDRESSING
        41 => 1,
        // COMPUTE_CAPABILITY_MAJOR; _MINOR is 0
        75 => 9,
        // MANAGED_MEMORY
        83 => 1,
        // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        102 => variable("FAKE_CUDA_VMM", 1),
        // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: the flush call. No NIC reaches these pages.
        117 => 1,
        // GPU_DIRECT_RDMA_WRITES_ORDERING
        118 => variable("FAKE_CUDA_WRITES_ORDERING", 100),
        // CAN_USE_64_BIT_STREAM_MEM_OPS
        122 => device.behaviour.stream_ops.load(Relaxed) as c_int,
        // DMA_BUF_SUPPORTED
        124 => (variable("FAKE_CUDA_DMA_BUF", 2) > 0).into(),
        // DMA_BUF_MMAP_SUPPORTED
        152 => (variable("FAKE_CUDA_DMA_BUF", 2) > 2).into(),
        0..=200 => 0,
        _ => return None,
    })
}

/// A name or a text of a result; null where there is none.
fn look_up(into: &Out<*const c_char>, found: Option<&'static CStr>) -> Outcome {
    into.put(found.map_or(std::ptr::null(), CStr::as_ptr))?;
    found.map(drop).ok_or(INVALID_VALUE)
}

calls! {
    fn cuInit(flags: u32) {
        INITS.fetch_add(1, Relaxed);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        init();
        Ok(())
    }

    fn cuGetErrorName(code: Status, name: Out<*const c_char>) {
        look_up(&name, name_of(code))
    }

    fn cuGetErrorString(code: Status, text: Out<*const c_char>) {
        look_up(&text, text_of(code))
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(settings::version())
    }

    /// There are no kernels to load; a program may be interested in the mode all the same.
    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        const EAGER: u32 = 1;
        const LAZY: u32 = 2;
        mode.put(if loads_eagerly() { EAGER } else { LAZY })
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(devices()?.len() as c_int)
    }

    fn cuDeviceGet(into: Out<c_int>, ordinal: c_int) {
        device(ordinal)?;
        into.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: c_int, number: c_int) {
        device(number)?;
        write_text(&name, room, "Fake GPU")
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, room: c_int, number: c_int) {
        write_text(&text, room, &format!("FAFE:{:02X}:00.0", device(number)?.ordinal))
    }

    /// Which a libfabric with CUDA looks for, and may ask.
    fn cuDeviceCanAccessPeer(into: Out<c_int>, number: c_int, peer: c_int) {
        device(number).and(device(peer))?;
        into.put(0)
    }

    fn cuDeviceGetAttribute(into: Out<c_int>, which: u32, number: c_int) {
        into.put(attribute(device(number)?, which).ok_or(INVALID_VALUE)?)
    }
}
