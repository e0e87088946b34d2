//! Batches: copies and stores of words, submitted to a stream in order by few calls of the driver.
//!
//! Between two copies a device waits until its transfers over PCIe are done. Beside kernels that
//! poll host memory that takes 10 to 100 µs, measured on H100s with driver 580: as long as half a
//! mebibyte takes, or a hundred tokens. Within one call of `cuMemcpyBatchAsync` it does not wait.
//! So unordered copies are submitted together, and so are consecutive words.
//!
//! - Copies that are adjacent on both sides are merged.
//! - Short copies to a device that are cut into rows (see [`rows`]) are rows of one copy if they
//!   have one length and equal distances on both sides. So are copies from a device, if all are.
//! - All others go in one call, if the driver has it and is known to copy their memory so.

use std::ptr;

use cudarc::driver::sys::CUdeviceptr;

use crate::MEM;
use crate::copy::calls::{Rows, copy_piece, copy_rows};
use crate::copy::request::{Direction, StreamOp, Transfer};
use crate::copy::rows;
use crate::copy::writes::{MAX_WRITES, WordWrite, WordWrites};
use crate::driver::api::CopyAttributes;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;
use crate::memory::pointer::Kind;
use engine::port::copies::MAX_BATCH_COPIES;

/// Bytes from which the device's copy engines execute copies to it in a batch call; kernels of the
/// driver execute shorter ones. Measured with driver 580: 24 KiB take a kernel, 28 do not.
const LONG: usize = 28 << 10;

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all devices: greatest distance between rows.
const MAX_PITCH: usize = i32::MAX as usize;

/// A contiguous copy, inside one allocation of the device and one page-locked memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    device: usize,
    host: usize,
    len: usize,
    /// Identity of the page-locked memory, of the range, and index of the allocation in the range.
    origin: (usize, usize, usize),
    rows: bool,
    /// Whether it may be submitted in one call with others.
    together: bool,
}

impl Piece {
    fn of<'r>(transfer: &Transfer<'r>, context: &Context) -> impl Iterator<Item = Piece> + 'r {
        let Transfer { range, addr, memory, offset, len, .. } = *transfer;
        let first = range.border(addr);
        // The driver copies a context's own memory in that context, whatever the call says, and
        // managed memory maybe by the CPU.
        let is_own = !range.is_owned() || range.context().is(context);
        let (rows, together) = (!range.is_owned(), is_own && range.kind() == Kind::Device);
        let (memory, host) = (ptr::from_ref(&**memory).addr(), memory.addr() + offset);
        range.pieces(addr, len).enumerate().map(move |(number, (at, len))| Piece {
            device: at,
            host: host + (at - addr),
            len,
            origin: (memory, ptr::from_ref(range).addr(), first + number),
            rows,
            together,
        })
    }

    fn touches(&self, next: &Piece) -> bool {
        self.origin == next.origin
            && self.device + self.len == next.device
            && self.host + self.len == next.host
    }
}

#[derive(Debug, Default)]
pub(super) struct Submitted {
    /// Whether any of its operations is in the stream.
    pub(super) any: bool,
    /// Whether the counter is advanced in the stream after all of them.
    pub(super) counted: bool,
}

/// Submits batches to a stream: the operations queued for one call, and the call's arguments.
#[derive(Debug)]
pub(super) struct BatchSubmitter {
    takes_batches: bool,
    pub(super) rows: bool,
    direction: Direction,
    pieces: Vec<Piece>,
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    lens: Vec<usize>,
    writes: WordWrites,
}

impl BatchSubmitter {
    pub(super) fn new(driver: &Driver) -> Self {
        let api = &driver.api;
        let most = 2 * MAX_BATCH_COPIES;
        Self {
            takes_batches: api.cuMemcpyBatchAsync_v2.is_some() || api.cuMemcpyBatchAsync.is_some(),
            rows: false,
            direction: Direction::ToDevice,
            pieces: Vec::with_capacity(most),
            to: Vec::with_capacity(most),
            from: Vec::with_capacity(most),
            lens: Vec::with_capacity(most),
            writes: WordWrites::new(),
        }
    }

