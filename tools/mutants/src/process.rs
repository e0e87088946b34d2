//! One run of tests in a process.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use launcher::{End, Limits};

use crate::error::{Result, at};

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// After so long.
    Passed(Duration),
    Failed,
    /// It was stopped.
    TooLong,
}

pub(crate) struct Run<'a> {
    pub(crate) program: &'a Path,
    pub(crate) tests: &'a [&'a str],
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Run<'_> {
    /// Runs them one after the other up to the first that fails. What they say is in the file
    /// `said`.
    pub(crate) fn run(&self, said: &Path, limit: Duration) -> Result<Ended> {
        let file = File::create(said).map_err(at(said))?;
        let errors = file.try_clone().map_err(at(said))?;
        let mut command = Command::new(self.program);
        command
            // The harness keeps --fail-fast to unstable compilers, and takes this for one.
            .args(["-Zunstable-options", "--fail-fast", "--exact", "--test-threads=1"])
            .args(self.tests)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUST_BACKTRACE", "0")
            // Or else a test would take other cases each time.
            .env("NVSHMEM_TEST_EVERY_CASE", "1")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        let limits = Limits { deadline: limit, grace: limit };
        let ended = launcher::run([command], limits, || Ok(())).map_err(at(self.program))?;
        Ok(match ended[0].end {
            End::Killed => Ended::TooLong,
            end if end.is_success() => Ended::Passed(ended[0].after),
            End::Exited(_) | End::Signalled(_) => Ended::Failed,
        })
    }
}

/// The last test that began, by what a run said: if that has failed, it is this one that did.
pub(crate) fn last_begun(said: &str) -> &str {
    let lines = said.lines().filter_map(|line| line.strip_prefix("test "));
    let mut tests = lines.filter(|line| line.contains(" ... "));
    tests.next_back().and_then(|line| line.split(" ... ").next()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_that_failed_is_the_last_that_began() {
        let said = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\ntest result: FAILED. 1 passed\n";
        assert_eq!(last_begun(said), "c");
        assert_eq!(last_begun("test a::b ... ok\ntest d ... "), "d");
        assert_eq!(last_begun(""), "");
    }
}
