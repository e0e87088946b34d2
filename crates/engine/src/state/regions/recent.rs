//! The local memory that the fast path has found last, which it uses without another look.

use crate::port::Desc;

/// See the module. It holds as long as nothing is registered or released.
#[derive(Debug)]
pub(super) struct Recent {
    /// Memory that the fabric reaches, with the descriptors by rail.
    pub(super) fabric: Range,
    pub(super) descs: [Desc; 1 + u8::MAX as usize],
    /// Memory that the CPU reaches.
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
        let offset = addr.wrapping_sub(self.base);
        let Some(end) = offset.checked_add(len) else { return false };
        end <= self.len
    }
}
