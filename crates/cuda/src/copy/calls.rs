//! Driver calls that start a copy on a stream: of contiguous bytes, or of rows.

use std::ptr;

use cudarc::driver::sys::CUmemorytype::{
    CU_MEMORYTYPE_DEVICE as DEVICE, CU_MEMORYTYPE_HOST as HOST,
};
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUdeviceptr};

use crate::copy::request::Direction;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;

/// Copy of rows, at equal distances on each side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) direction: Direction,
    pub(super) host: usize,
    pub(super) device: usize,
    /// Bytes from the start of a row to the start of the next, at least `width`.
    pub(super) host_pitch: usize,
    pub(super) device_pitch: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
}

/// Starts a copy of bytes in one allocation.
///
/// # Safety
/// The host side has `len` page-locked bytes, which nobody else uses until the copy has ended. The
/// context is bound.
pub(super) unsafe fn copy_piece(
    on: &Stream,
    direction: Direction,
    addr: usize,
    host: usize,
    len: usize,
) -> Result<(), CudaError> {
    let driver = on.context().driver();
    let (device, stream) = (addr as CUdeviceptr, on.raw());
    // SAFETY: the host side by the caller's promise. The device side is memory of the context, or
    // was: if it was freed meanwhile, the driver or the device fails.
    let (call, status) = unsafe {
        match direction {
            Direction::ToDevice => (
                "cuMemcpyHtoDAsync_v2",
                (driver.api.cuMemcpyHtoDAsync_v2)(device, host as *const _, len, stream),
            ),
            Direction::FromDevice => (
                "cuMemcpyDtoHAsync_v2",
                (driver.api.cuMemcpyDtoHAsync_v2)(host as *mut _, device, len, stream),
            ),
        }
    };
    driver.check(call, status, || format!("{len} bytes at {addr:#x} of {}", on.context()))
}

/// # Safety
/// As [`copy_piece`], for each row, and all rows are in one allocation.
pub(super) unsafe fn copy_rows(on: &Stream, of: &Rows) -> Result<(), CudaError> {
    const CALL: &str = "cuMemcpy2DAsync_v2";
    let driver = on.context().driver();
    let Rows { direction, host, device, host_pitch, device_pitch, width, rows } = *of;
    let len = rows * width;
    let subject = || format!("{len} bytes at {device:#x} of {}, in {rows} rows", on.context());
    let call = driver.api.cuMemcpy2DAsync_v2.ok_or_else(|| driver.lacks(CALL, subject()))?;
    let (from, to, pitches) = match direction {
        Direction::ToDevice => (HOST, DEVICE, (host_pitch, device_pitch)),
        Direction::FromDevice => (DEVICE, HOST, (device_pitch, host_pitch)),
    };
    // Of each side the address for its kind of memory is read.
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from,
        srcHost: host as *const _,
        srcDevice: device as CUdeviceptr,
        srcArray: ptr::null_mut(),
        srcPitch: pitches.0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to,
        dstHost: host as *mut _,
        dstDevice: device as CUdeviceptr,
        dstArray: ptr::null_mut(),
        dstPitch: pitches.1,
        WidthInBytes: width,
        Height: rows,
    };
    // SAFETY: the description is read during the call; the rows by the caller's promise.
    let status = unsafe { call(&raw const copy, on.raw()) };
    driver.check(CALL, status, subject)
}
