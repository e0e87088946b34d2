//! Lists: copies and stores of words that a stream is given in order, in few calls of the driver.
//!
//! Between two copies a device waits until what it has under way across the bus is done. Beside
//! kernels that look at memory of the host that takes 10 to 100 µs, measured on H100s with driver
//! 580: as long as half a mebibyte takes, or a hundred tokens. Within one call of
//! `cuMemcpyBatchAsync` it does not wait. So copies that nothing orders among one another are given
//! together, and so are words in a row.
//!
//! - Neighbours on both sides are one copy.
//! - Short copies to a device that are cut into rows (see [`rows`]) are rows of one copy, where
//!   they have one length and lie at equal distances on both sides.
//! - All others go in one call, where the driver has that and is known to copy their memory so.

use std::ptr;

use cudarc::driver::sys::CUdeviceptr;

use crate::MEM;
use crate::copy::calls::{Rows, copy_piece, copy_rows};
use crate::copy::request::{Direction, Step, Transfer};
use crate::copy::rows;
use crate::copy::writes::{MAX_WRITES, Write, Writes};
use crate::driver::api::CopyAttributes;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;
use crate::memory::pointer::Kind;
use engine::port::copies::MAX_BATCH_COPIES;

/// Copies to a device of this length and more go by a copy engine where they are given together,
/// shorter ones by kernels of the driver: 24 KiB do, 28 do not (driver 580).
const LONG: usize = 28 << 10;

/// Bytes on both sides, in one allocation of the device and one memory of the host.
#[derive(Clone, Copy, Debug)]
struct Piece {
    device: usize,
    host: usize,
    len: usize,
    /// Names the host's memory, the range and the allocation of the device among those of a call.
    of: (usize, usize, usize),
    /// Whether it may be cut into rows.
    rows: bool,
    /// Whether it may be given with others.
    together: bool,
}

impl Piece {
    fn of<'r>(transfer: &Transfer<'r>, context: &Context) -> impl Iterator<Item = Piece> + 'r {
        let Transfer { range, addr, memory, offset, len, .. } = *transfer;
        let first = range.border(addr);
        // A context's memory is copied in that, whatever the call, managed memory maybe by the CPU.
        let is_own = !range.is_owned() || range.context().is(context);
        let (rows, together) = (!range.is_owned(), is_own && range.kind() == Kind::Device);
        let (memory, host) = (ptr::from_ref(&**memory).addr(), memory.addr() + offset);
        range.pieces(addr, len).enumerate().map(move |(number, (at, len))| Piece {
            device: at,
            host: host + (at - addr),
            len,
            of: (memory, ptr::from_ref(range).addr(), first + number),
            rows,
            together,
        })
    }

    fn touches(&self, next: &Piece) -> bool {
        self.of == next.of
            && self.device + self.len == next.device
            && self.host + self.len == next.host
    }
}

/// Outcome of starting a list.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Whether the stream has some of it.
    pub(super) some: bool,
    /// Whether the mark went along, behind all of it.
    pub(super) marked: bool,
}

/// What gives lists to a stream: the steps that wait to go together, and room for the calls.
#[derive(Debug)]
pub(super) struct Lists {
    /// Whether the driver takes several copies in one call.
    takes_several: bool,
    /// Whether short copies to the device are cut into rows.
    pub(super) rows: bool,
    direction: Direction,
    pieces: Vec<Piece>,
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    lens: Vec<usize>,
    writes: Writes,
}

impl Lists {
    pub(super) fn new(driver: &Driver) -> Self {
        let api = &driver.api;
        let most = 2 * MAX_BATCH_COPIES;
        Self {
            takes_several: api.cuMemcpyBatchAsync_v2.is_some() || api.cuMemcpyBatchAsync.is_some(),
            rows: false,
            direction: Direction::ToDevice,
            pieces: Vec::with_capacity(most),
            to: Vec::with_capacity(most),
            from: Vec::with_capacity(most),
            lens: Vec::with_capacity(most),
            writes: Writes::new(),
        }
    }

