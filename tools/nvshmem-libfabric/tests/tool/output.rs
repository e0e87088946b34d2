//! Output that nobody reads to its end, or that cannot be written: no panic, and a status that
//! tells. And a terminal's: lines that fit it, and colours where they are wanted.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};

use crate::bed::{Scratch, expect, good, plugins, tool, trial};
use crate::terminal::OnTerminal;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("output::a_reader_that_has_gone_is_no_panic", gone),
        trial("output::a_full_disk_is_told", full),
        trial("output::lines_fit_a_terminal", lines),
        trial("output::what_is_for_programs_is_the_same_on_a_terminal", whole),
        trial("output::colours_are_for_terminals_that_want_them", colours),
        trial("output::old_names_tell_what_to_use", old_names),
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

/// What a command prints on a terminal of so many columns.
fn on_terminal(columns: u16, line: &[&str], variables: &[(&str, &str)]) -> Result<String, Failed> {
    let mut command = tool(line);
    // What continuous integration sets changes colours as well.
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(variable);
    }
    command.env("TERM", "xterm").envs(variables.iter().copied());
    let (shown, status) = OnTerminal::start(command, columns)?.finish()?;
    // Some of these find something wrong, and say so by 1 or 2.
    expect(status.code().is_some_and(|code| code <= 2) && !shown.is_empty(), || {
        format!("{line:?}: {status}: {shown}")
    })?;
    Ok(shown)
}

/// No line is wider than the terminal, unless it is one word.
fn lines() -> Result<(), Failed> {
    let plugins = plugins().display().to_string();
    for line in [
        &["doctor", "-v", "--plugin-dir", &plugins][..],
        &["info", "-v", "--plugin-dir", &plugins],
        &["run", "--dry-run", "./no-such-program", "--plugin-dir", &plugins],
        &["perf", "--help"],
        &["selftest", "--plugin-dir", "/a/directory/with/nothing"],
    ] {
        let text = on_terminal(80, line, &[("NO_COLOR", "1")])?;
        expect(text.lines().count() > 1, || format!("{line:?}: {text}"))?;
        for wide in text.lines().filter(|line| line.chars().count() > 80) {
            let words = wide.trim_start_matches("# ").split_whitespace().count();
            let is_script = wide.starts_with("export ") || wide.starts_with("exec ");
            expect(words == 1 || is_script, || format!("{line:?}: {wide}"))?;
        }
    }
    Ok(())
}

fn whole() -> Result<(), Failed> {
    let files = plugins().display().to_string();
    let info = ["info", "--json", "--only", "plugins,settings", "--plugin-dir", &files];
    let text = on_terminal(40, &info, &[])?;
    let info: serde_json::Value = serde_json::from_str(&text)?;
    expect(info["plugins"]["files"].is_array(), || text.clone())?;
    // A script stays one.
    let mut line = vec!["run", "--any-nvshmem", "--dry-run", "--plugin-dir", &files];
    line.extend(["echo", "a word or two", "and many words more, so that the line is longer"]);
    let piped = good(&mut tool(&line))?;
    let shown = on_terminal(40, &line, &[])?;
    let script = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(String::from).collect::<Vec<_>>()
    };
    expect(script(&piped) == script(&shown) && script(&piped).len() == 3, || shown.clone())
}

fn colours() -> Result<(), Failed> {
    let files = plugins().display().to_string();
    let doctor = ["doctor", "--plugin-dir", &files];
    let escape = |text: &str| text.contains('\x1b');
    let shown = on_terminal(80, &doctor, &[])?;
    expect(shown.contains("\x1b[32mok\x1b[0m "), || shown.clone())?;
    let shown = on_terminal(80, &doctor, &[("CI", "true")])?;
    expect(escape(&shown), || shown.clone())?;
    for variables in [
        &[("NO_COLOR", "1")][..],
        &[("TERM", "dumb")],
        &[("NO_COLOR", "1"), ("CI", "true")],
        &[("TERM", "dumb"), ("CI", "true")],
    ] {
        let shown = on_terminal(80, &doctor, variables)?;
        expect(!escape(&shown) && shown.contains("\nok "), || format!("{variables:?}: {shown}"))?;
    }
    let output = tool(&doctor).output()?;
    expect(!escape(&String::from_utf8_lossy(&output.stdout)), || format!("{output:?}"))
}

fn old_names() -> Result<(), Failed> {
    for (line, instead) in [
        (&["top", "--once"][..], "NVSHMEM_LIBFABRIC_COUNTERS="),
        (&["trace", "show", "pe-0.trace"], "NVSHMEM_DEBUG=TRACE"),
        (&["report", "--out", "-"], "`qualify`"),
        (&["install", "--nvshmem", "/opt/nvshmem"], "nvshmem-libfabric run -- PROGRAM"),
        (&["uninstall", "--nvshmem=/opt/nvshmem"], "nvshmem-libfabric run -- PROGRAM"),
        (&["run", "--record", "pe-%p.trace", "--", "true"], "NVSHMEM_DEBUG=TRACE"),
    ] {
        let output = tool(line).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = said.lines().count() == 1 && said.contains("gone") && said.contains(instead);
        let status = if line[0] == "run" { 125 } else { 2 };
        expect(told && output.status.code() == Some(status), || format!("{line:?}: {output:?}"))?;
    }
    Ok(())
}
