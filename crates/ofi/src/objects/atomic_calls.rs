//! The calls of libfabric for the engine's table of atomics.

use libfabric_sys::{
    FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_BAND, FI_BOR, FI_BXOR, FI_CSWAP, FI_DOUBLE, FI_FLOAT,
    FI_SUM, FI_UINT16, FI_UINT32, FI_UINT64, fi_datatype, fi_op,
};

use engine::port::fabric_atomic::{Number, Row, Verb};

/// The family of calls that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// `fi_atomic`.
    Plain,
    /// `fi_fetch_atomic`.
    Fetch,
    /// `fi_compare_atomic`, which fetches too.
    Compare,
}

/// The call, the type and the operation of a row.
pub(crate) fn call_of(row: Row) -> (Call, fi_datatype, fi_op) {
    let op = match row.verb {
        Verb::Add => FI_SUM,
        Verb::And => FI_BAND,
        Verb::Or => FI_BOR,
        Verb::Xor => FI_BXOR,
        Verb::Write => FI_ATOMIC_WRITE,
        Verb::Read => FI_ATOMIC_READ,
        Verb::CompareSwap => FI_CSWAP,
    };
    let datatype = match row.number {
        Number::U16 => FI_UINT16,
        Number::U32 => FI_UINT32,
        Number::U64 => FI_UINT64,
        Number::F32 => FI_FLOAT,
        Number::F64 => FI_DOUBLE,
    };
    let call = match row.verb {
        Verb::CompareSwap => Call::Compare,
        _ if row.fetches => Call::Fetch,
        _ => Call::Plain,
    };
    (call, datatype, op)
}

/// The call of a row, for errors.
pub(crate) fn name_of(row: Row) -> &'static str {
    match call_of(row).0 {
        Call::Plain => "fi_atomic",
        Call::Fetch => "fi_fetch_atomic",
        Call::Compare => "fi_compare_atomic",
    }
}
