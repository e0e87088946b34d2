//! `report`: one text file to attach to a question or a bug, so that others see what this machine is like.
//!
//! It has what `doctor`, `info` and `selftest` say, the log of one job, and variables of NVSHMEM and its libraries. Names of
//! the user and of the host, and addresses other than loopback's, are replaced; `Redactor` has the list.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::doctor::Diagnosis;
use crate::error::ToolError;
use crate::info::{Info, json};
use crate::options::ReportOptions;
use crate::selftest;

/// What variables that are told begin with.
const VARIABLES: [&str; 6] = ["NVSHMEM_", "FI_", "CUDA_", "MLX5_", "LD_LIBRARY_PATH", "LD_PRELOAD"];
/// What no variable that is told has in its name.
const SECRETS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL"];

/// Lines from the end of a log that is added.
const MOST_LINES: usize = 5_000;

/// Writes the report.
///
/// # Errors
/// The file is there already, or cannot be written; a log cannot be read.
pub(crate) fn run(options: &ReportOptions) -> Result<bool, ToolError> {
    let path = options.out.clone().unwrap_or_else(|| PathBuf::from("nvshmem-libfabric-report.txt"));
    // Made first: it is a pity when all has been run and then cannot be written.
    let mut file = File::create_new(&path).map_err(|error| {
        ToolError::file(
            &path,
            "cannot be made",
            error,
            "name another file with --out; none is overwritten",
        )
    })?;
    let written = gather(options).and_then(|text| {
        let text = Redactor::of_process().redact(&text);
        file.write_all(text.as_bytes()).map_err(|error| {
            ToolError::file(&path, "cannot be written", error, "look at the file system")
        })
    });
    if let Err(error) = written {
        // Half a report is none.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    println!("{}: read it before you send it", path.display());
    Ok(true)
}

fn gather(options: &ReportOptions) -> Result<String, ToolError> {
    let mut text = String::new();
    section(&mut text, "machine", &machine());
    let info = Info::gather(&options.r#where, &[])?;
    section(&mut text, "doctor", &Diagnosis::of(&info).text());
    section(&mut text, "info", &json(&info)?);
    section(&mut text, "environment", &environment());
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

fn section(text: &mut String, name: &str, of: &str) {
    let written = writeln!(text, "==== {name}\n{}\n", of.trim_end());
    written.expect("a string takes all text");
}

/// What the self-test says, and a log. That it cannot be run is part of the report.
fn self_test(options: &ReportOptions) -> (String, String) {
    let options = selftest::defaults(options.r#where.plugin_dir.clone());
    match selftest::runs(&options, &mut |_| {}) {
        Ok(runs) => {
            let lines: Vec<String> = runs.iter().map(selftest::line).collect();
            let log = runs.first().map(|run| run.log.clone()).unwrap_or_default();
            (lines.join("\n"), log)
        }
        Err(error) => (format!("could not be run: {error}"), String::new()),
    }
}

fn machine() -> String {
    let first = |path: &str, prefix: &str| -> String {
        let text = fs::read_to_string(path).unwrap_or_default();
        String::from(text.lines().find(|line| line.starts_with(prefix)).unwrap_or_default())
    };
    [
        first("/proc/sys/kernel/osrelease", ""),
        first("/etc/os-release", "PRETTY_NAME"),
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
    ]
    .join("\n")
}

/// The variables that decide how NVSHMEM and its libraries behave.
fn environment() -> String {
    let told = |name: &str| {
        VARIABLES.iter().any(|prefix| name.starts_with(prefix))
            && !SECRETS.iter().any(|word| name.to_ascii_uppercase().contains(word))
    };
    let all = env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    let all: BTreeMap<String, String> = all.filter(|(name, _)| told(name)).collect();
    all.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// Takes out of a text who and where.
#[derive(Debug, Default)]
struct Redactor {
    /// What is replaced as it is, and by what; the longer first.
    words: Vec<(String, &'static str)>,
}

impl Redactor {
    fn of_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let variable = |name: &str| env::var(name).unwrap_or_default();
        let mut words = vec![
            (variable("HOME"), "~"),
            (read("/proc/sys/kernel/hostname"), "HOST"),
            (variable("USER"), "USER"),
            (variable("LOGNAME"), "USER"),
        ];
        // Shorter ones would be replaced everywhere; a home of `/` says nothing, and `root` is nobody's name.
        words.retain(|(word, _)| word.len() > 2 && word != "root" && word != "localhost");
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        Self { words }
    }

    fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, by) in &self.words {
            text = replace_word(&text, word, by);
        }
        addresses(&text)
    }
}

/// Replaces a word where it is not part of a longer one.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(word) {
        let (before, behind) = (&rest[..at], &rest[at + word.len()..]);
        let last = before.chars().next_back().or_else(|| out.chars().next_back());
        let longer_before = part(last) && word.starts_with(char::is_alphanumeric);
        let longer = longer_before || part(behind.chars().next());
        out.push_str(before);
        out.push_str(if longer { word } else { by });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Numbers addresses other than loopback's: the same gets the same number.
fn addresses(text: &str) -> String {
    let mut known: Vec<IpAddr> = Vec::new();
    let mut out = String::new();
    let of_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !of_address(c)).unwrap_or(rest.len());
        if end == 0 {
            let next = rest.find(of_address).unwrap_or(rest.len());
            out.push_str(&rest[..next]);
            rest = &rest[next..];
            continue;
        }
        let (word, behind) = rest.split_at(end);
        // What ends a sentence, or stands before a port, is not part of it.
        let bare = word.trim_end_matches(['.', ':']);
        let (bare, port) = match bare.split_once(':') {
            Some((v4, port)) if v4.contains('.') => (v4, &bare[bare.len() - port.len() - 1..]),
            _ => (bare, ""),
        };
        match bare.parse::<IpAddr>() {
            Ok(address) if !address.is_loopback() && !address.is_unspecified() => {
                let at = known.iter().position(|one| *one == address).unwrap_or_else(|| {
                    known.push(address);
                    known.len() - 1
                });
                out.push_str(&format!(
                    "ADDRESS{}{port}{}",
                    at + 1,
                    &word[bare.len() + port.len()..]
                ));
            }
            _ => out.push_str(word),
        }
        rest = behind;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_and_where_are_replaced_and_nothing_else() {
        let words = vec![
            (String::from("/home/ada"), "~"),
            (String::from("node7"), "HOST"),
            (String::from("ada"), "USER"),
        ];
        let redactor = Redactor { words };
        let text = "/home/ada/lib of ada@node7, adam, node77; /home/adam\n";
        assert_eq!(redactor.redact(text), "~/lib of USER@HOST, adam, node77; /home/adam\n");
    }

    #[test]
    fn addresses_are_numbered() {
        let text = "192.0.2.7:4711 and 198.51.100.1. 192.0.2.7, [fd00::2] 127.0.0.1 ::1 0.0.0.0 1.17 3.8.0 0000:3b:00.0";
        assert_eq!(
            addresses(text),
            "ADDRESS1:4711 and ADDRESS2. ADDRESS1, [ADDRESS3] 127.0.0.1 ::1 0.0.0.0 1.17 3.8.0 0000:3b:00.0"
        );
    }
}
