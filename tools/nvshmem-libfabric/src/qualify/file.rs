//! The file to send: the verdict first, then figures, what there is, and what each row has logged.
//!
//! It is there from the beginning and made anew before each row, so whatever ends the run leaves
//! one that says how far it came.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::verdict::Verdict;
use crate::error::ToolError;
use crate::info::VERSION;
use crate::perf::table::Figure;
use crate::report::redact::Redactor;
use crate::report::{private_file, section, unwritten};

/// Columns that a line has on terminals, mostly.
const WIDTH: usize = 80;

/// A row that is over.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    pub(super) name: &'static str,
    pub(super) what: String,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    pub(super) seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) figures: Vec<Figure>,
    /// What its PEs have printed.
    #[serde(skip)]
    pub(super) log: String,
}

impl Done {
    /// A line for people, and more where it has no room for what is to be said.
    pub(super) fn line(&self) -> String {
        let Self { name, verdict, seconds, .. } = self;
        let took = match verdict {
            Verdict::Skipped { .. } => String::new(),
            _ => format!("{seconds:.1} s"),
        };
        let mut text = format!("{:<8} {name:<18} {took:>7}", verdict.name());
        let reason = verdict.reason();
        if text.len() + 2 + reason.len() <= WIDTH && !reason.contains('\n') {
            let _ = write!(text, "  {reason}");
        }
        let said = text.trim_end().len();
        text.truncate(said);
        if !text.ends_with(reason) {
            reason.lines().for_each(|line| text.push_str(&format!("\n         {line}")));
        }
        if let Verdict::Failed { remedy, .. } = verdict {
            let _ = write!(text, "\n         -> {remedy}");
        }
        text
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Report {
    path: PathBuf,
    redactor: Redactor,
    /// What was asked for, in one line.
    pub(super) head: String,
    /// What there is, under heads.
    pub(super) there: String,
    pub(super) rows: Vec<Done>,
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
        private_file(path)?;
        let mut redactor = Redactor::of_process();
        names.for_each(|name| redactor.learn_named(name));
        let (head, there) = (String::new(), String::new());
        Ok(Self { path: path.to_owned(), redactor, head, there, rows: Vec::new() })
    }

    /// Takes the file away again, where there is nothing to tell.
    pub(super) fn discard(self) {
        // It is empty, and only untidy.
        let _ = fs::remove_file(&self.path);
    }

    /// Replaces the file, as a whole. `running` is the row that is tried next; none when all are
    /// over.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write(&self, running: Option<&str>) -> Result<(), ToolError> {
        let text = self.redactor.clone().redact(&self.text(running)?);
        let mut name = self.path.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        // Of a run that was interrupted just here.
        let _ = fs::remove_file(&part);
        let written = private_file(&part)?.write_all(text.as_bytes());
        written
            .and_then(|()| fs::rename(&part, &self.path))
            .map_err(|error| unwritten(&part, error))
    }

    /// How many rows have ended so.
    pub(super) fn count(&self, name: &str) -> usize {
        self.rows.iter().filter(|row| row.verdict.name() == name).count()
    }

    /// The rows in one line.
    pub(super) fn summary(&self) -> String {
        let count = |name| self.count(name);
        format!(
            "{} ok, {} slow, {} failed, {} skipped",
            count("ok"),
            count("slow"),
            count("FAILED"),
            count("skipped")
        )
    }

    fn text(&self, running: Option<&str>) -> Result<String, ToolError> {
        let mut text = format!("nvshmem-libfabric {VERSION} qualify: {}\n\n", self.head);
        let mut verdict = self.summary();
        if let Some(running) = running {
            let _ = write!(verdict, "\nNOT FINISHED: it was ended while `{running}` was tried");
        }
        for row in &self.rows {
            let _ = write!(verdict, "\n\n({})\n{}", row.what, row.line());
        }
        section(&mut text, "verdict", &verdict);
        text.push_str(&self.there);
        let rows: Vec<String> = self.rows.iter().map(line).collect::<Result<_, _>>()?;
        section(&mut text, "rows as lines of JSON", &rows.join("\n"));
        for row in self.rows.iter().filter(|row| !row.log.is_empty()) {
            section(&mut text, &format!("log of {}", row.name), &row.log);
        }
        Ok(text)
    }
}

/// A row for programs.
fn line(row: &Done) -> Result<String, ToolError> {
    serde_json::to_string(row)
        .map_err(|error| ToolError::new(format!("JSON: {error}"), "this is a mistake of the tool"))
}
