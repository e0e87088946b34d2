//! The file to send: a verdict for each row, what there is, and the figures.
//!
//! While rows are tried it is `FILE.part`, written anew before each part, so that a machine that
//! crashes leaves one that says how far it came. The next run replaces that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::machine::section;
use crate::error::ToolError;
use crate::info::build;
use nvshmem_bench::Figure;

/// Verdicts: right; right and slower than it could be; wrong, or it did not end; not tried.
pub(super) const OK: &str = "ok";
pub(super) const SLOW: &str = "slow";
pub(super) const FAILED: &str = "FAILED";
pub(super) const NOT_RUN: &str = "not run";

#[derive(Default)]
pub(super) struct Report {
    path: PathBuf,
    head: String,
    there: String,
    /// Verdict and line of each.
    rows: Vec<(&'static str, String)>,
    /// A line each: part, test, bytes, median, 10th and 90th percentile, unit.
    figures: Vec<String>,
}

impl Report {
    pub(super) fn new(path: PathBuf, head: String, there: String) -> Result<Self, ToolError> {
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already", path.display());
            return Err(ToolError::new(message, "name another with --out; none is overwritten"));
        }
        Ok(Self { path, head, there, ..Self::default() })
    }

    /// Prints a row and takes note of it. Its reason is nothing that this program has not composed;
    /// `more` is printed only.
    pub(super) fn add(
        &mut self,
        name: &str,
        verdict: &'static str,
        reason: &str,
        seconds: f64,
        more: &str,
    ) {
        let line = format!("{verdict:<8} {name:<20} {seconds:>5.1} s  {reason}");
        println!("{}", line.trim_end());
        more.lines().for_each(|line| println!("         {line}"));
        self.rows.push((verdict, line));
    }

    pub(super) fn add_figures(&mut self, part: &str, figures: &[Figure]) {
        self.figures.extend(figures.iter().map(
            |Figure { test, bytes, value, p10, p90, unit, .. }| {
                format!("{part} {test} {bytes} {value:.6} {p10:.6} {p90:.6} {unit}")
            },
        ));
    }

    pub(super) fn count(&self, verdict: &str) -> usize {
        self.rows.iter().filter(|(is, _)| *is == verdict).count()
    }

    pub(super) fn summary(&self) -> String {
        let counts = [OK, SLOW, FAILED, NOT_RUN].map(|is| format!("{} {is}", self.count(is)));
        counts.join(", ")
    }

    pub(super) fn write(&self, next: Option<&str>) -> Result<(), ToolError> {
        let mut part = self.path.clone().into_os_string();
        part.push(".part");
        let write = || -> io::Result<()> {
            // Where it cannot be removed, it cannot be made anew.
            let _ = fs::remove_file(&part);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(self.text(next).as_bytes())?;
            if next.is_none() { fs::rename(&part, &self.path) } else { Ok(()) }
        };
        write().map_err(|error| {
            ToolError::file(&self.path, "cannot be written", error, "name another with --out")
        })
    }

    fn text(&self, next: Option<&str>) -> String {
        let next = next.map(|next| format!("NOT FINISHED: it ended while {next} was tried\n"));
        let rows: Vec<String> = self.rows.iter().map(|(_, line)| line.clone()).collect();
        let next = next.unwrap_or_default();
        format!("nvshmem-libfabric {} qualify: {}\n{next}", build(), self.head)
            + &section(&format!("rows: {}", self.summary()), &rows)
            + &self.there
            + &section("figures", &self.figures)
    }
}
