//! Output that nobody reads to its end, or that cannot be written: no panic, and a status that
//! tells.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};

use crate::bed::{Scratch, expect, good, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("output::a_reader_that_has_gone_is_no_panic", gone),
        trial("output::a_full_disk_is_told", full),
    ]
}

fn commands(scratch: &Scratch) -> Result<Vec<Command>, Failed> {
    let at = |name: &str| scratch.at(name).display().to_string();
    let (new, old) = (at("new"), at("old"));
    let prefix = |command: &str, prefix: &str| {
        let mut command = tool(&[command, "--prefix", prefix]);
        command.args((prefix == new).then_some("--plugin-dir")).args((prefix == new).then(plugins));
        command
    };
    good(tool(&["install", "--prefix", &old, "--plugin-dir"]).arg(plugins()))?;
    let short = ["--milliseconds", "1", "--max", "8", "--provider", "shm"];
    let with_files = [
        &["info"][..],
        &["info", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["selftest", "--provider", "shm"],
        &["qualify", "--dry-run"],
        &[&["perf", "--json"], &short[..]].concat(),
    ]
    .map(|arguments| {
        let mut command = tool(arguments);
        command.arg("--plugin-dir").arg(plugins());
        command
    });
    let without = [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["run", "--dry-run", "--any-nvshmem", "true"],
    ]
    .map(tool);
    let places = [prefix("install", &new), prefix("uninstall", &old)];
    Ok(with_files.into_iter().chain(without).chain(places).collect())
}

fn gone() -> Result<(), Failed> {
    let scratch = Scratch::new();
    for (at, mut command) in commands(&scratch)?.into_iter().enumerate() {
        let (ours, theirs) = UnixStream::pair()?;
        drop(ours);
        let theirs = OwnedFd::from(theirs);
        command.stdout(Stdio::from(theirs.try_clone()?));
        // Of every other one the errors have no reader either.
        command.stderr(if at % 2 == 1 { Stdio::from(theirs) } else { Stdio::piped() });
        let output = command.spawn()?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // What figures are worth is told before they are.
        let quiet = said.lines().all(|line| line.starts_with("warning: "));
        expect(output.status.code() == Some(2) && quiet, || {
            format!("{command:?}: {}: {said}", output.status)
        })?;
    }
    Ok(())
}

fn full() -> Result<(), Failed> {
    let scratch = Scratch::new();
    for mut command in commands(&scratch)? {
        command.stdout(File::create("/dev/full")?).stderr(Stdio::piped());
        let output = command.spawn()?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = "standard output cannot be written: No space left on device";
        let last = said.lines().last().unwrap_or_default();
        expect(output.status.code() == Some(2) && last.starts_with(told), || {
            format!("{command:?}: {}: {said}", output.status)
        })?;
    }
    Ok(())
}
