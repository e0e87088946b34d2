//! Output that nobody reads to its end, or that cannot be written: no panic, and a status that
//! tells.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};

use crate::bed::{expect, plugins, tool, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("output::a_reader_that_has_gone_is_no_panic", gone),
        trial("output::a_full_disk_is_told", full),
    ]
}

/// Commands that print much and little.
fn commands() -> Vec<Command> {
    let arguments: [&[&str]; 4] =
        [&["info"], &["info", "--json"], &["doctor"], &["run", "--dry-run", "--any-nvshmem"]];
    let command = |arguments: &&[&str]| {
        let mut command = tool(arguments);
        command.arg("--plugin-dir").arg(plugins());
        command.args((arguments[0] == "run").then_some("true"));
        command
    };
    arguments.iter().map(command).collect()
}

fn gone() -> Result<(), Failed> {
    for mut command in commands() {
        for errors_too in [false, true] {
            let (ours, theirs) = UnixStream::pair()?;
            drop(ours);
            let theirs = OwnedFd::from(theirs);
            command.stdout(Stdio::from(theirs.try_clone()?));
            command.stderr(if errors_too { Stdio::from(theirs) } else { Stdio::piped() });
            let output = command.spawn()?.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            expect(output.status.code() == Some(2) && said.is_empty(), || {
                format!("{command:?}: {}: {said}", output.status)
            })?;
        }
    }
    Ok(())
}

fn full() -> Result<(), Failed> {
    for mut command in commands() {
        command.stdout(File::create("/dev/full")?).stderr(Stdio::piped());
        let output = command.spawn()?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = said.starts_with("standard output cannot be written: No space left on device");
        expect(output.status.code() == Some(2) && told, || {
            format!("{command:?}: {}: {said}", output.status)
        })?;
    }
    Ok(())
}
