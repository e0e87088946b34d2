//! Rows: a short copy to a device cut so that a copy engine does it, and no kernel of the driver.
//!
//! A copy of less than 32 KiB to a device is done by the compute engine, which contexts of a device
//! share by turns of some 2.4 ms without the multi-process service: beside a kernel of another
//! context it waits for the next turn (measured with driver 580 on H100 and H200). A copy of two
//! rows or more always goes by a copy engine, in some 10 µs.
//!
//! A naturally aligned word of up to 8 bytes is in one row: so it comes whole, as by a plain copy.

use crate::copy::calls::{Rows, copy_piece, copy_rows};
use crate::copy::request::Direction;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;

/// A part of a copy: so many rows of so many bytes, each right behind the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Where it begins in the copy, in bytes.
    pub(super) offset: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
}

/// Copies of this length and more go by a copy engine as they are.
pub(super) const LONG: usize = 32 << 10;

const MAX_ROWS: usize = 31;

const WORD: usize = 8;

impl Part {
    /// Starts it. The addresses are those of its own first byte.
    ///
    /// # Safety
    /// As [`copy_piece`].
    pub(super) unsafe fn copy(
        &self,
        on: &Stream,
        host: usize,
        device: usize,
    ) -> Result<(), CudaError> {
        let Self { width, rows, .. } = *self;
        let (host_pitch, device_pitch) = (width, width);
        // SAFETY: the caller's promise; rows without room between them are the bytes it is about.
        unsafe {
            match rows {
                1 => copy_piece(on, Direction::ToDevice, device, host, width),
                _ => copy_rows(on, &Rows { host, device, host_pitch, device_pitch, width, rows }),
            }
        }
    }
}

/// The one or two parts of a copy of `len` bytes, fewer than [`LONG`], to `addr`; a word is a row.
pub(super) fn parts(addr: usize, len: usize) -> impl Iterator<Item = Part> {
    let (first, second) = cut(addr, len);
    std::iter::once(first).chain(second)
}

fn cut(addr: usize, len: usize) -> (Part, Option<Part>) {
    let align = alignment(addr);
    let even = |rows: &usize| len % (rows * align) == 0;
    if let Some(rows) = [2, 3, 5, 7].into_iter().find(even) {
        return (Part { offset: 0, width: len / rows, rows }, None);
    }
    // A row for each word, where they are few.
    let word = align.min(alignment(len));
    if len / word <= MAX_ROWS {
        return (Part { offset: 0, width: word, rows: len / word }, None);
    }
    // Two rows of whole words, and the rest: at least two of the words that it consists of.
    let rest = len % (2 * align) + 2 * align;
    let body = len - rest;
    let word = align.min(alignment(rest));
    let two = Part { offset: 0, width: body / 2, rows: 2 };
    (two, Some(Part { offset: body, width: word, rows: rest / word }))
}

fn alignment(number: usize) -> usize {
    1 << number.trailing_zeros().min(WORD.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::{LONG, MAX_ROWS, Part, WORD, parts};

    fn cut(addr: usize, len: usize) -> Vec<(usize, usize, usize)> {
        parts(addr, len).map(|Part { offset, width, rows }| (offset, width, rows)).collect()
    }

    #[test]
    fn rows_are_whole_words() {
        assert_eq!(cut(0x1000, 4096), [(0, 2048, 2)]);
        assert_eq!(cut(0x1000, 200), [(0, 40, 5)]);
        assert_eq!(cut(0x1000, 88), [(0, 8, 11)]);
        assert_eq!(cut(0x1000, 37 * 8), [(0, 136, 2), (272, 8, 3)]);
        assert_eq!(cut(0x1000, 24), [(0, 8, 3)]);
        assert_eq!(cut(0x1000, 12), [(0, 4, 3)]);
        assert_eq!(cut(0x1001, 37), [(0, 17, 2), (34, 1, 3)]);
        for word in [1, 2, 4, 8] {
            assert_eq!(cut(0x1000, word), [(0, word, 1)], "a word alone");
        }
    }

    #[test]
    fn parts_cover_copy_without_torn_words() {
        for addr in 0x1000..0x1010 {
            for len in (1..600).chain(LONG - 40..LONG) {
                let mut end = 0;
                let mut borders = Vec::new();
                for part in parts(addr, len) {
                    assert_eq!(part.offset, end, "{len} bytes at {addr:#x}");
                    assert!(part.rows <= MAX_ROWS && part.width > 0, "{part:?}");
                    let bytes = part.width * part.rows;
                    assert!(part.rows > 1 || bytes <= WORD, "{len} bytes at {addr:#x}: {part:?}");
                    end += bytes;
                    borders.extend((1..=part.rows).map(|row| part.offset + row * part.width));
                }
                assert_eq!(end, len);
                // Words of which the whole copy consists, at their natural alignment.
                let word = 1 << (addr | len).trailing_zeros().min(3);
                assert!(borders.iter().all(|at| (addr + at) % word == 0), "{len} at {addr:#x}");
            }
        }
    }
}
