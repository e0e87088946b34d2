//! The local memory that the fast path has found last, which it uses without another look.

use crate::port::Desc;

/// See the module. It holds as long as nothing is registered or released.
#[derive(Debug)]
pub(super) struct Recent {
    /// Memory that the fabric reaches, with the descriptors by rail.
    pub(super) fabric: Range,
    pub(super) descs: [Desc; 1 + u8::MAX as usize],
    pub(super) cpu: Range,
}

impl Recent {
    /// No memory.
    pub(super) const NONE: Recent =
        Recent { fabric: Range::NONE, descs: [Desc(0); 1 + u8::MAX as usize], cpu: Range::NONE };
}

/// Addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) base: usize,
    pub(super) len: usize,
}

impl Range {
    pub(super) const NONE: Range = Range { base: 0, len: 0 };

    /// Every address but null.
    pub(super) const ALL: Range = Range { base: 1, len: usize::MAX };

    /// Whether `len` bytes at `addr`, at least one, are all inside.
    #[inline(always)]
    pub(super) fn has(self, addr: usize, len: usize) -> bool {
        // How far the end is behind the base. If the address is below that, the end is either, or
        // nearer than the length.
        let end = addr.wrapping_add(len).wrapping_sub(self.base);
        len <= end && end <= self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_is_told_at_both_ends_and_across_the_wrap() {
        let range = Range { base: 1000, len: 100 };
        let top = Range { base: usize::MAX - 99, len: 100 };
        for (range, base) in [(range, range.base), (top, top.base)] {
            for (addr, len, is_inside) in [
                (base, 1, true),
                (base, 100, true),
                (base + 99, 1, true),
                (base, 101, false),
                (base + 99, 2, false),
                (base - 1, 1, false),
                (base - 1, 2, false),
                (base - 50, 100, false),
                (base.wrapping_add(100), 1, false),
                (base, usize::MAX, false),
                (base + 1, usize::MAX, false),
                (0, 1, false),
            ] {
                assert_eq!(range.has(addr, len), is_inside, "{addr:#x} {len:#x}");
            }
        }
        assert!(Range::ALL.has(1, 1) && Range::ALL.has(usize::MAX - 8, 8));
        assert!(!Range::ALL.has(0, 1) && !Range::ALL.has(0, 8));
        assert!(!Range::NONE.has(0, 1) && !Range::NONE.has(8, 8));
    }
}
