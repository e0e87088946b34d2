//! Atomic operations as a fabric carries them out: the table that NVSHMEM's operations come down
//! to.

use std::fmt;

use crate::atomic::{Atomic, AtomicOp, Width, one};

/// What a fabric does to a word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// Adds the operand.
    Add,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Stores the operand; a swap where it fetches.
    Write,
    /// Reads the word. It always fetches.
    Read,
    /// Stores the operand if the word equals the comparand. It always fetches.
    CompareSwap,
}

/// What a fabric takes a word for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Number {
    /// 2 bytes, without a sign.
    U16,
    /// 4 bytes, without a sign.
    U32,
    /// 8 bytes, without a sign.
    U64,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl Number {
    const INTEGERS: [Number; 3] = [Number::U16, Number::U32, Number::U64];

    fn bits(width: Width) -> Self {
        match width {
            Width::Two => Self::U16,
            Width::Four => Self::U32,
            Width::Eight => Self::U64,
        }
    }

    /// The width of the word.
    pub fn width(self) -> Width {
        match self {
            Self::U16 => Width::Two,
            Self::U32 | Self::F32 => Width::Four,
            Self::U64 | Self::F64 => Width::Eight,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// One row of the table: an operation on one kind of word, that returns the word before or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    /// What is done.
    pub verb: Verb,
    /// To what.
    pub number: Number,
    /// Whether the word before is returned.
    pub fetches: bool,
}

impl Row {
    /// Every row that an NVSHMEM operation may need. A fabric that lacks one of them cannot be the
    /// one that executes a job's atomics: two that change one word are not atomic together.
    pub fn all() -> impl Iterator<Item = Row> {
        use Verb::{Add, And, CompareSwap, Or, Read, Write, Xor};
        let bits = |verb, fetches| {
            Number::INTEGERS.into_iter().map(move |number| Row { verb, number, fetches })
        };
        let sums = |fetches| {
            let floats = [Number::F32, Number::F64].into_iter();
            floats.map(move |number| Row { verb: Add, number, fetches })
        };
        let both = move |fetches| {
            let verbs = [Add, And, Or, Xor, Write].into_iter();
            verbs.flat_map(move |verb| bits(verb, fetches)).chain(sums(fetches))
        };
        both(false).chain(both(true)).chain(bits(Read, true)).chain(bits(CompareSwap, true))
    }

    /// The row that executes an operation by itself. None for sums of IEEE halves, which no fabric
    /// knows: they take several.
    pub(crate) fn of(atomic: &Atomic) -> Option<Row> {
        let bits = Number::bits(atomic.width);
        let (verb, number) = match atomic.op {
            AtomicOp::Inc
            | AtomicOp::FetchInc
            | AtomicOp::Add
            | AtomicOp::SignalAdd
            | AtomicOp::FetchAdd => match (atomic.float, atomic.width) {
                (false, _) => (Verb::Add, bits),
                (true, Width::Four) => (Verb::Add, Number::F32),
                (true, Width::Eight) => (Verb::Add, Number::F64),
                (true, Width::Two) => return None,
            },
            // These work on bits, whatever the bits stand for: comparing numbers would take the two
            // zeros for equal, and a NaN for different from itself.
            AtomicOp::And | AtomicOp::FetchAnd => (Verb::And, bits),
            AtomicOp::Or | AtomicOp::FetchOr => (Verb::Or, bits),
            AtomicOp::Xor | AtomicOp::FetchXor => (Verb::Xor, bits),
            AtomicOp::Set | AtomicOp::Signal | AtomicOp::SignalSet | AtomicOp::Swap => {
                (Verb::Write, bits)
            }
            AtomicOp::Fetch => (Verb::Read, bits),
            AtomicOp::CompareSwap => (Verb::CompareSwap, bits),
        };
        Some(Row { verb, number, fetches: atomic.op.fetches() })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Add => "add",
            Verb::And => "and",
            Verb::Or => "or",
            Verb::Xor => "xor",
            Verb::Write if self.fetches => "swap",
            Verb::Write => "set",
            Verb::Read => "fetch",
            Verb::CompareSwap => "compare-swap",
        };
        let fetch = match self.verb {
            Verb::Write | Verb::Read | Verb::CompareSwap => "",
            _ if self.fetches => "fetch-",
            _ => "",
        };
        let number = match self.number {
            Number::U16 => "u16",
            Number::U32 => "u32",
            Number::U64 => "u64",
            Number::F32 => "float",
            Number::F64 => "double",
        };
        write!(f, "{fetch}{verb} {number}")
    }
}

/// An atomic operation on a word of a peer, ready to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricAtomic {
    /// What is done.
    pub row: Row,
    /// The operand, in the low bytes.
    pub operand: u64,
    /// What a compare and swap compares with, in the low bytes.
    pub compare: u64,
    /// The word at the peer: a virtual address or an offset, as the peer's handle says.
    pub remote: u64,
    /// The peer's key for that memory on the rail addressed.
    pub key: u64,
}

