//! A completion queue, which its owner's NIC and those of its peers fill.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SharedLock;
use super::mapping::{Mapping, Shared};
use super::nic::{Gid, QpId};
use crate::verbs::Status;

/// The head of the file of a completion queue; the completions follow it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CompletionQueue {
    lock: SharedLock,
    overrun: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: atomics throughout, with no pointer.
unsafe impl Shared for CompletionQueue {}

#[derive(Debug)]
#[repr(C)]
struct Slot([AtomicU64; 8]);

// SAFETY: as above.
unsafe impl Shared for Slot {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) qp: QpId,
    /// The caller's number of it.
    pub(crate) id: u64,
    pub(crate) status: Status,
    /// An `ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
    /// It took no receive.
    pub(crate) unsolicited: bool,
    pub(crate) source: Gid,
    pub(crate) source_qp: u32,
    pub(crate) source_ah: u32,
}

pub(crate) fn file(process: u32, number: u32) -> String {
    format!("cq-{process}.{number}")
}

impl Completion {
    fn pack(&self) -> [u64; 8] {
        let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let source = u128::from_be_bytes(self.source.0);
        let flags = u32::from(self.immediate.is_some()) | u32::from(self.unsolicited) << 1;
        [
            two(self.qp.generation, self.qp.number),
            self.id,
            two(self.status as u32, self.opcode),
            two(self.bytes, self.immediate.unwrap_or(0)),
            (source >> 64) as u64,
            source as u64,
            two(self.source_qp, self.source_ah),
            u64::from(flags),
        ]
    }

    fn unpack(words: [u64; 8]) -> Self {
        let high = |word: u64| (word >> 32) as u32;
        let low = |word: u64| word as u32;
        let source = u128::from(words[4]) << 64 | u128::from(words[5]);
        Self {
            qp: QpId { generation: high(words[0]), number: low(words[0]) },
            id: words[1],
            status: Status::numbered(high(words[2])).0,
            opcode: low(words[2]),
            bytes: high(words[3]),
            immediate: (words[7] & 1 != 0).then_some(low(words[3])),
            unsolicited: words[7] & 2 != 0,
            source: Gid(source.to_be_bytes()),
            source_qp: high(words[6]),
            source_ah: low(words[6]),
        }
    }
}

impl Mapping<CompletionQueue> {
    pub(crate) fn bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<Slot>()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries::<Slot>().len()
    }

    pub(crate) fn push(&self, completion: &Completion) {
        let slots = self.entries::<Slot>();
        self.lock.with(|| {
            let (head, tail) =
                (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
            if tail - head == slots.len() as u64 {
                return self.overrun.store(1, Ordering::Release);
            }
            let slot = &slots[tail as usize % slots.len()];
            for (place, word) in slot.0.iter().zip(completion.pack()) {
                place.store(word, Ordering::Relaxed);
            }
            self.tail.store(tail + 1, Ordering::Release);
        });
    }

    pub(crate) fn take(&self) -> Option<Completion> {
        // The owner alone moves the head.
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        let slots = self.entries::<Slot>();
        let slot = &slots[head as usize % slots.len()];
        let words = std::array::from_fn(|at| slot.0[at].load(Ordering::Relaxed));
        self.head.store(head + 1, Ordering::Release);
        Some(Completion::unpack(words))
    }

    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire) != 0
    }
}
