//! Copies and writes of words, given to streams.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::stream::{allowed, of_handle};
use crate::state::context::{Context, Stream, Work, enqueue};
use crate::state::memory::place;
use crate::state::pages::{Kind, Place};
use crate::state::settings::version;
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Outcome, Status, answer};

#[derive(Clone, Copy)]
struct Sides {
    from_device: bool,
    to_device: bool,
}

const UP: Sides = Sides { from_device: false, to_device: true };
const DOWN: Sides = Sides { from_device: true, to_device: false };
const ANY: Sides = Sides { from_device: false, to_device: false };

/// Copies to a device shorter than this are done by kernels of the driver's own, as those within a
/// device are. All others are done by copy engines.
const COPY_ENGINE_FROM: usize = 32 << 10;

fn copy(from: usize, to: usize, len: usize, sides: Sides, stream: usize, wait: bool) -> Outcome {
    let stream = of_handle(stream)?;
    if wait {
        allowed()?;
    }
    if len == 0 {
        return Ok(());
    }
    let (from, to) = (place(from, len)?, place(to, len)?);
    if (sides.from_device && !from.known()) || (sides.to_device && !to.known()) {
        return Err(INVALID_VALUE);
    }
    let locked = accept(&stream, &from, &to)?;
    let by_kernels = to.on_device() && (from.on_device() || len < COPY_ENGINE_FROM);
    give_copy(&stream, Work::Copy { from, to, len, by_kernels }, wait || !locked)
}

/// Takes a copy, unless the device is to refuse it. It waits while a call has the context to itself
/// that one of its sides belongs to. Whether the driver knows both sides.
fn accept(stream: &Stream, from: &Place, to: &Place) -> Result<bool, Status> {
    [from, to].into_iter().filter_map(Place::owner).for_each(Context::pass);
    let device = stream.context.device;
    device.calls.fetch_add(1, Relaxed);
    device.behaviour.fail_submit.count()?;
    device.copies.fetch_add(1, Relaxed);
    Ok(from.known() && to.known())
}

fn give_copy(stream: &Arc<Stream>, work: Work, wait: bool) -> Outcome {
    let number = enqueue(stream, work);
    if wait {
        stream.wait_for(number);
        stream.context.check()?;
    }
    Ok(())
}

#[repr(C)]
struct Rows {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

#[repr(C)]
struct Side {
    x_bytes: usize,
    y: usize,
    /// `CUmemorytype`.
    kind: u32,
    host: usize,
    device: usize,
    array: usize,
    pitch: usize,
}

const _: () = assert!(size_of::<Rows>() == 128);

impl Side {
    fn place(&self, width: usize, height: usize) -> Result<Place, Status> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const UNIFIED: u32 = 4;
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            _ => return Err(NOT_SUPPORTED),
        };
        if self.x_bytes + width > self.pitch {
            return Err(INVALID_VALUE);
        }
        let place =
            place(base + self.y * self.pitch + self.x_bytes, (height - 1) * self.pitch + width)?;
        if self.kind == DEVICE && !place.known() { Err(INVALID_VALUE) } else { Ok(place) }
    }
}

