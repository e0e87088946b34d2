//! One run of tests in a process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, at};

/// Has tests take all of their cases.
pub(crate) const EVERY_CASE: &str = "NVSHMEM_TEST_EVERY_CASE";

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// After so long.
    Passed(Duration),
    Failed,
    /// It was stopped.
    TooLong,
}

/// How tests are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// As they are.
    Open,
    /// With processes and shared memory of their own, which end with them.
    Own,
}

impl Room {
    /// What its command line begins with.
    fn prefix(self) -> &'static [&'static str] {
        // The shell stays: who is the first process has to wait for those that have lost theirs.
        const INSIDE: &str =
            "mount -t tmpfs -o size=2g tmpfs /dev/shm || exit 126; \"$@\"; exit $?";
        match self {
            Self::Open => &[],
            Self::Own => &[
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                INSIDE,
                "sh",
            ],
        }
    }

    /// Fails where the machine does not give such a room.
    pub(crate) fn check(self) -> Result<()> {
        if self == Self::Open {
            return Ok(());
        }
        let (first, others) = (self.prefix()[0], &self.prefix()[1..]);
        let tried = Command::new(first).args(others).arg("true").output();
        let tried = tried.map_err(at(Path::new(first)))?;
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        if tried.status.success() { Ok(()) } else { Err(Error::Room(said)) }
    }
}

pub(crate) struct Run<'a> {
    pub(crate) program: &'a Path,
    pub(crate) tests: &'a [&'a str],
    /// The program takes one test only.
    pub(crate) takes_one: bool,
    pub(crate) room: Room,
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Run<'_> {
    /// Runs them one after the other up to the first that fails. What they say is in the file
    /// `said`. No process of theirs is left when they are stopped.
    pub(crate) fn run(&self, said: &Path, limit: Duration) -> Result<Ended> {
        let file = File::create(said).map_err(at(said))?;
        let errors = file.try_clone().map_err(at(said))?;
        // The harness keeps --fail-fast to unstable compilers, and takes this for one.
        let many: &[_] = if self.takes_one { &[] } else { &["-Zunstable-options", "--fail-fast"] };
        let program = self.program.as_os_str();
        let mut line = self.room.prefix().iter().map(OsStr::new).chain([program]);
        let mut child = Command::new(line.next().unwrap_or(program))
            .args(line)
            .args(many)
            .args(["--exact", "--test-threads=1"])
            .args(self.tests)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUST_BACKTRACE", "0")
            // Or else a test would take other cases each time.
            .env(EVERY_CASE, "1")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(at(self.program))?;
        let start = Instant::now();
        // Short tests take a millisecond, and there are many of them.
        let mut pause = Duration::from_micros(500);
        loop {
            if let Some(status) = child.try_wait().map_err(at(self.program))? {
                let passed = Ended::Passed(start.elapsed());
                return Ok(if status.success() { passed } else { Ended::Failed });
            }
            if start.elapsed() > limit {
                let group = format!("-{}", child.id());
                let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
                killed.map_err(at(Path::new("kill")))?;
                child.wait().map_err(at(self.program))?;
                return Ok(Ended::TooLong);
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
        }
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
