//! Guard of a host's entries: no panic unwinds into the host, and every error is logged.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use log::error;

use super::error::JobError;
use crate::logging;
use engine::rate_limit::RateLimit;
use ofi::{fork, panic_text};

/// An error of an entry, with the host's status for it.
pub(crate) trait EntryError: Display + From<JobError> {
    /// Status that the host's functions return.
    type Status;

    const SUCCESS: Self::Status;

    const INTERNAL: Self::Status;

    fn status(&self) -> Self::Status;
}

/// Runs the body of an entry and turns its outcome into a status.
///
/// A panicking body may leave the host's objects inconsistent. The host gets an internal error,
/// which it treats as the end of the job, so it does not use them any longer.
#[inline]
pub(crate) fn guard<E: EntryError>(
    entry: &'static str,
    body: impl FnOnce() -> Result<(), E>,
) -> E::Status {
    if fork::is_child() {
        return report(entry, &E::from(JobError::Child));
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => E::SUCCESS,
        Ok(Err(failed)) => report(entry, &failed),
        Err(panic) => {
            report_panic(entry, panic.as_ref());
            E::INTERNAL
        }
    }
}

#[cold]
fn report<E: EntryError>(entry: &'static str, failed: &E) -> E::Status {
    // After the loss of a peer every operation fails.
    static LIMIT: RateLimit = RateLimit::new(32, Duration::from_secs(10));
    if let Some(unsaid) = LIMIT.admit() {
        error!(target: logging::TRANSPORT, "{entry}: {failed}{unsaid}");
    }
    failed.status()
}

#[cold]
fn report_panic(entry: &'static str, panic: &(dyn Any + Send)) {
    let text = panic_text(panic);
    error!(target: logging::TRANSPORT, "{entry}: internal error, please report it: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::heard::heard;

    impl EntryError for JobError {
        type Status = i32;
        const SUCCESS: i32 = 0;
        const INTERNAL: i32 = 7;

        fn status(&self) -> i32 {
            1
        }
    }

    #[test]
    fn outcomes_and_panics_become_statuses() {
        type Body = fn() -> Result<(), JobError>;
        let guard = |body: Body| heard(|| guard("test", body));
        assert_eq!(guard(|| Ok(())), (0, String::new()));
        let (status, said) = guard(|| Err(JobError::NotConnected));
        assert_eq!((status, said), (1, format!("ERROR test: {}\n", JobError::NotConnected)));
        let panics: [(Body, &str); 3] = [
            (|| panic!("on purpose"), "on purpose"),
            (|| panic!("number {}", std::process::id()), "number "),
            (|| std::panic::panic_any(7), "no message"),
        ];
        for (body, text) in panics {
            let (status, said) = guard(body);
            let found = said.contains("ERROR test: internal error") && said.contains(text);
            assert!(status == 7 && found, "{said}");
        }
    }
}