fn copy_rows(rows: &Rows, on: usize) -> Outcome {
    let stream = of_handle(on)?;
    let Rows { ref from, ref to, width: len, height: count } = *rows;
    if len == 0 || count == 0 {
        return Ok(());
    }
    let (from_pitch, to_pitch) = (from.pitch, to.pitch);
    let (from, to) = (from.place(len, count)?, to.place(len, count)?);
    let locked = accept(&stream, &from, &to)?;
    let by_kernels = to.on_device() && (from.on_device() || len < COPY_ENGINE_FROM);
    let work = match count {
        1 => Work::Copy { from, to, len, by_kernels },
        _ => Work::Rows { from, to, len, count, from_pitch, to_pitch },
    };
    give_copy(&stream, work, !locked)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(rows: *const Rows, on: usize) -> Status {
    if rows.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    answer(copy_rows(unsafe { &*rows }, on))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    len: usize,
    on: usize,
) -> Status {
    answer(copy(from as usize, to, len, UP, on, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, len: usize, on: usize) -> Status {
    answer(copy(from, to as usize, len, DOWN, on, false))
}

/// Copies to a device of this length and more are done by copy engines where they are given
/// together, on a real driver (13.0, on an H100).
const TOGETHER_COPY_ENGINE_FROM: usize = 28 << 10;

#[repr(C)]
struct Attributes {
    order: u32,
    hints: [u32; 4],
    flags: u32,
}

fn copy_together(to: &[usize], from: &[usize], lens: &[usize], order: u32, on: usize) -> Outcome {
    const LAST_OF_OLD: usize = 1;
    if on <= LAST_OF_OLD || order == 0 || order > 3 {
        return Err(INVALID_VALUE);
    }
    let stream = of_handle(on)?;
    match stream.context.device.behaviour.together.load(Relaxed) {
        0 => return Err(NOT_SUPPORTED),
        1 => {}
        code => return Err(code),
    }
    let mut work = Vec::new();
    for ((to, from), len) in to.iter().zip(from).zip(lens) {
        if *len == 0 {
            return Err(INVALID_VALUE);
        }
        let (from, to) = (place(*from, *len)?, place(*to, *len)?);
        if !from.known() || !to.known() {
            return Err(INVALID_VALUE);
        }
        let by_kernels = to.on_device() && (from.on_device() || *len < TOGETHER_COPY_ENGINE_FROM);
        [&from, &to].into_iter().filter_map(|place| place.owner()).for_each(Context::pass);
        work.push(Work::Copy { from, to, len: *len, by_kernels });
    }
    let device = stream.context.device;
    device.calls.fetch_add(1, Relaxed);
    for _ in &work {
        device.behaviour.fail_submit.count()?;
    }
    device.copies.fetch_add(work.len() as u64, Relaxed);
    for copy in work.into_iter().rev() {
        enqueue(&stream, copy);
    }
    Ok(())
}

/// As CUDA 12.8 and 12.9 have it. It tells which copy was refused: here, none in particular.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync(
    to: *const usize,
    from: *const usize,
    lens: *const usize,
    count: usize,
    attributes: *const Attributes,
    attributes_from: *const usize,
    attributes_count: usize,
    failed: *mut usize,
    on: usize,
) -> Status {
    if failed.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { batch(to, from, lens, count, attributes, attributes_from, attributes_count, on) }
}

/// As CUDA 13 has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    to: *const usize,
    from: *const usize,
    lens: *const usize,
    count: usize,
    attributes: *const Attributes,
    attributes_from: *const usize,
    attributes_count: usize,
    on: usize,
) -> Status {
    // A driver that is older does not have it.
    if version() < 13_000 {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { batch(to, from, lens, count, attributes, attributes_from, attributes_count, on) }
}

/// # Safety
/// Null, or lists of so many.
unsafe extern "C" fn batch(
    to: *const usize,
    from: *const usize,
    lens: *const usize,
    count: usize,
    attributes: *const Attributes,
    attributes_from: *const usize,
    attributes_count: usize,
    on: usize,
) -> Status {
    let lists = [to, from, lens, attributes_from];
    if count == 0
        || attributes_count != 1
        || attributes.is_null()
        || lists.iter().any(|list| list.is_null())
    {
        return INVALID_VALUE;
    }
    let list = |first: *const usize| {
        // SAFETY: not null, and the caller says that there are so many.
        unsafe { std::slice::from_raw_parts(first, count) }
    };
    // SAFETY: not null; one of each, as the caller says.
    let (order, first) = unsafe { ((*attributes).order, *attributes_from) };
    if first != 0 {
        return INVALID_VALUE;
    }
    answer(copy_together(list(to), list(from), list(lens), order, on))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, len: usize) -> Status {
    answer(copy(from as usize, to, len, UP, 0, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, len: usize) -> Status {
    answer(copy(from, to as usize, len, DOWN, 0, true))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemcpy(to: usize, from: usize, len: usize) -> Status {
    answer(copy(from, to, len, ANY, 0, true))
}

fn write(stream: usize, to: usize, value: u64, width: usize) -> Outcome {
    let stream = of_handle(stream)?;
    count_writes(&stream, [to]);
    give_write(&stream, to, value, width)
}

fn count_writes(stream: &Stream, addresses: impl IntoIterator<Item = usize>) {
    let of_device = |to: usize| {
        place(to, 4).is_ok_and(|place| !matches!(place.kind, Some(Kind::Pinned | Kind::Registered)))
    };
    stream.context.device.calls.fetch_add(1, Relaxed);
    if addresses.into_iter().any(of_device) {
        stream.context.device.writes.fetch_add(1, Relaxed);
    }
}

fn give_write(stream: &Arc<Stream>, to: usize, value: u64, width: usize) -> Outcome {
    let offered = stream.context.device.behaviour.stream_ops.load(Relaxed) != 0;
    if width == 8 && !offered {
        return Err(NOT_SUPPORTED);
    }
    let to = place(to, width)?;
    // A real driver (13.0, on an H200) refuses managed memory and a pool's here, of which CUDA's
    // documentation says nothing.
    if matches!(to.kind, None | Some(Kind::Managed | Kind::Pool)) || to.alias % width != 0 {
        return Err(INVALID_VALUE);
    }
    let host_writes = stream.context.device.behaviour.host_writes.load(Relaxed);
    match (to.kind, host_writes) {
        (Some(Kind::Pinned | Kind::Registered), 0) => {
            return Err(NOT_SUPPORTED);
        }
        (Some(Kind::Pinned | Kind::Registered), 2) => {}
        _ => drop(enqueue(stream, Work::Write { to, value, width })),
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(on: usize, to: usize, value: u32, _flags: u32) -> Status {
    answer(write(on, to, value.into(), 4))
}

#[repr(C)]
struct Operation {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<Operation>() == 48);

fn write_all(stream: usize, operations: &[Operation]) -> Outcome {
    let stream = of_handle(stream)?;
    count_writes(&stream, operations.iter().map(|operation| operation.address as usize));
    let width = |operation: &Operation| match operation.operation {
        2 => Ok(4),
        5 => Ok(8),
        _ => Err(INVALID_VALUE),
    };
    operations.iter().try_for_each(|operation| width(operation).map(drop))?;
    operations.iter().try_for_each(|operation| {
        let (to, value) = (operation.address as usize, operation.value);
        give_write(&stream, to, value, width(operation)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBatchMemOp_v2(
    on: usize,
    count: u32,
    operations: *const Operation,
    _flags: u32,
) -> Status {
    if operations.is_null() || count == 0 || count > 256 {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller says that there are so many.
    answer(write_all(on, unsafe { std::slice::from_raw_parts(operations, count as usize) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64_v2(on: usize, to: usize, value: u64, _flags: u32) -> Status {
    answer(write(on, to, value, 8))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: usize, value: u8, len: usize, on: usize) -> Status {
    answer(of_handle(on).and_then(|stream| {
        let place = place(to, len)?;
        if !place.known() {
            return Err(INVALID_VALUE);
        }
        enqueue(&stream, Work::Fill { to: place, value, len });
        Ok(())
    }))
}
