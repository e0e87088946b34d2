//! The memory that a ring's two ends share, as atomics.

use channel_sys as c;

use crate::channel::ring::sync::{AtomicU32, AtomicU64, Ordering};

/// The words of one slot, as loaded.
pub type Words = [u64; 4];

/// The words of a slot that carry its lap, one in each half. Each is the last of its half.
pub const LAP_WORDS: [usize; 2] = [1, 3];

/// One slot of a ring, in memory that a GPU writes.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Slot {
    /// Written by the producer that has reserved the slot, between the consumer's takings of two
    /// laps. A word of [`LAP_WORDS`] is never seen before the other word of its half.
    pub words: [AtomicU64; 4],
}

/// Progress of a ring's consumer for its producers: one cache line, which it alone writes.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Published {
    /// Slots taken. Stored with release after the last load from them: who sees it may write there.
    pub tail: AtomicU64,
    /// Slots whose operations are delivered. Stored with release, after what they brought.
    pub done: AtomicU64,
    /// `NLF_STATE_*`.
    pub state: AtomicU32,
    pub(crate) reserved: u32,
    /// Completed quiets, by slot modulo `NLF_QUIETS`, stored as `done` is.
    pub quiet: [AtomicU64; c::NLF_QUIETS as usize],
    pub(crate) unused: u64,
}

/// The lap of a slot, at its bit in a word.
///
/// The bit of the slot's number that changes with each lap, inverted: a one in the first lap.
#[inline(always)]
pub fn lap(number: u64, slots_log2: u32) -> u64 {
    // Of rings that have a size, the logarithm is below 63, and the rotation a shift.
    (!number).rotate_right(slots_log2 + 1) & c::NLF_LAP
}

impl Slot {
    /// The words, if the slot has the expected lap. None if a part is not yet written.
    ///
    /// # Ordering
    /// The words with the lap are loaded first, as acquires; so the others, loaded after, are of
    /// the same store or a later one. There is no later one: the slot is not written again before
    /// its number is published as taken.
    ///
    /// - A GPU writes each half with one 16-byte store. PTX has it as one access (`st.b128`). On
    ///   PCIe it is one write, and is seen in the order of rising addresses; the lap is its last
    ///   bit. Over NVLink-C2C it is one access of the coherent memory.
    /// - A CPU writes the word with the lap last, with release.
    /// - x86-64: loads are not reordered with loads; an acquire is a plain load. AArch64, Grace for
    ///   one: an acquire is `ldar` or `ldapr`, after which no later load is satisfied earlier.
    #[inline(always)]
    pub fn load(&self, lap_due: u64) -> Option<Words> {
        let q1 = self.words[1].load(Ordering::Acquire);
        let q3 = self.words[3].load(Ordering::Acquire);
        if ((q1 ^ lap_due) | (q3 ^ lap_due)) & c::NLF_LAP != 0 {
            return None;
        }
        let q0 = self.words[0].load(Ordering::Relaxed);
        let q2 = self.words[2].load(Ordering::Relaxed);
        Some([q0, q1, q2, q3])
    }
}
