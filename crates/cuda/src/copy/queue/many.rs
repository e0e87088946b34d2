//! Several copies that are given to a stream together, in as few calls of the driver as it takes.
//!
//! Between two copies a device waits until what it has under way across the bus is done. Beside
//! kernels that look at memory of the host that takes 10 to 100 µs, measured on H100s with driver
//! 580: as long as half a mebibyte takes, or a hundred tokens. Within one call of
//! `cuMemcpyBatchAsync` it does not wait.
//!
//! - Neighbours on both sides are one copy.
//! - Short copies to a device that are cut into rows (see [`rows`]) are rows of one copy, where
//!   they have one length and lie at equal distances on both sides.
//! - All others go in one call, where the driver has that.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::{CopyQueue, Given};
use crate::MEM;
use crate::copy::calls::{Rows, copy_part, copy_piece, copy_rows};
use crate::copy::request::{Direction, StartError, Ticket};
use crate::copy::rows;
use crate::driver::api::CopyAttributes;
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;
use crate::memory::pinned::PinnedMemory;
use crate::memory::range::DeviceRange;
use engine::port::copies::MOST_TOGETHER;

/// Copies to a device of this length and more go by a copy engine where they are given together,
/// shorter ones by kernels of the driver: 24 KiB do, 28 do not (driver 580).
const LONG: usize = 28 << 10;

/// Bytes on both sides, in one allocation of the device and one memory of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    device: usize,
    host: usize,
    len: usize,
    /// Names the host's memory, the range and the allocation of the device among those of a call.
    of: (usize, usize, usize),
    /// Whether it may be cut into rows.
    rows: bool,
}

impl Piece {
    pub(crate) fn of<'r>(
        range: &'r DeviceRange,
        addr: usize,
        memory: &PinnedMemory,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = Piece> + 'r {
        let first = range.border(addr);
        let rows = !range.is_owned();
        let (memory, host) = (ptr::from_ref(memory).addr(), memory.addr() + offset);
        range.pieces(addr, len).enumerate().map(move |(number, (at, len))| Piece {
            device: at,
            host: host + (at - addr),
            len,
            of: (memory, ptr::from_ref(range).addr(), first + number),
            rows,
        })
    }

    fn touches(&self, next: &Piece) -> bool {
        self.of == next.of
            && self.device + self.len == next.device
            && self.host + self.len == next.host
    }
}

/// What several copies are given in.
#[derive(Debug)]
pub(crate) struct Room {
    together: bool,
    pieces: Vec<Piece>,
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    lens: Vec<usize>,
}

