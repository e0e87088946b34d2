//! `report`: one text file to attach to a question or a bug, so that others see what this machine
//! is like.
//!
//! It has what `doctor`, `info` and `selftest` say, the log of one job, and variables of NVSHMEM
//! and its libraries, with values where [`told`] lists them. What [`redact`] lists is replaced.

pub(crate) mod machine;
pub(crate) mod redact;
mod told;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::output::print_whole;

use self::redact::Redactor;
use crate::doctor::Diagnosis;
use crate::error::ToolError;
use crate::info::{Info, json};
use crate::options::ReportOptions;
use crate::selftest;

/// Lines from the end of a log that is added.
const MOST_LINES: usize = 5_000;

/// What is written to standard output in place of a file.
const OUTPUT: &str = "-";

/// Writes the report.
///
/// # Errors
/// The file is there already, or cannot be written; a log cannot be read.
pub(crate) fn run(options: &ReportOptions) -> Result<bool, ToolError> {
    let path = options.out.clone().unwrap_or_else(|| PathBuf::from("nvshmem-libfabric-report.txt"));
    if path.as_os_str() == OUTPUT {
        print_whole(format_args!("{}", Redactor::of_process().redact(&gather(options)?)));
        return Ok(true);
    }
    // Made first: it is a pity when all has been run and then cannot be written.
    let mut file = private_file(&path)?;
    let written = gather(options).and_then(|text| {
        let text = Redactor::of_process().redact(&text);
        file.write_all(text.as_bytes()).map_err(|error| unwritten(&path, error))
    });
    if let Err(error) = written {
        // Half a report is none.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    println!("{}: read it before you send it", path.display());
    Ok(true)
}

/// A new file that only its owner can read.
///
/// # Errors
/// It is there already, or cannot be made.
pub(crate) fn private_file(path: &Path) -> Result<File, ToolError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|error| {
        let hint = "name another file with --out; none is overwritten";
        ToolError::file(path, "cannot be made", error, hint)
    })
}

/// That a file cannot be written.
pub(crate) fn unwritten(path: &Path, error: io::Error) -> ToolError {
    ToolError::file(path, "cannot be written", error, "look at the file system")
}

/// What there is: the machine, what `doctor` and `info` say of it, and the environment.
///
/// # Errors
/// None that is known.
pub(crate) fn what_is_there(info: &Info) -> Result<String, ToolError> {
    let mut text = String::new();
    section(&mut text, "machine", &machine::describe());
    section(&mut text, "doctor", &Diagnosis::of(info).text(true));
    section(&mut text, "info", &json(info)?);
    section(&mut text, "environment", &environment());
    Ok(text)
}

fn gather(options: &ReportOptions) -> Result<String, ToolError> {
    let mut text = what_is_there(&Info::gather(&options.r#where, &[])?)?;
    if !options.no_selftest {
        let (runs, log) = self_test(options);
        section(&mut text, "selftest", &runs);
        section(&mut text, "log of PE 0 in the first of these, with its counters", &log);
    }
    for log in &options.log {
        let read = fs::read(log).map_err(|error| {
            ToolError::file(
                log,
                "cannot be read",
                error,
                "name a log of the transport, or of NVSHMEM",
            )
        })?;
        let read = String::from_utf8_lossy(&read);
        let lines: Vec<&str> = read.lines().collect();
        let last = lines[lines.len().saturating_sub(MOST_LINES)..].join("\n");
        section(&mut text, &format!("log {}", log.display()), &last);
    }
    Ok(text)
}

/// Adds a part under a head.
pub(crate) fn section(text: &mut String, name: &str, of: &str) {
    let written = writeln!(text, "==== {name}\n{}\n", of.trim_end());
    written.expect("a string takes all text");
}

/// What the self-test says, and a log. That it cannot be run is part of the report.
fn self_test(options: &ReportOptions) -> (String, String) {
    let options = selftest::defaults(options.r#where.plugin_dir.clone());
    match selftest::runs(&options, &mut |_| {}) {
        Ok(runs) => {
            let lines: Vec<String> = runs.iter().map(|run| selftest::line(run, true)).collect();
            let log = runs.first().map(|run| run.log.clone()).unwrap_or_default();
            (lines.join("\n"), log)
        }
        Err(error) => (format!("could not be run: {error}"), String::new()),
    }
}

/// The variables that decide how NVSHMEM and its libraries behave.
fn environment() -> String {
    let all = env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    let all: BTreeMap<String, String> = all.filter(|(name, _)| told::belongs(name)).collect();
    let line = |(name, value): (&String, &String)| match told::is_told(name) {
        true => format!("{name}={value}\n"),
        false => format!("{name} is set; its value is not told\n"),
    };
    all.iter().map(line).collect()
}
