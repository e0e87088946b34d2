//! Skips: what a test needs and this machine lacks, reported as `test NAME ... ignored, REASON`.
//!
//! `scripts/test.sh` collects these lines, as it does those of tests that libtest ignores.

use std::path::PathBuf;

use libtest_mimic::{Completion, Failed, Trial};

pub type Need<T> = Result<T, String>;

/// A test; or, without what it needs, a test that is skipped and says why.
pub fn trial<T: Send + 'static>(
    name: impl Into<String>,
    need: Need<T>,
    run: impl FnOnce(T) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match need {
        Ok(found) => run(found).map(|()| Completion::Completed),
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}

pub fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

pub fn named_by(variable: &str) -> Need<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from).ok_or_else(|| format!("{variable} is not set"))
}

/// The libfabric 2.x that `NVSHMEM_TEST_LIBFABRIC2` names, to test against beside the system's.
pub fn libfabric2() -> Need<PathBuf> {
    named_by("NVSHMEM_TEST_LIBFABRIC2")
}
