//! The wall between Rust and the host: no panic passes, and every error is logged once.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use log::error;
use nvshmem_abi::c;

use crate::abi::error::AbiError;
use crate::job::JobError;
use crate::logging;
use engine::rate_limit::RateLimit;
use ofi::fork;

/// Runs the body of an entry and turns its outcome into a status.
///
/// A body that panics may leave the transport's state half changed; the host is told that the
/// transport failed, which it treats as the end of the job, so nobody builds on that state.
#[inline]
pub(crate) fn guard(entry: &'static str, body: impl FnOnce() -> Result<(), AbiError>) -> c_int {
    if fork::is_child() {
        return report(entry, &JobError::Child.into());
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => c::NVT_STATUS_SUCCESS,
        Ok(Err(failed)) => report(entry, &failed),
        Err(panic) => report_panic(entry, panic.as_ref()),
    }
}

#[cold]
fn report(entry: &'static str, failed: &AbiError) -> c_int {
    // A peer that has gone fails every operation from then on.
    static LIMIT: RateLimit = RateLimit::most(32, Duration::from_secs(10));
    if let Some(unsaid) = LIMIT.admit() {
        error!(target: logging::TRANSPORT, "{entry}: {failed}{unsaid}");
    }
    failed.status()
}

#[cold]
fn report_panic(entry: &'static str, panic: &(dyn Any + Send)) -> c_int {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    error!(target: logging::TRANSPORT, "{entry}: internal error, please report it: {text}");
    c::NVT_STATUS_INTERNAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_become_statuses_and_panics_do_not_pass() {
        assert_eq!(guard("test", || Ok(())), 0);
        assert_eq!(guard("test", || Err(AbiError::Null { argument: "x" })), 1);
        assert_eq!(guard("test", || Err(JobError::NotConnected.into())), 7);
        assert_eq!(guard("test", || panic!("on purpose")), 7);
    }
}
