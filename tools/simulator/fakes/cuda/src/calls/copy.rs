//! Copies and writes of words, given to streams.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::stream::{allowed, of_handle};
use crate::state::context::{Context, Stream, enqueue};
use crate::state::device::{CALLS, COPIES, WRITES};
use crate::state::memory::place;
use crate::state::pages::{Kind, Place};
use crate::state::settings::{variable, version};
use crate::state::status::{INVALID_VALUE, In, NOT_SUPPORTED, Out, Outcome, Status};
use crate::state::worker;

/// Which sides of a copy have to be known to the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToDevice,
    FromDevice,
    Any,
}

/// Copies to a device shorter than this are done by kernels of the driver's own, as those within a
/// device are. All others are done by copy engines.
const COPY_ENGINE_FROM: usize = 32 << 10;

/// The same where they are given together, on a real driver (13.0, on an H100).
const TOGETHER_COPY_ENGINE_FROM: usize = 28 << 10;

fn give(
    stream: &Arc<Stream>,
    (from, to): (Place, Place),
    wait: bool,
    copy: impl FnOnce(&Context, &Place, &Place) + Send + 'static,
) -> Outcome {
    [&from, &to].into_iter().filter_map(Place::owner).for_each(Context::pass);
    let device = stream.context.device;
    device.count(CALLS);
    device.behaviour.fail_submit.count()?;
    device.count(COPIES);
    let wait = wait || !from.known() || !to.known();
    let number = enqueue(stream, move |context| copy(context, &from, &to));
    if wait {
        stream.wait_for(number);
        stream.context.check()?;
    }
    Ok(())
}

fn copy(stream: &Arc<Stream>, [from, to]: [usize; 2], len: usize, way: Way, wait: bool) -> Outcome {
    if len == 0 {
        return Ok(());
    }
    let (from, to) = (place(from, len)?, place(to, len)?);
    if way == Way::FromDevice && !from.known() || way == Way::ToDevice && !to.known() {
        return Err(INVALID_VALUE);
    }
    give(stream, (from, to), wait, move |context, from, to| {
        worker::copy(context, from, to, len, COPY_ENGINE_FROM);
    })
}