    /// Submits operations, of which each but an unordered copy follows all before it. If words come
    /// last, the write of `counter` follows them. Updates `submitted`, also if it fails.
    ///
    /// # Safety
    /// Each operation was checked. Copies are in one direction; their page-locked memory is held,
    /// and nobody else uses it, until all have ended. A copy overlaps the destination of another
    /// only if it is ordered after that. The context is bound.
    pub(super) unsafe fn submit<'a>(
        &mut self,
        stream: &Stream,
        ops: impl Iterator<Item = StreamOp<'a>>,
        counter: Option<WordWrite>,
        submitted: &mut Submitted,
    ) -> Result<(), CudaError> {
        self.pieces.clear();
        self.writes.clear();
        for op in ops {
            let joins_queued = match op {
                StreamOp::Copy { is_ordered, .. } => !is_ordered && self.writes.len() == 0,
                StreamOp::Store { .. } => self.pieces.is_empty() && self.writes.len() < MAX_WRITES,
            };
            if !joins_queued {
                // SAFETY: the caller's promise.
                unsafe { self.submit_queued(stream, None, submitted)? };
            }
            match op {
                StreamOp::Copy { transfer, .. } => {
                    self.direction = transfer.direction;
                    self.pieces.extend(Piece::of(&transfer, stream.context()));
                }
                StreamOp::Store { addr, width, value, .. } => {
                    self.writes.push(WordWrite { addr, width, value });
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.submit_queued(stream, counter, submitted) }
    }

    /// # Safety
    /// As [`BatchSubmitter::submit`].
    unsafe fn submit_queued(
        &mut self,
        stream: &Stream,
        counter: Option<WordWrite>,
        submitted: &mut Submitted,
    ) -> Result<(), CudaError> {
        if self.writes.len() > 0 {
            submitted.counted = self.writes.submit(stream, counter, &mut submitted.any)?;
        }
        if !self.pieces.is_empty() {
            merge(&mut self.pieces);
            // SAFETY: the caller's promise.
            unsafe { self.submit_copies(stream, &mut submitted.any)? };
            self.pieces.clear();
        }
        Ok(())
    }

    /// # Safety
    /// As [`BatchSubmitter::submit`].
    unsafe fn submit_copies(&mut self, stream: &Stream, any: &mut bool) -> Result<(), CudaError> {
        let Self { pieces, to, from, lens, .. } = self;
        let (direction, in_rows) = (self.direction, self.rows);
        let in_rows = |piece: &Piece| {
            in_rows && direction == Direction::ToDevice && piece.rows && piece.len < rows::LONG
        };
        let is_short = |piece: &Piece| in_rows(piece) && piece.len < LONG;
        let alone = |piece: &Piece| {
            // SAFETY: the caller's promise.
            unsafe { copy_alone(stream, direction, piece, in_rows(piece)) }
        };
        [&mut *to, &mut *from].into_iter().for_each(Vec::clear);
        lens.clear();
        let is_several = self.rows && direction == Direction::FromDevice && pieces.len() > 1;
        if is_several && pieces.iter().all(|it| it.rows) && rows_of(pieces) == pieces.len() {
            // SAFETY: the caller's promise.
            unsafe { copy_as_rows(stream, direction, pieces)? };
            *any = true;
            return Ok(());
        }
        let mut rest = &pieces[..];
        while let [piece, ..] = rest {
            let mut count = 1;
            if is_short(piece) {
                count = rows_of(rest.split(|piece| !is_short(piece)).next().unwrap_or(rest));
                match &rest[..count] {
                    [piece] => alone(piece)?,
                    // SAFETY: the caller's promise.
                    several => unsafe { copy_as_rows(stream, direction, several)? },
                }
                *any = true;
            } else if self.takes_batches && piece.together {
                let (device, host) = (piece.device as CUdeviceptr, piece.host as CUdeviceptr);
                let sides = match direction {
                    Direction::ToDevice => (device, host),
                    Direction::FromDevice => (host, device),
                };
                to.push(sides.0);
                from.push(sides.1);
                lens.push(piece.len);
            } else {
                alone(piece)?;
                *any = true;
            }
            rest = &rest[count..];
        }
        if lens.len() > 1 {
            // SAFETY: the caller's promise.
            let Err(error) = (unsafe { call_batch(stream, to, from, lens) }) else {
                *any = true;
                return Ok(());
            };
            // Some drivers have the function and refuse it, always or for some memory. Copies that
            // it took are copied once more, which changes nothing: the stream executes one after
            // the other, and nobody uses either side before both are done.
            *any = true;
            self.takes_batches = false;
            if error.code != code::NOT_SUPPORTED {
                log::warn!(target: MEM, "copies are given to the driver one by one from now on: {error}");
            }
        }
        if !lens.is_empty() {
            for piece in pieces.iter().filter(|piece| piece.together && !is_short(piece)) {
                alone(piece)?;
                *any = true;
            }
        }
        Ok(())
    }
}

fn merge(pieces: &mut Vec<Piece>) {
    pieces.sort_unstable_by_key(|piece| piece.device);
    pieces.dedup_by(|next, before| {
        let touches = before.touches(next);
        if touches {
            before.len += next.len;
        }
        touches
    });
}

/// Returns how many of the first pieces, at least one, are rows of one copy.
fn rows_of(pieces: &[Piece]) -> usize {
    let [first, second, ..] = pieces else { return pieces.len() };
    let pitches = |one: &Piece, next: &Piece| {
        let host = next.host.checked_sub(one.host)?;
        let device = next.device - one.device;
        let fits = [host, device].iter().all(|pitch| (one.len..=MAX_PITCH).contains(pitch));
        (fits && (next.len, next.origin) == (one.len, one.origin)).then_some((host, device))
    };
    let Some(wanted) = pitches(first, second) else { return 1 };
    let same = |pair: &&[Piece]| pitches(&pair[0], &pair[1]) == Some(wanted);
    1 + pieces.windows(2).take_while(same).count()
}

/// # Safety
/// As [`BatchSubmitter::submit`].
unsafe fn copy_alone(
    on: &Stream,
    direction: Direction,
    piece: &Piece,
    in_rows: bool,
) -> Result<(), CudaError> {
    let Piece { device, host, len, .. } = *piece;
    // SAFETY: the caller's promise.
    unsafe {
        match in_rows {
            true => rows::copy_in_rows(on, device, host, len),
            false => copy_piece(on, direction, device, host, len),
        }
    }
}

/// # Safety
/// As [`BatchSubmitter::submit`].
unsafe fn copy_as_rows(
    on: &Stream,
    direction: Direction,
    pieces: &[Piece],
) -> Result<(), CudaError> {
    let [first, second, ..] = pieces else { return Ok(()) };
    let Piece { device, host, len: width, .. } = *first;
    let (host_pitch, device_pitch) = (second.host - host, second.device - device);
    let rows = pieces.len();
    let rows = Rows { direction, host, device, host_pitch, device_pitch, width, rows };
    // SAFETY: its rows are the pieces, for which the caller promises.
    unsafe { copy_rows(on, &rows) }
}

/// # Safety
/// As [`BatchSubmitter::submit`].
unsafe fn call_batch(
    on: &Stream,
    to: &mut [CUdeviceptr],
    from: &mut [CUdeviceptr],
    lens: &mut [usize],
) -> Result<(), CudaError> {
    const CALL: &str = "cuMemcpyBatchAsync";
    let driver = on.context().driver();
    let (mut attributes, mut first, mut failed) = (CopyAttributes::IN_ORDER, 0, 0);
    let (count, stream) = (lens.len(), on.raw());
    let subject = || format!("{count} copies of {}", on.context());
    let (attributes, first) = (&raw mut attributes, &raw mut first);
    // SAFETY: arrays of `count` entries, which the driver reads before it returns; the copies by
    // the caller's promise. The attributes hold for all copies from the first on.
    let status = unsafe {
        let (to, from, lens) = (to.as_mut_ptr(), from.as_mut_ptr(), lens.as_mut_ptr());
        match (driver.api.cuMemcpyBatchAsync_v2, driver.api.cuMemcpyBatchAsync) {
            (Some(call), _) => call(to, from, lens, count, attributes, first, 1, stream),
            (None, Some(call)) => {
                call(to, from, lens, count, attributes, first, 1, &raw mut failed, stream)
            }
            (None, None) => return Err(driver.lacks(CALL, subject())),
        }
    };
    driver.check(CALL, status, subject)
}

#[cfg(test)]
mod tests {
    use super::{MAX_PITCH, Piece, rows_of};

    #[test]
    fn rows_are_within_greatest_pitch() {
        let piece = |number: usize, (device, host): (usize, usize)| {
            let (device, host, origin) = (number * device, number * host, (1, 1, 0));
            Piece { device, host, len: 64, origin, rows: true, together: true }
        };
        let rows = |pitches| rows_of(&[0, 1, 2].map(|number| piece(number, pitches)));
        for (pitch, count) in
            [(0, 1), (63, 1), (64, 3), (4096, 3), (MAX_PITCH, 3), (MAX_PITCH + 1, 1)]
        {
            assert_eq!([(pitch, 64), (64, pitch)].map(rows), [count; 2], "{pitch}");
        }
    }
}
