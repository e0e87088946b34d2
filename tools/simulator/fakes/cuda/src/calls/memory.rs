//! Memory of a device or managed, and what is to be known of an address.

use std::sync::atomic::Ordering::Relaxed;

use super::stream::{allowed, of_handle};
use crate::state::context::{Work, current, current_at_once, enqueue};
use crate::state::device::take;
use crate::state::memory::{Mapping, find, forget, fresh_id, insert, remove};
use crate::state::pages::{DEVICE_PAGE, Kind, Pages, reserve, round_up};
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Status, answer, put};

const PAGE: usize = 4096;

fn allocate(len: usize, kind: Kind) -> Result<usize, Status> {
    let context = current()?;
    allowed()?;
    let device = context.device;
    let whole = round_up(len)?;
    take(&device.memory, &device.behaviour.memory_limit, len)?;
    let pages = Pages::new(whole)?;
    pages.soil();
    let cpu = kind == Kind::Managed;
    let base = pages.show(reserve(whole, DEVICE_PAGE)?, cpu)?;
    insert(Mapping {
        base,
        len,
        kind,
        context: (kind != Kind::Pool).then_some(context),
        device,
        alias: pages.alias(),
        pages: Some(pages),
        opened: true,
        cpu,
        physical: None,
        id: fresh_id(),
    });
    Ok(base)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(into: *mut usize, len: usize) -> Status {
    // SAFETY: the caller's promise.
    answer(allocate(len, Kind::Device).and_then(|base| unsafe { put(into, base) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocManaged(into: *mut usize, len: usize, _flags: u32) -> Status {
    // SAFETY: the caller's promise.
    answer(allocate(len, Kind::Managed).and_then(|base| unsafe { put(into, base) }))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFree_v2(base: usize) -> Status {
    answer(current().and_then(|context| {
        if base == 0 {
            return Ok(());
        }
        allowed()?;
        context.alone(|| forget(remove(base, &[Kind::Device, Kind::Managed, Kind::Pool])?))
    }))
}

/// Memory of the device's pool. It is there at once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(into: *mut usize, len: usize, on: usize) -> Status {
    answer(of_handle(on).and_then(|_| {
        let base = allocate(len, Kind::Pool)?;
        // SAFETY: the caller's promise.
        unsafe { put(into, base) }
    }))
}

/// Frees it when the stream gets there.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(base: usize, on: usize) -> Status {
    answer(of_handle(on).and_then(|stream| {
        if find(base).is_none_or(|found| found.base != base || found.kind != Kind::Pool) {
            return Err(INVALID_VALUE);
        }
        enqueue(&stream, Work::Free(base));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut usize,
    len: *mut usize,
    address: usize,
) -> Status {
    answer(current_at_once().and_then(|_| {
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise; each may be null.
        unsafe {
            if !base.is_null() {
                put(base, mapping.base)?;
            }
            if len.is_null() { Ok(()) } else { put(len, mapping.len) }
        }
    }))
}

/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, of CUDA 12.8 and newer.
const BY_PCIE: u64 = 1;

/// A dma-buf is the file of the pages here; it begins where the descriptor is in the file.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    into: *mut i32,
    address: usize,
    len: usize,
    handle_type: u32,
    flags: u64,
) -> Status {
    answer(current().and_then(|context| {
        let offered = context.device.behaviour.dma_buf.load(Relaxed);
        if offered == 0 || handle_type != 1 {
            return Err(NOT_SUPPORTED);
        }
        if flags > BY_PCIE || flags == BY_PCIE && offered < 2 {
            return Err(INVALID_VALUE);
        }
        context.device.exported.fetch_add(flags, Relaxed);
        if address % PAGE != 0 || len % PAGE != 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        let whole = round_up(mapping.len)?;
        let pages = mapping.pages.ok_or(INVALID_VALUE)?;
        let offset = address - mapping.base;
        if len > whole - offset {
            return Err(INVALID_VALUE);
        }
        let file = pages.open_at(offset)?;
        // SAFETY: the caller's promise.
        unsafe { put(into, std::os::fd::IntoRawFd::into_raw_fd(file)) }
    }))
}
