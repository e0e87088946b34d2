//! The tool's error: what was tried and why not, and what probably helps.

use std::env;
use std::fmt::Display;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ToolError {
    message: String,
    pub(crate) hint: String,
}

impl ToolError {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }

    pub(crate) fn file(path: &Path, what: &str, why: impl Display, hint: &str) -> Self {
        Self::new(format!("{} {what}: {why}", path.display()), hint)
    }

    pub(crate) fn print(&self) {
        self.print_json();
        eprintln!("nvshmem-libfabric: {self}\nhint: {}", self.hint);
    }

    /// Prints it as an object where the command line asks for JSON.
    pub(crate) fn print_json(&self) {
        let words: Vec<_> = env::args_os().skip(1).collect();
        if words.iter().any(|word| word == "--json") && words[0] != "run" {
            let object = serde_json::json!({ "error": self.message, "hint": self.hint });
            println!("{object:#}");
        }
    }
}
