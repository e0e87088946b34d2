//! Queries about an address.

use std::ffi::{c_uint, c_void};

use crate::state::context::Raw;
use crate::state::device::devices;
use crate::state::memory::{Mapping, find};
use crate::state::pages::Kind;
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Outcome, Status, answer, put};

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

const NO_DEVICE: i32 = -2;

/// Writes one attribute.
///
/// # Safety
/// `into` is null or leads to a place of the attribute's type.
unsafe fn write(
    which: u32,
    mapping: Option<&Mapping>,
    address: usize,
    into: *mut c_void,
) -> Outcome {
    let kind = mapping.map(|mapping| mapping.kind);
    // SAFETY: the caller's promise, in every arm.
    unsafe {
        match which {
            // CONTEXT
            1 => {
                let context = mapping.and_then(|mapping| mapping.context);
                put::<Raw>(into.cast(), context.map_or(std::ptr::null(), std::ptr::from_ref))
            }
            // MEMORY_TYPE
            2 => put::<c_uint>(
                into.cast(),
                match kind {
                    None => 0,
                    Some(Kind::Device | Kind::VmmDevice | Kind::Pool | Kind::Managed) => DEVICE,
                    Some(Kind::VmmHost | Kind::Pinned | Kind::Registered) => HOST,
                },
            ),
            // DEVICE_POINTER
            3 => put::<usize>(into.cast(), mapping.map_or(0, |_| address)),
            // HOST_POINTER
            4 => {
                let cpu = mapping.is_some_and(|mapping| mapping.cpu);
                put::<usize>(into.cast(), if cpu { address } else { 0 })
            }
            // BUFFER_ID
            7 => put::<u64>(into.cast(), mapping.map_or(0, |mapping| mapping.id)),
            // IS_MANAGED
            8 => put::<c_uint>(into.cast(), (kind == Some(Kind::Managed)).into()),
            // DEVICE_ORDINAL
            9 => {
                let ordinal = mapping.map(|mapping| mapping.device.ordinal as i32);
                put::<i32>(into.cast(), ordinal.unwrap_or(NO_DEVICE))
            }
            // IS_LEGACY_CUDA_IPC_CAPABLE
            10 => put::<c_uint>(into.cast(), (kind == Some(Kind::Device)).into()),
            // RANGE_START_ADDR and RANGE_SIZE
            11 => put::<usize>(into.cast(), mapping.map_or(0, |mapping| mapping.base)),
            12 => put::<usize>(into.cast(), mapping.map_or(0, |mapping| mapping.len)),
            // MAPPED
            13 => put::<c_uint>(into.cast(), mapping.is_some().into()),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// An address that the driver does not know has the value null in every attribute.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const u32,
    data: *const *mut c_void,
    address: usize,
) -> Status {
    answer(devices().and_then(|_| {
        if attributes.is_null() || data.is_null() {
            return Err(INVALID_VALUE);
        }
        let mapping = find(address);
        for index in 0..count as usize {
            // SAFETY: arrays of `count`, by the caller's promise.
            unsafe { write(*attributes.add(index), mapping.as_ref(), address, *data.add(index))? };
        }
        Ok(())
    }))
}

/// Unlike the call for several attributes, this one fails for an address that is not known.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(
    into: *mut c_void,
    attribute: u32,
    address: usize,
) -> Status {
    answer(devices().and_then(|_| {
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { write(attribute, Some(&mapping), address, into) }
    }))
}

/// `SYNC_MEMOPS` alone can be set, and not for memory of the VMM interface.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: u32,
    address: usize,
) -> Status {
    answer(devices().and_then(|_| {
        if value.is_null() || attribute != 6 {
            return Err(INVALID_VALUE);
        }
        match find(address).map(|mapping| mapping.kind) {
            Some(Kind::Device | Kind::Managed | Kind::Pinned) => Ok(()),
            Some(_) => Err(NOT_SUPPORTED),
            None => Err(INVALID_VALUE),
        }
    }))
}
