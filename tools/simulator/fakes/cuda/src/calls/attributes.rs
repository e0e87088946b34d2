//! Attributes of devices.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::device::{Device, device};
use crate::state::status::{INVALID_VALUE, Status, answer, put};

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