impl Room {
    pub(crate) fn new(driver: &Driver) -> Self {
        let api = &driver.api;
        let together = api.cuMemcpyBatchAsync_v2.is_some() || api.cuMemcpyBatchAsync.is_some();
        let most = 2 * MOST_TOGETHER;
        Self {
            together,
            pieces: Vec::with_capacity(most),
            to: Vec::with_capacity(most),
            from: Vec::with_capacity(most),
            lens: Vec::with_capacity(most),
        }
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

impl CopyQueue {
    pub(crate) fn gives_together(&self) -> bool {
        self.many.together
    }

    pub(crate) fn keep(&mut self, memory: &Arc<PinnedMemory>) {
        if !self.keeps(memory) {
            self.kept.push(Arc::clone(memory));
        }
    }

    pub(crate) fn keeps(&self, memory: &Arc<PinnedMemory>) -> bool {
        self.kept.iter().any(|kept| Arc::ptr_eq(kept, memory))
    }

    pub(crate) fn begin_many(&mut self) {
        self.many.pieces.clear();
    }

    pub(crate) fn add_piece(&mut self, piece: Piece) {
        self.many.pieces.push(piece);
    }

    pub(crate) fn has_pieces(&self) -> bool {
        !self.many.pieces.is_empty()
    }

    /// Gives the driver all of them, as one thing under way.
    ///
    /// # Safety
    /// Each was checked, its host side is page-locked memory that is among the `kept`, and nobody
    /// else uses it. None overlaps another where it writes.
    pub(crate) unsafe fn give_many(&mut self, direction: Direction) -> Result<Ticket, StartError> {
        let context = Arc::clone(self.stream.context());
        let _bound = context.bind()?;
        // SAFETY: the caller's promise.
        let failed = match unsafe { self.give_pieces(direction) } {
            Ok(()) => None,
            Err(Refused { error, some: false }) => return Err(error.into()),
            Err(Refused { error, .. }) => Some(error),
        };
        Ok(self.flight.enter(&self.stream, Given { failed, ..Given::default() }))
    }

    /// Gives the driver all of them.
    ///
    /// # Safety
    /// As [`CopyQueue::give_many`]. The context is bound.
    pub(super) unsafe fn give_pieces(&mut self, direction: Direction) -> Result<(), Refused> {
        let in_rows = self.rows && direction == Direction::ToDevice;
        let Self { stream, many, .. } = self;
        merge(&mut many.pieces);
        let is_short = |piece: &Piece| in_rows && piece.rows && piece.len < LONG;
        for list in [&mut many.to, &mut many.from] {
            list.clear();
        }
        many.lens.clear();
        let mut started = false;
        let mut rest = &many.pieces[..];
        while let [piece, ..] = rest {
            if !is_short(piece) {
                let (device, host) = (piece.device as CUdeviceptr, piece.host as CUdeviceptr);
                let (to, from) = match direction {
                    Direction::ToDevice => (device, host),
                    Direction::FromDevice => (host, device),
                };
                many.to.push(to);
                many.from.push(from);
                many.lens.push(piece.len);
                rest = &rest[1..];
                continue;
            }
            let shorts = rest.iter().take_while(|piece| is_short(piece)).count();
            let rows = rows_of(&rest[..shorts]);
            // SAFETY: the caller's promise.
            let given = unsafe { copy_in_rows(stream, &rest[..rows]) };
            given.map_err(|error| Refused { error, some: started })?;
            started = true;
            rest = &rest[rows..];
        }
        if many.lens.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let given = unsafe { give_batch(stream, many, direction) };
        // What it has taken of them is not known.
        given.map_err(|Refused { error, some }| Refused { error, some: some || started })
    }
}

/// Copies short pieces to a device in one call, which are rows of one copy; or one of them.
///
/// # Safety
/// As [`CopyQueue::give_many`]. The context is bound.
unsafe fn copy_in_rows(on: &Stream, pieces: &[Piece]) -> Result<(), CudaError> {
    let [first, rest @ ..] = pieces else { return Ok(()) };
    let Piece { device, host, len, .. } = *first;
    let Some(second) = rest.first() else {
        return rows::parts(device, len).try_for_each(|part| {
            // SAFETY: the caller's promise.
            unsafe { copy_part(on, host + part.offset, device + part.offset, &part) }
        });
    };
    let (host_pitch, device_pitch) = (second.host - host, second.device - device);
    let rows = Rows { host, device, host_pitch, device_pitch, width: len, rows: pieces.len() };
    // SAFETY: its rows are the pieces, which the caller's promise is about.
    unsafe { copy_rows(on, &rows) }
}

/// Copies that were refused, perhaps after some of them were started.
pub(super) struct Refused {
    pub(super) error: CudaError,
    pub(super) some: bool,
}

/// Gives the driver what is in the lists, in one call where it takes that.
///
/// # Safety
/// As [`CopyQueue::give_many`]. The context is bound.
unsafe fn give_batch(on: &Stream, many: &mut Room, direction: Direction) -> Result<(), Refused> {
    let Room { together, to, from, lens, .. } = many;
    let mut again = false;
    if *together && lens.len() > 1 {
        // SAFETY: the caller's promise.
        let Err(error) = (unsafe { call_batch(on, to, from, lens) }) else { return Ok(()) };
        // Some drivers list the function and refuse it, at all or for some memory. What was taken
        // of it is copied once more, which changes nothing: the stream does one behind the other,
        // and nobody has either side before both are done.
        *together = false;
        if error.code != code::NOT_SUPPORTED {
            log::warn!(target: MEM, "copies are given to the driver one by one from now on: {error}");
        }
        again = true;
    }
    for (number, ((to, from), len)) in to.iter().zip(&*from).zip(&*lens).enumerate() {
        let (addr, host) = match direction {
            Direction::ToDevice => (*to, *from),
            Direction::FromDevice => (*from, *to),
        };
        // SAFETY: the caller's promise.
        let given = unsafe { copy_piece(on, direction, addr as usize, host as usize, *len) };
        given.map_err(|error| Refused { error, some: again || number != 0 })?;
    }
    Ok(())
}

/// # Safety
/// As [`CopyQueue::give_many`]. The context is bound.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(device: usize, host: usize, len: usize, memory: usize) -> Piece {
        Piece { device, host, len, of: (memory, 0, 0), rows: true }
    }

    #[test]
    fn neighbours_on_both_sides_are_one_copy() {
        let mut pieces = vec![
            piece(0x3000, 0x13000, 0x1000, 0),
            piece(0x1000, 0x11000, 0x1000, 0),
            piece(0x2000, 0x12000, 0x1000, 0),
            // Of another memory, elsewhere in it, and apart.
            piece(0x4000, 0x14000, 0x1000, 1),
            piece(0x5000, 0x16000, 0x1000, 1),
            piece(0x7000, 0x17000, 0x1000, 1),
        ];
        merge(&mut pieces);
        let are: Vec<_> = pieces.iter().map(|piece| (piece.device, piece.len)).collect();
        assert_eq!(are, [(0x1000, 0x3000), (0x4000, 0x1000), (0x5000, 0x1000), (0x7000, 0x1000)]);
    }

    #[test]
    fn rows_have_one_length_and_equal_distances() {
        let at = |device, host| piece(device, host, 100, 0);
        let three = [at(0, 0), at(500, 200), at(1000, 400)];
        assert_eq!(rows_of(&three), 3);
        assert_eq!(rows_of(&three[..1]), 1);
        assert_eq!(rows_of(&[three[0], three[1], at(1001, 400)]), 2);
        assert_eq!(rows_of(&[three[0], three[1], at(1000, 401)]), 2);
        assert_eq!(rows_of(&[three[0], piece(500, 200, 99, 0), three[2]]), 1);
        assert_eq!(rows_of(&[three[0], piece(500, 200, 100, 1)]), 1);
        assert_eq!(rows_of(&[at(0, 200), at(500, 0)]), 1, "a distance backwards");
        assert_eq!(rows_of(&[at(0, 0), at(500, 50)]), 1, "rows overlap on the host");
    }
}
