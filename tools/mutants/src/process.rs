//! One run of tests in a process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launcher::{Process, dies_with_launcher};

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
    Own {
        /// Root gives that, and so does the kernel to others, who are root in there.
        by_root: bool,
    },
}

impl Room {
    /// One of their own, if the machine gives any.
    pub(crate) fn own() -> Result<Self> {
        let rooms = [true, false].map(|by_root| Self::Own { by_root });
        let mut refusals = String::new();
        for room in rooms {
            let mut command = room.command(OsStr::new("true"));
            let tried = command.output().map_err(at(Path::new(command.get_program())))?;
            if tried.status.success() {
                return Ok(room);
            }
            refusals += &String::from_utf8_lossy(&tried.stderr);
        }
        Err(Error::Room(refusals))
    }

    /// The command that runs a program in it.
    fn command(self, program: &OsStr) -> Command {
        // The shell stays: who is the first process has to wait for those that have lost theirs.
        // Files of tests are told apart by processes' numbers, which other rooms have as well.
        const INSIDE: &str = "mount -t tmpfs -o size=2g tmpfs /dev/shm && mkdir /dev/shm/tmp \
            || exit 126; TMPDIR=/dev/shm/tmp \"$@\"; exit $?";
        let Self::Own { by_root } = self else { return Command::new(program) };
        let mut command = Command::new("unshare");
        if !by_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", INSIDE, "sh"]).arg(program);
        command
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
        let mut command = self.room.command(self.program.as_os_str());
        command
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
            .process_group(0);
        dies_with_launcher(&mut command);
        let start = Instant::now();
        let mut process = Process::start(&mut command).map_err(at(self.program))?;
        // Short tests take a millisecond, and there are many of them.
        let mut pause = Duration::from_micros(500);
        loop {
            if let Some((status, when)) = process.exit() {
                let passed = Ended::Passed(when - start);
                return Ok(if status.success() { passed } else { Ended::Failed });
            }
            if start.elapsed() > limit {
                // Those that it has started as well. Dropping it waits for its own end.
                let group = format!("-{}", process.id());
                let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
                killed.map_err(at(Path::new("kill")))?;
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
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_test_that_failed_is_the_last_that_began() {
        let said = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... FAILED\n\ntest result: FAILED. 1 passed\n";
        assert_eq!(last_begun(said), "c");
        assert_eq!(last_begun("test a::b ... ok\ntest d ... "), "d");
        assert_eq!(last_begun(""), "");
    }

    #[test]
    fn what_a_test_has_started_is_stopped_with_it() {
        let folder = launcher::PrivateDir::new("nvshmem-mutants-run").unwrap();
        let [script, said, child] =
            ["script", "said", "child"].map(|name| folder.path().join(name));
        let text = "#!/bin/sh\nsleep 1000 &\necho $! >child.new && mv child.new child\nwait\n";
        let text = text.replace("child", &child.display().to_string());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
        let room = Room::Open;
        let run = Run { program: &script, tests: &[], takes_one: true, room, env: vec![] };
        // As much as it takes to get so far.
        let limits = [1, 10, 100].map(Duration::from_secs);
        let stopped = limits.iter().find(|limit| {
            assert_eq!(run.run(&said, **limit).unwrap(), Ended::TooLong);
            child.exists()
        });
        assert!(stopped.is_some(), "it has not started");
        let pid = std::fs::read_to_string(&child).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Whoever has to wait for it may not have done so.
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let until = Instant::now() + Duration::from_secs(60);
        while lives() && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(!lives(), "process {pid} lives");
    }
}
