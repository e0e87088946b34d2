//! Rows: short copies to a device, cut so that a copy engine executes them and no driver kernel.
//!
//! The compute engine executes copies of less than 32 KiB to a device. Without the multi-process
//! service the contexts of a device share it in time slices of some 2.4 ms: beside a kernel of
//! another context a copy waits for the next slice (measured with driver 580 on H100 and H200). A
//! copy engine executes every copy of two rows or more, in some 10 µs.
//!
//! No row boundary is inside a naturally aligned word of up to 8 bytes, so words arrive whole, as
//! by a plain copy.

use crate::copy::calls::{Rows, copy_piece, copy_rows};
use crate::copy::request::Direction;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;

/// Contiguous part of a copy: `rows` rows of `width` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RowBlock {
    /// Offset in the copy, in bytes.
    offset: usize,
    width: usize,
    rows: usize,
}

/// Bytes from which a copy engine executes plain copies.
pub(super) const LONG: usize = 32 << 10;

const MAX_ROWS: usize = 31;

const WORD: usize = 8;

/// Starts a copy of fewer than [`LONG`] bytes to a device.
///
/// # Safety
/// As [`copy_piece`].
pub(super) unsafe fn copy_in_rows(
    on: &Stream,
    device: usize,
    host: usize,
    len: usize,
) -> Result<(), CudaError> {
    row_blocks(device, len).try_for_each(|RowBlock { offset, width, rows }| {
        let (device, host) = (device + offset, host + offset);
        let (direction, host_pitch, device_pitch) = (Direction::ToDevice, width, width);
        // SAFETY: the caller's promise; rows without gaps are the bytes that it is about.
        unsafe {
            match rows {
                1 => copy_piece(on, direction, device, host, width),
                _ => copy_rows(
                    on,
                    &Rows { direction, host, device, host_pitch, device_pitch, width, rows },
                ),
            }
        }
    })
}

/// Returns the one or two blocks of a copy of `len` bytes, fewer than [`LONG`], to `addr`.
fn row_blocks(addr: usize, len: usize) -> impl Iterator<Item = RowBlock> {
    let (first, second) = cut(addr, len);
    std::iter::once(first).chain(second)
}

fn cut(addr: usize, len: usize) -> (RowBlock, Option<RowBlock>) {
    let align = alignment(addr);
    let even = |rows: &usize| len % (rows * align) == 0;
    if let Some(rows) = [2, 3, 5, 7].into_iter().find(even) {
        return (RowBlock { offset: 0, width: len / rows, rows }, None);
    }
    // A row for each of a few words.
    let word = align.min(alignment(len));
    if len / word <= MAX_ROWS {
        return (RowBlock { offset: 0, width: word, rows: len / word }, None);
    }
    // Two rows of whole words, and a rest of at least two words, as narrow as it needs.
    let rest = len % (2 * align) + 2 * align;
    let body = len - rest;
    let word = align.min(alignment(rest));
    let two = RowBlock { offset: 0, width: body / 2, rows: 2 };
    (two, Some(RowBlock { offset: body, width: word, rows: rest / word }))
}

fn alignment(number: usize) -> usize {
    1 << number.trailing_zeros().min(WORD.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::{LONG, MAX_ROWS, WORD, row_blocks};

    fn cut(addr: usize, len: usize) -> Vec<(usize, usize, usize)> {
        row_blocks(addr, len).map(|block| (block.offset, block.width, block.rows)).collect()
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
                for block in row_blocks(addr, len) {
                    assert_eq!(block.offset, end, "{len} bytes at {addr:#x}");
                    assert!(block.rows <= MAX_ROWS && block.width > 0, "{block:?}");
                    let bytes = block.width * block.rows;
                    assert!(block.rows > 1 || bytes <= WORD, "{len} bytes at {addr:#x}: {block:?}");
                    end += bytes;
                    borders.extend((1..=block.rows).map(|row| block.offset + row * block.width));
                }
                assert_eq!(end, len);
                // Words of which the whole copy consists, at their natural alignment.
                let word = 1 << (addr | len).trailing_zeros().min(3);
                assert!(borders.iter().all(|at| (addr + at) % word == 0), "{len} at {addr:#x}");
            }
        }
    }
}
