//! The rails' share in atomics: whether they can execute the engine's whole table.

use std::sync::Arc;

use crate::data_path::rail::Rail;
use crate::discovery::query::wants_atomics;
use crate::options::{AtomicsChoice, Options};
use crate::provider::Profile;
use engine::port::fabric_atomic::Row;

/// What the rails of a lane have of atomics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AtomicSupport {
    /// The NIC carries them out, rather than the target's processor.
    pub hardware: bool,
    /// What is missing for executing the whole table on every rail; none if nothing is.
    pub lacks: Option<String>,
}

impl AtomicSupport {
    /// What these rails have. They have been opened as [`wants_atomics`] says.
    pub(crate) fn of(rails: &[Arc<Rail>], options: &Options, profile: &'static Profile) -> Self {
        let hardware = *profile.hardware_atomics;
        let lacks = if wants_atomics(options, profile) {
            rails.iter().find_map(|rail| {
                let missing = missing(rail, profile)?;
                Some(format!("rail {}: {missing}", rail.name()))
            })
        } else {
            Some(match options.atomics {
                AtomicsChoice::Target => String::from("they are not asked for"),
                _ => format!(
                    "provider {} has none in hardware: {}",
                    profile.name, profile.hardware_atomics.why
                ),
            })
        };
        Self { hardware, lacks }
    }
}

/// What a rail lacks, if anything.
fn missing(rail: &Rail, profile: &'static Profile) -> Option<String> {
    if !rail.has_atomics() {
        return Some(format!("provider {} does not offer FI_ATOMIC", profile.name));
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
    use engine::port::fabric_atomic::{Number, Verb};

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
}