fn copy_now(from: usize, to: usize, len: usize, way: Way) -> Outcome {
    let stream = of_handle(0)?;
    allowed()?;
    copy(&stream, [from, to], len, way, true)
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    /// `CUmemorytype`.
    pub(crate) kind: u32,
    pub(crate) host: usize,
    pub(crate) device: usize,
    pub(crate) array: usize,
    pub(crate) pitch: usize,
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
        let first = base + self.y * self.pitch + self.x_bytes;
        let place = place(first, (height - 1) * self.pitch + width)?;
        if self.kind == DEVICE && !place.known() { Err(INVALID_VALUE) } else { Ok(place) }
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Attributes {
    order: u32,
    hints: [u32; 4],
    flags: u32,
}

fn copy_together(
    [to, from, lens]: [In<usize>; 3],
    count: usize,
    attributes: In<Attributes>,
    (first, attributes_count): (In<usize>, usize),
    on: usize,
) -> Outcome {
    const LAST_OF_OLD: usize = 1;
    let (to, from, lens) = (to.list(count)?, from.list(count)?, lens.list(count)?);
    if to.is_empty() || (*first.get()?, attributes_count) != (0, 1) || on <= LAST_OF_OLD {
        return Err(INVALID_VALUE);
    }
    if !(1..=3).contains(&attributes.get()?.order) {
        return Err(INVALID_VALUE);
    }
    let stream = of_handle(on)?;
    match variable("FAKE_CUDA_TOGETHER", 1) {
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
        [&from, &to].into_iter().filter_map(|place| place.owner()).for_each(Context::pass);
        let len = *len;
        work.push(move |context: &Context| {
            worker::copy(context, &from, &to, len, TOGETHER_COPY_ENGINE_FROM);
        });
    }
    let device = stream.context.device;
    device.count(CALLS);
    work.iter().try_for_each(|_| device.behaviour.fail_submit.count())?;
    for copy in work.into_iter().rev() {
        device.count(COPIES);
        enqueue(&stream, copy);
    }
    Ok(())
}

/// Counts a call that stores words, at these addresses, in memory of the device.
fn count_writes(stream: &Stream, addresses: impl IntoIterator<Item = usize>) {
    let of_device = |to: usize| {
        place(to, 4).is_ok_and(|place| !matches!(place.kind, Some(Kind::Pinned | Kind::Registered)))
    };
    stream.context.device.count(CALLS);
    if addresses.into_iter().any(of_device) {
        stream.context.device.count(WRITES);
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
    let of_host = matches!(to.kind, Some(Kind::Pinned | Kind::Registered));
    match if of_host { variable("FAKE_CUDA_HOST_WRITES", 1) } else { 1 } {
        0 => return Err(NOT_SUPPORTED),
        2 => {}
        _ => drop(enqueue(stream, move |context| worker::store(context, &to, value, width))),
    }
    Ok(())
}

fn write(stream: usize, to: usize, value: u64, width: usize) -> Outcome {
    let stream = of_handle(stream)?;
    count_writes(&stream, [to]);
    give_write(&stream, to, value, width)
}

/// `CUstreamBatchMemOpParams`, of a store.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Operation {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    rest: u64,
}

const _: () = assert!(size_of::<Operation>() == 48);

calls! {
    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, len: usize, on: usize) {
        copy(&of_handle(on)?, [from, to], len, Way::ToDevice, false)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, len: usize, on: usize) {
        copy(&of_handle(on)?, [from, to], len, Way::FromDevice, false)
    }

    fn cuMemcpy(to: usize, from: usize, len: usize) {
        copy_now(from, to, len, Way::Any)
    }

    fn cuMemcpyHtoD_v2(to: usize, from: usize, len: usize) {
        copy_now(from, to, len, Way::ToDevice)
    }

    fn cuMemcpyDtoH_v2(to: usize, from: usize, len: usize) {
        copy_now(from, to, len, Way::FromDevice)
    }

    fn cuMemcpy2DAsync_v2(rows: In<Rows>, on: usize) {
        let stream = of_handle(on)?;
        let Rows { ref from, ref to, width: len, height: count } = *rows.get()?;
        if len == 0 || count == 0 {
            return Ok(());
        }
        let (from_pitch, to_pitch) = (from.pitch, to.pitch);
        let (from, to) = (from.place(len, count)?, to.place(len, count)?);
        give(&stream, (from, to), false, move |context, from, to| match count {
            1 => worker::copy(context, from, to, len, COPY_ENGINE_FROM),
            _ => worker::copy_rows(context, (from, from_pitch), (to, to_pitch), len, count),
        })
    }

    /// As CUDA 12.8 and 12.9 have it. It tells which copy was refused: here, none in particular.
    fn cuMemcpyBatchAsync(
        to: In<usize>,
        from: In<usize>,
        lens: In<usize>,
        count: usize,
        attributes: In<Attributes>,
        attributes_from: In<usize>,
        attributes_count: usize,
        failed: Out<usize>,
        on: usize,
    ) {
        failed.put(usize::MAX)?;
        copy_together([to, from, lens], count, attributes, (attributes_from, attributes_count), on)
    }

    /// As CUDA 13 has it.
    fn cuMemcpyBatchAsync_v2(
        to: In<usize>,
        from: In<usize>,
        lens: In<usize>,
        count: usize,
        attributes: In<Attributes>,
        attributes_from: In<usize>,
        attributes_count: usize,
        on: usize,
    ) {
        // A driver that is older does not have it.
        if version() < 13_000 {
            std::process::abort();
        }
        copy_together([to, from, lens], count, attributes, (attributes_from, attributes_count), on)
    }

    fn cuStreamWriteValue32_v2(on: usize, to: usize, value: u32, _flags: u32) {
        write(on, to, value.into(), 4)
    }

    fn cuStreamWriteValue64_v2(on: usize, to: usize, value: u64, _flags: u32) {
        write(on, to, value, 8)
    }

    fn cuStreamBatchMemOp_v2(on: usize, count: u32, operations: In<Operation>, _flags: u32) {
        let operations = operations.list(count as usize)?;
        if count == 0 || count > 256 {
            return Err(INVALID_VALUE);
        }
        let stream = of_handle(on)?;
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

    fn cuMemsetD8Async(to: usize, value: u8, len: usize, on: usize) {
        let stream = of_handle(on)?;
        let to = place(to, len)?;
        if !to.known() {
            return Err(INVALID_VALUE);
        }
        enqueue(&stream, move |context| worker::fill(context, &to, value, len));
        Ok(())
    }
}