    /// Gives a stream steps, each after those before it but for unordered copies, and the
    /// `mark` behind words that come last. What it has of them when it fails is in `given`.
    ///
    /// # Safety
    /// Each step was checked. Copies are in one direction; their page-locked memory is kept, and
    /// nobody else uses it, until all have ended. None overlaps another where it writes, unless it
    /// comes behind that. The context is bound.
    pub(super) unsafe fn give<'a>(
        &mut self,
        stream: &Stream,
        steps: impl Iterator<Item = Step<'a>>,
        mark: Option<Write>,
        given: &mut Given,
    ) -> Result<(), CudaError> {
        self.pieces.clear();
        self.writes.clear();
        for step in steps {
            let goes_with_others = match step {
                Step::Copy { is_ordered, .. } => !is_ordered && self.writes.len() == 0,
                Step::Store { .. } => self.pieces.is_empty() && self.writes.len() < MAX_WRITES,
            };
            if !goes_with_others {
                // SAFETY: the caller's promise.
                unsafe { self.give_waiting(stream, None, given)? };
            }
            match step {
                Step::Copy { transfer, .. } => {
                    self.direction = transfer.direction;
                    self.pieces.extend(Piece::of(&transfer, stream.context()));
                }
                Step::Store { word, value } => {
                    self.writes.push(Write { addr: word.addr, width: word.width, value });
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.give_waiting(stream, mark, given) }
    }

    /// Gives the stream what waits: copies, or words.
    ///
    /// # Safety
    /// As [`Lists::give`].
    unsafe fn give_waiting(
        &mut self,
        stream: &Stream,
        mark: Option<Write>,
        given: &mut Given,
    ) -> Result<(), CudaError> {
        if self.writes.len() > 0 {
            given.marked = self.writes.give(stream, mark, &mut given.some)?;
        }
        if !self.pieces.is_empty() {
            merge(&mut self.pieces);
            // SAFETY: the caller's promise.
            unsafe { self.give_copies(stream, &mut given.some)? };
            self.pieces.clear();
        }
        Ok(())
    }

    /// # Safety
    /// As [`Lists::give`].
    unsafe fn give_copies(&mut self, stream: &Stream, some: &mut bool) -> Result<(), CudaError> {
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
        let mut rest = &pieces[..];
        while let [piece, ..] = rest {
            let mut count = 1;
            if is_short(piece) {
                count = rows_of(rest.split(|piece| !is_short(piece)).next().unwrap_or(rest));
                match &rest[..count] {
                    [piece] => alone(piece)?,
                    // SAFETY: the caller's promise.
                    several => unsafe { copy_as_rows(stream, several)? },
                }
                *some = true;
            } else if self.takes_several && piece.together {
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
                *some = true;
            }
            rest = &rest[count..];
        }
        if lens.len() > 1 {
            // SAFETY: the caller's promise.
            let Err(error) = (unsafe { call_batch(stream, to, from, lens) }) else {
                *some = true;
                return Ok(());
            };
            // Some drivers list the function and refuse it, at all or for some memory. What was
            // taken of it is copied once more, which changes nothing: the stream does one behind
            // the other, and nobody has either side before both are done.
            *some = true;
            self.takes_several = false;
            if error.code != code::NOT_SUPPORTED {
                log::warn!(target: MEM, "copies are given to the driver one by one from now on: {error}");
            }
        }
        if !lens.is_empty() {
            for piece in pieces.iter().filter(|piece| piece.together && !is_short(piece)) {
                alone(piece)?;
                *some = true;
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

/// How many of the first of these are rows of one copy: of one length, at equal distances on both
/// sides, in one allocation and one memory of the host. One at least.
fn rows_of(pieces: &[Piece]) -> usize {
    let [first, second, ..] = pieces else { return pieces.len() };
    let step = |one: &Piece, next: &Piece| {
        let host = next.host.checked_sub(one.host)?;
        let device = next.device - one.device;
        let fits = host >= one.len && device >= one.len && next.len == one.len;
        (fits && next.of == one.of).then_some((host, device))
    };
    let Some(steps) = step(first, second) else { return 1 };
    let same = |pair: &&[Piece]| step(&pair[0], &pair[1]) == Some(steps);
    1 + pieces.windows(2).take_while(same).count()
}

/// Copies one piece, in rows of its own bytes or as it is.
///
/// # Safety
/// As [`Lists::give`].
unsafe fn copy_alone(
    on: &Stream,
    direction: Direction,
    piece: &Piece,
    in_rows: bool,
) -> Result<(), CudaError> {
    let Piece { device, host, len, .. } = *piece;
    if !in_rows {
        // SAFETY: the caller's promise.
        return unsafe { copy_piece(on, direction, device, host, len) };
    }
    rows::parts(device, len).try_for_each(|part| {
        // SAFETY: parts of the piece, which the caller's promise is about.
        unsafe { part.copy(on, host + part.offset, device + part.offset) }
    })
}

/// Copies pieces to a device in one call, as rows of one copy.
///
/// # Safety
/// As [`Lists::give`].
unsafe fn copy_as_rows(on: &Stream, pieces: &[Piece]) -> Result<(), CudaError> {
    let [first, second, ..] = pieces else { return Ok(()) };
    let Piece { device, host, len: width, .. } = *first;
    let (host_pitch, device_pitch) = (second.host - host, second.device - device);
    let rows = Rows { host, device, host_pitch, device_pitch, width, rows: pieces.len() };
    // SAFETY: its rows are the pieces, which the caller's promise is about.
    unsafe { copy_rows(on, &rows) }
}

/// # Safety
/// As [`Lists::give`].
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
    // SAFETY: lists of so many, which the driver has read when it returns; the copies by the
    // caller's promise. Attributes hold for all from the first one on.
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
