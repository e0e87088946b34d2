//! Atomics of libfabric: how the engine's table is called there, and whether a rail has all of it.

use std::sync::Arc;

use libfabric_sys::{
    FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_BAND, FI_BOR, FI_BXOR, FI_CSWAP, FI_DOUBLE, FI_FLOAT,
    FI_SUM, FI_UINT16, FI_UINT32, FI_UINT64, fi_datatype, fi_op,
};

use crate::engine::port::fabric_atomic::{Number, Row, Verb};
use crate::ofi::data_path::rail::Rail;
use crate::ofi::provider::Candidate;
use crate::settings::{AtomicsChoice, Settings};

/// The family of calls that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ofi) enum Call {
    /// `fi_atomic`.
    Plain,
    /// `fi_fetch_atomic`.
    Fetch,
    /// `fi_compare_atomic`, which fetches too.
    Compare,
}

/// The call, the type and the operation of a row.
pub(in crate::ofi) fn call_of(row: Row) -> (Call, fi_datatype, fi_op) {
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
pub(in crate::ofi) fn name_of(row: Row) -> &'static str {
    match call_of(row).0 {
        Call::Plain => "fi_atomic",
        Call::Fetch => "fi_fetch_atomic",
        Call::Compare => "fi_compare_atomic",
    }
}

/// Whether an operation that returns nothing is posted as one that does, the result being dropped.
///
/// shm up to libfabric 2.4 gives the buffer of a non-fetching atomic back twice when it was posted with
/// `FI_DELIVERY_COMPLETE`, at the target and at the initiator, and crashes when two operations have got
/// the same one. A fetching atomic is complete when it is delivered anyway.
pub(in crate::ofi) fn always_fetches(provider: &str) -> bool {
    provider == "shm"
}

/// What the rails of a lane have of atomics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AtomicSupport {
    /// The NIC carries them out, rather than the target's processor.
    pub hardware: bool,
    /// What is missing for carrying out the whole table on every rail; none if nothing is.
    pub lacks: Option<String>,
}

impl AtomicSupport {
    /// Whether `FI_ATOMIC` is asked for. It excludes native tcp, and takes the promise that messages
    /// stay behind writes from tcp;ofi_rxm, so not unless the answer may be used.
    pub(in crate::ofi) fn wanted(settings: &Settings, candidate: Candidate) -> bool {
        match settings.atomics {
            AtomicsChoice::Auto => candidate.hardware_atomics,
            AtomicsChoice::Native => true,
            AtomicsChoice::Target => false,
        }
    }

    /// What these rails have. They have been opened as [`AtomicSupport::wanted`] says.
    pub(in crate::ofi) fn of(
        rails: &[Arc<Rail>],
        settings: &Settings,
        candidate: Candidate,
    ) -> Self {
        let hardware = candidate.hardware_atomics;
        let lacks = if Self::wanted(settings, candidate) {
            rails.iter().find_map(|rail| {
                let missing = missing(rail, candidate)?;
                Some(format!("rail {}: {missing}", rail.name()))
            })
        } else {
            Some(match settings.atomics {
                AtomicsChoice::Target => String::from("they are not asked for"),
                _ => format!(
                    "provider {} has none in hardware; where it has them, the target's processor \
                     does them as well",
                    candidate.name
                ),
            })
        };
        Self { hardware, lacks }
    }
}

/// What a rail lacks, if anything.
fn missing(rail: &Rail, candidate: Candidate) -> Option<String> {
    if !rail.has_atomics() {
        return Some(format!("provider {} does not offer FI_ATOMIC", candidate.name));
    }
    missing_rows(|row| rail.endpoint().has_atomic(row))
}

/// The rows that are not there, in words.
fn missing_rows(has: impl Fn(Row) -> bool) -> Option<String> {
    let missing: Vec<String> =
        Row::all().filter(|row| !has(*row)).map(|row| row.to_string()).collect();
    (!missing.is_empty()).then(|| format!("it lacks {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofi::provider::candidates;
    use crate::settings::Provider;

    #[test]
    fn what_an_infiniband_nic_has_of_its_own_is_refused_with_what_is_missing() {
        // Fetching adds and compare and swaps of 8 bytes, and no others.
        let has = |row: Row| {
            row.number == Number::U64
                && row.fetches
                && matches!(row.verb, Verb::Add | Verb::CompareSwap)
        };
        let missing = missing_rows(has).expect("most are missing");
        for row in ["add u64", "fetch-add u32", "fetch-add double", "swap u64", "set u16"] {
            assert!(missing.contains(row), "{row}: {missing}");
        }
        assert!(!missing.contains("fetch-add u64") && !missing.contains("compare-swap u64"));
        assert_eq!(missing_rows(|_| true), None);
    }

    #[test]
    fn atomics_are_asked_for_where_the_answer_may_be_used() {
        let settings = |atomics| Settings { atomics, ..Settings::default() };
        for (provider, auto) in
            [(Provider::Cxi, true), (Provider::Efa, false), (Provider::Shm, false)]
        {
            let candidate = candidates(provider)[0];
            let wanted = |choice| AtomicSupport::wanted(&settings(choice), candidate);
            assert_eq!(wanted(AtomicsChoice::Auto), auto, "{provider:?}");
            assert!(wanted(AtomicsChoice::Native));
            assert!(!wanted(AtomicsChoice::Target));
        }
    }
}
