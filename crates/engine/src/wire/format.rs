//! Parts of all messages: places, names, numbers and what can be wrong with them.

use crate::atomic::{Atomic, AtomicOp, Width};
use crate::wire::window::Seq;

/// Version of the messages, which counts from 1 to 15 and begins anew.
pub const VERSION: u8 = 1;

/// Where a word or a payload is at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The receiver's slot for the region, which no other region has soon after.
    pub slot: u32,
    /// Offset of the first byte in the region; in a request below 2^48.
    pub offset: u64,
}

const OFFSET: u64 = (1 << 48) - 1;

#[inline]
pub(crate) fn split_offset(word: u64) -> (u64, u16) {
    (word & OFFSET, (word >> 48) as u16)
}

/// An operation, the width of its word and whether that is a floating-point number, in a byte:
/// bits 0 to 4, 5 and 6, and 7.
#[inline]
pub(crate) fn code_of(atomic: &Atomic) -> u8 {
    let width = match atomic.width {
        Width::Two => 0,
        Width::Four => 1,
        Width::Eight => 2,
    };
    atomic.op as u8 | width << 5 | u8::from(atomic.float) << 7
}

/// What such a byte means. It compares with nothing.
pub(crate) fn atomic_of(code: u8, operand: u64) -> Option<Atomic> {
    from_parts(AtomicOp::from_code((code & 0x1f).into())?, code, operand)
}

#[inline(always)]
pub(crate) fn plain_of(code: u8, operand: u64) -> Option<Atomic> {
    from_parts(AtomicOp::plain_from_code((code & 0x1f).into())?, code, operand)
}

#[inline(always)]
fn from_parts(op: AtomicOp, code: u8, operand: u64) -> Option<Atomic> {
    let width = match code >> 5 & 3 {
        0 => Width::Two,
        1 => Width::Four,
        2 => Width::Eight,
        _ => return None,
    };
    Some(Atomic { op, width, float: code & 0x80 != 0, operand, compare: 0 })
}

/// Names a request between it and its answer. No two are the same before the numbers of messages
/// repeat, so an answer that comes late is not taken for that of another request in the same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId {
    /// Where the sender of the request keeps it.
    pub slot: u32,
    /// The number of the request.
    pub seq: Seq,
}

/// Names a put with a counted signal, among those of its sender to one peer that are under way;
/// chosen by the sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u16);

/// Bytes that are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than any head.
    #[error("a message of {0} bytes")]
    Head(usize),
    /// Shorter or longer than its kind.
    #[error("a message of kind {kind} with {len} bytes")]
    Length {
        /// Its kind.
        kind: u8,
        /// Its length.
        len: usize,
    },
    /// Not of this job, or from another version of this transport.
    #[error("a message of version {0}, this transport speaks version {VERSION}")]
    Version(u8),
    /// A kind that does not exist.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// An operation that does not exist, or that does not belong to the kind of message.
    #[error("a message of kind {kind} with atomic operation {code:#04x}")]
    Operation {
        /// Its kind.
        kind: u8,
        /// The byte that names the operation.
        code: u8,
    },
    /// A counted signal of no data.
    #[error("a counted signal with no segments to wait for")]
    Segments,
    /// Bytes that mean nothing in this kind are not zero.
    #[error("a message of kind {kind} with content in bytes that have no meaning")]
    Reserved {
        /// Its kind.
        kind: u8,
    },
}