impl FabricAtomic {
    /// The same operation in NVSHMEM's terms.
    pub fn atomic(&self) -> Atomic {
        let op = match (self.row.verb, self.row.fetches) {
            (Verb::Add, false) => AtomicOp::Add,
            (Verb::Add, true) => AtomicOp::FetchAdd,
            (Verb::And, false) => AtomicOp::And,
            (Verb::And, true) => AtomicOp::FetchAnd,
            (Verb::Or, false) => AtomicOp::Or,
            (Verb::Or, true) => AtomicOp::FetchOr,
            (Verb::Xor, false) => AtomicOp::Xor,
            (Verb::Xor, true) => AtomicOp::FetchXor,
            (Verb::Write, false) => AtomicOp::Set,
            (Verb::Write, true) => AtomicOp::Swap,
            (Verb::Read, _) => AtomicOp::Fetch,
            (Verb::CompareSwap, _) => AtomicOp::CompareSwap,
        };
        let (width, float) = (self.row.number.width(), self.row.number.is_float());
        Atomic { op, width, float, operand: self.operand, compare: self.compare }
    }
}

/// The operand that the fabric is given: increments are additions there.
pub(crate) fn operand(atomic: &Atomic) -> u64 {
    match atomic.op {
        AtomicOp::Inc | AtomicOp::FetchInc => one(atomic.width, atomic.float),
        _ => atomic.operand,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_row_of_the_table_but_sums_of_halves() {
        let rows: Vec<Row> = Row::all().collect();
        for op in AtomicOp::ALL {
            for width in Width::ALL {
                for float in [false, true] {
                    let atomic = Atomic { op, width, float, operand: 1, compare: 0 };
                    match Row::of(&atomic) {
                        Some(row) => assert!(rows.contains(&row), "{atomic:?}: {row}"),
                        None => {
                            assert!(float && width == Width::Two, "{atomic:?}");
                            assert!([2, 4, 10, 13, 14].contains(&(op as i32)), "{atomic:?}");
                        }
                    }
                }
            }
        }
        assert_eq!(rows.len(), 40);
        let mut names: Vec<String> = rows.iter().map(Row::to_string).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len(), "each row has a name of its own");
        let words = |row: &Row| row.number == Number::U32;
        let names: Vec<String> = rows.iter().filter(|row| words(row)).map(Row::to_string).collect();
        let verbs =
            "add and or xor set fetch-add fetch-and fetch-or fetch-xor swap fetch compare-swap";
        assert_eq!(names, verbs.split(' ').map(|verb| format!("{verb} u32")).collect::<Vec<_>>());
    }

    #[test]
    fn a_row_does_what_the_operation_does() {
        for op in AtomicOp::ALL {
            let words = Width::ALL.into_iter().flat_map(|width| [(width, false), (width, true)]);
            for (width, float) in words.filter(|word| *word != (Width::Two, true)) {
                let operand =
                    operand(&Atomic { op, width, float, operand: 0x3f80_0000, compare: 5 });
                let atomic = Atomic { op, width, float, operand: 0x3f80_0000, compare: 5 };
                let Some(row) = Row::of(&atomic) else { panic!("{atomic:?}") };
                let posted = FabricAtomic { row, operand, compare: 5, remote: 0, key: 0 };
                for old in [0, 5, 0x4000_0000] {
                    assert_eq!(posted.atomic().apply(old), atomic.apply(old), "{atomic:?}");
                }
            }
        }
    }
}
