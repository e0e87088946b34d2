//! Output that nobody reads to its end, or that cannot be written: no panic, and a status that
//! tells. And a terminal's: lines that fit it, and colours where they are wanted.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use nvshmem_recording::{self as recording, Caller, Kind, Record};
use test_support::needs;

use crate::bed::{Scratch, TOOL, expect, good, plugins, tool, trial};
use crate::jobs::top::starts;

pub(crate) fn trials() -> Vec<Trial> {
    let terminal = |name: &str, run: fn() -> Result<(), Failed>| {
        needs::trial(format!("output::{name}"), starts("script", &["--version"]), move |()| run())
    };
    vec![
        trial("output::a_reader_that_has_gone_is_no_panic", gone),
        trial("output::a_full_disk_is_told", full),
        terminal("lines_fit_a_terminal", lines),
        terminal("what_is_for_programs_is_the_same_on_a_terminal", whole),
        terminal("colours_are_for_terminals_that_want_them", colours),
    ]
}

/// Every command, with little to do.
fn commands(scratch: &Scratch) -> Result<Vec<Command>, Failed> {
    let at = |name: &str| scratch.at(name).display().to_string();
    let put =
        Record { time: 5, took: Some(1), bytes: 8, ..Record::new(Kind::Put, Caller::Proxy, 0) };
    fs::write(scratch.at("pe-0.trace"), recording::encode((0, 1), 1, &[], &[put]))?;
    fs::create_dir(scratch.at("pages"))?;
    let (trace, pages, out) = (at("pe-0.trace"), at("pages"), at("qualify.txt"));
    let (new, old) = (at("new"), at("old"));
    let prefix = |command: &str, prefix: &str| {
        let mut command = tool(&[command, "--prefix", prefix]);
        command.args((prefix == new).then_some("--plugin-dir")).args((prefix == new).then(plugins));
        command
    };
    good(tool(&["install", "--prefix", &old, "--plugin-dir"]).arg(plugins()))?;
    let short = ["--milliseconds", "1", "--max", "8", "--provider", "shm"];
    let bench =
        ["bench", "puts", "--only", "shm", "--jobs", "1", "--rounds", "2", "--round-ms", "1"];
    let with_files = [
        &["info"][..],
        &["info", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["selftest", "--provider", "shm"],
        &["selftest", "--provider", "shm", "--json"],
        &["qualify", "--provider", "shm", "--short", "--only", "put", "--out", &out],
        &[&["perf"], &short[..]].concat(),
        &[&["perf", "--json"], &short[..]].concat(),
        &bench,
        &["report", "--no-selftest", "--out", "-"],
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
        &["top", "--json", "--dir", &pages],
        &["trace", "show", &trace],
        &["trace", "check", &trace],
        &["trace", "check", "--json", &trace],
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
        // What figures and recordings are worth is told before they are.
        let remark = |line: &str| line.starts_with("warning: ") || line.contains("not finalized");
        let quiet = said.lines().all(remark);
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
fn on_terminal(columns: u32, line: &str, variables: &[(&str, &str)]) -> Result<String, Failed> {
    let mut script = tool(&[]);
    let line = format!("stty columns {columns} rows 60; exec {TOOL} {line}");
    // With the environment of the tool.
    let removed: Vec<_> = script.get_envs().map(|(name, _)| name.to_owned()).collect();
    script = Command::new("script");
    script.args(["-qefc", &line, "/dev/null"]).stdin(Stdio::null());
    for name in removed {
        script.env_remove(name);
    }
    script.env_remove("NO_COLOR").env("TERM", "xterm").envs(variables.iter().copied());
    Ok(String::from_utf8_lossy(&script.output()?.stdout).replace("\r\n", "\n"))
}

/// No line is wider than the terminal, unless it is one word.
fn lines() -> Result<(), Failed> {
    let files = format!("--plugin-dir {}", plugins().display());
    for line in [
        format!("doctor -v {files}"),
        format!("info -v {files}"),
        format!("run --dry-run ./no-such-program {files}"),
        String::from("perf --help"),
        String::from("selftest --plugin-dir /a/directory/with/nothing"),
    ] {
        let text = on_terminal(80, &line, &[("NO_COLOR", "1")])?;
        expect(text.lines().count() > 1, || format!("{line}: {text}"))?;
        for wide in text.lines().filter(|line| line.chars().count() > 80) {
            let words = wide.trim_start_matches("# ").split_whitespace().count();
            let is_script = wide.starts_with("export ") || wide.starts_with("exec ");
            expect(words == 1 || is_script, || format!("{line}: {wide}"))?;
        }
    }
    Ok(())
}

fn whole() -> Result<(), Failed> {
    let files = format!("--plugin-dir {}", plugins().display());
    let text = on_terminal(40, &format!("info --json --only plugins,settings {files}"), &[])?;
    let info: serde_json::Value = serde_json::from_str(&text)?;
    expect(info["plugins"]["files"].is_array(), || text.clone())?;
    // A script stays one.
    let line = ["run", "--any-nvshmem", "--dry-run", "--plugin-dir"];
    let words = ["echo", "a word or two", "and many words more, so that the line is longer"];
    let piped = good(tool(&line).arg(plugins()).args(words))?;
    let quoted = words.map(|word| format!("'{word}'")).join(" ");
    let shown = on_terminal(40, &format!("run --any-nvshmem --dry-run {files} {quoted}"), &[])?;
    let script = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(String::from).collect::<Vec<_>>()
    };
    expect(script(&piped) == script(&shown) && script(&piped).len() == 3, || shown.clone())
}

fn colours() -> Result<(), Failed> {
    let files = format!("doctor --plugin-dir {}", plugins().display());
    let escape = |text: &str| text.contains('\x1b');
    let shown = on_terminal(80, &files, &[])?;
    expect(shown.contains("\x1b[32mok\x1b[0m "), || shown.clone())?;
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = on_terminal(80, &files, &[variable])?;
        expect(!escape(&shown) && shown.contains("\nok "), || format!("{variable:?}: {shown}"))?;
    }
    let output = tool(&["doctor", "--plugin-dir"]).arg(plugins()).output()?;
    expect(!escape(&String::from_utf8_lossy(&output.stdout)), || format!("{output:?}"))
}
