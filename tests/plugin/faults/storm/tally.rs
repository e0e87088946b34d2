//! The tally of what a PE has found wrong.

use nvshmem_sim::{Error, Job, Result};

/// Bytes that are not as they should be, counted instead of ending the PE at the first.
#[derive(Debug, Default)]
pub(super) struct Tally {
    wrong: u64,
    first: Option<String>,
}

impl Tally {
    /// Takes the result of a comparison.
    ///
    /// # Errors
    /// The comparison could not be made.
    pub(super) fn take(
        &mut self,
        what: impl FnOnce() -> String,
        compared: Result<()>,
    ) -> Result<()> {
        match compared {
            Ok(()) => Ok(()),
            Err(Error::Mismatch(mismatch)) => {
                self.add(mismatch.wrong, || format!("{}: {mismatch}", what()));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a word of eight bytes.
    pub(super) fn word(&mut self, what: impl FnOnce() -> String, found: u64, expected: u64) {
        if found != expected {
            self.add(8, || format!("{} is {found}, not {expected}", what()));
        }
    }

    /// Takes so many wrong bytes.
    pub(super) fn add(&mut self, wrong: u64, what: impl FnOnce() -> String) {
        self.wrong += wrong;
        self.first.get_or_insert_with(what);
    }

    /// Hands it to the launcher.
    ///
    /// # Errors
    /// The launcher is gone.
    pub(super) fn report(self, job: &Job) -> Result<()> {
        if let Some(first) = self.first {
            job.report(FIRST, first)?;
        }
        job.report(WRONG, self.wrong)
    }
}

/// Names of what a PE hands over.
/// How many bytes, or bytes of words, were not as they should be.
pub(in crate::faults) const WRONG: &str = "wrong bytes";
/// Which the first of them were.
pub(in crate::faults) const FIRST: &str = "first of them";
