//! Programs of the two PEs, and what must come of each.

use crate::prelude::*;

/// Most operations of one PE.
pub(crate) const OPS: usize = 8;

/// Most data words of one operation. Word 0 of a place is the signal.
pub(crate) const WORDS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgramOp {
    /// A put of so many words, each a segment of its own.
    Put(usize),
    /// A put of so many words, with its signal. None is a signal alone.
    Signal(usize),
    /// A signal sent apart from its data, after the puts before it.
    SignalBehind,
    /// An atomic add to the word that all share.
    Add,
    FetchAdd,
    Fence,
    /// Waits until nothing is outstanding, to either PE.
    Quiet,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) what: ProgramOp,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Fences before it.
    pub(crate) epoch: usize,
}

impl Op {
    /// The words that it must write, by their number in its place. Word 0 stands for the signal,
    /// or for the atomic.
    pub(crate) fn effects(&self) -> std::ops::Range<usize> {
        match self.what {
            ProgramOp::Put(words) => 1..words + 1,
            ProgramOp::Signal(words) => 0..words + 1,
            ProgramOp::SignalBehind | ProgramOp::Add | ProgramOp::FetchAdd => 0..1,
            ProgramOp::Fence | ProgramOp::Quiet => 0..0,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rails: u8,
    pub(crate) depth: u32,
    pub(crate) signals: SignalChoice,
    pub(crate) counted: u16,
    /// Whether puts of more than a word go by rails chosen by load.
    pub(crate) balanced: bool,
    pub(crate) again: u32,
    pub(crate) duplicates: u32,
    pub(crate) failures: u32,
    /// How many rails of either PE fail as a whole, at most one of each.
    pub(crate) rail_failures: u32,
    pub(crate) batch: u32,
    pub(crate) programs: [Vec<Op>; 2],
}

impl Case {
    pub(crate) fn new(signals: SignalChoice, zero: &[ProgramOp], one: &[ProgramOp]) -> Self {
        let program = |from: usize, whats: &[ProgramOp]| {
            let mut epoch = 0;
            let last = (!whats.is_empty()).then_some(ProgramOp::Quiet);
            let op = |what: ProgramOp| {
                epoch += usize::from(what == ProgramOp::Fence);
                Op { what, from, to: 1 - from, epoch }
            };
            let ops: Vec<Op> = whats.iter().copied().chain(last).map(op).collect();
            assert!(ops.len() <= OPS);
            ops
        };
        Self {
            name: format!("{signals:?} {zero:?} | {one:?}"),
            rails: 2,
            depth: 4,
            signals,
            counted: 1,
            balanced: false,
            again: 1,
            duplicates: 1,
            failures: 0,
            rail_failures: 0,
            batch: 2,
            programs: [program(0, zero), program(1, one)],
        }
    }

    /// The same, where nothing goes wrong, and an iteration finds one thing.
    pub(crate) fn calm(self) -> Self {
        Self { again: 0, duplicates: 0, batch: 1, ..self }
    }

    pub(crate) fn op(&self, number: usize) -> Op {
        self.programs[number / OPS][number % OPS]
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = (usize, Op)> + '_ {
        (0..2).flat_map(|pe| {
            self.programs[pe].iter().enumerate().map(move |(at, op)| (pe * OPS + at, *op))
        })
    }
}
