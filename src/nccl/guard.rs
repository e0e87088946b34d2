//! The wall between Rust and NCCL: no panic passes, and every error is logged.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use log::error;
use nccl_abi::Status;

use super::error::NcclError;
use crate::job::JobError;
use crate::logging;
use engine::rate_limit::RateLimit;
use ofi::fork;

/// Runs the body of an entry and turns its outcome into a status. After a panic NCCL is told of an
/// internal error, which ends the communicator.
#[inline]
pub(super) fn guard(entry: &'static str, body: impl FnOnce() -> Result<(), NcclError>) -> Status {
    if fork::is_child() {
        return report(entry, &JobError::Child.into());
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(failed)) => report(entry, &failed),
        Err(panic) => report_panic(entry, panic.as_ref()),
    }
}

#[cold]
fn report(entry: &'static str, failed: &NcclError) -> Status {
    // NCCL may go on asking after a failure.
    static LIMIT: RateLimit = RateLimit::most(32, Duration::from_secs(10));
    if let Some(unsaid) = LIMIT.admit() {
        error!(target: logging::TRANSPORT, "{entry}: {failed}{unsaid}");
    }
    failed.status()
}

#[cold]
fn report_panic(entry: &'static str, panic: &(dyn Any + Send)) -> Status {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    error!(target: logging::TRANSPORT, "{entry}: internal error, please report it: {text}");
    Status::INTERNAL
}
