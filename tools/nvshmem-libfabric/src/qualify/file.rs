//! The file to send: the verdict first, then what there is, figures, and what each row has logged.
//!
//! It is there from the beginning and written anew before each row, so whatever ends the run leaves
//! one that says how far it came.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::verdict::Verdict;
use crate::error::ToolError;
use crate::info::VERSION;
use crate::perf::Figure;
use crate::report::redact::Redactor;
use crate::report::{private_file, section, unwritten};

/// A row that is over.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    pub(super) seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) figures: Vec<Figure>,
    /// What its PEs have printed.
    #[serde(skip)]
    pub(super) log: String,
}

impl Done {
    /// A line for people, and more where there is more to be said.
    fn line(&self) -> String {
        let Self { name, verdict, reason, seconds, .. } = self;
        let reason = reason.replace('\n', "\n         ");
        let line = format!("{:<8} {name:<18} {seconds:>5.1} s  {reason}", verdict.name());
        line.trim_end().to_owned()
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Report {
    path: PathBuf,
    file: File,
    redactor: Redactor,
    /// What was asked for, in one line.
    pub(super) head: String,
    /// What there is, under heads.
    pub(super) there: String,
    rows: Vec<Done>,
}

impl Report {
    /// Makes the file. The names are hosts that the user has named.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub(super) fn new<'a>(
        path: &Path,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Self, ToolError> {
        let file = private_file(path)?;
        let mut redactor = Redactor::of_process();
        names.for_each(|name| redactor.learn_named(name));
        let (head, there, rows) = (String::new(), String::new(), Vec::new());
        Ok(Self { path: path.to_owned(), file, redactor, head, there, rows })
    }

    /// Takes the file away again, where there is nothing to tell.
    pub(super) fn discard(self) {
        // It is empty, and only untidy.
        let _ = fs::remove_file(&self.path);
    }

    /// Prints a row and takes note of it.
    pub(super) fn add(&mut self, row: Done) {
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// Writes the file. `running` is the row that is tried next; none when all are over.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&mut self, running: Option<&str>) -> Result<(), ToolError> {
        let text = self.redactor.clone().redact(&self.text(running));
        let mut write = || -> io::Result<()> {
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())?;
            self.file.set_len(text.len() as u64)
        };
        write().map_err(|error| unwritten(&self.path, error))
    }

    /// How many rows have ended so.
    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// The rows in one line.
    pub(super) fn summary(&self) -> String {
        let [ok, slow, failed, skipped] =
            [Verdict::Ok, Verdict::Slow, Verdict::Failed, Verdict::Skipped].map(|v| self.count(v));
        format!("{ok} ok, {slow} slow, {failed} failed, {skipped} skipped")
    }

    fn text(&self, running: Option<&str>) -> String {
        let mut text = format!("nvshmem-libfabric {VERSION} qualify: {}\n\n", self.head);
        let mut verdict = self.summary();
        if let Some(running) = running {
            verdict += &format!("\nNOT FINISHED: it was ended while `{running}` was tried");
        }
        for row in &self.rows {
            verdict += &format!("\n{}", row.line());
        }
        section(&mut text, "verdict", &verdict);
        text.push_str(&self.there);
        let rows: Vec<String> =
            self.rows.iter().map(|row| serde_json::json!(row).to_string()).collect();
        section(&mut text, "rows as lines of JSON", &rows.join("\n"));
        for row in self.rows.iter().filter(|row| !row.log.is_empty()) {
            section(&mut text, &format!("log of {}", row.name), &row.log);
        }
        text
    }
}
