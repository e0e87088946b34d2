//! The tool's error: what was tried and why not, and what probably helps.

use std::fmt::Display;
use std::path::Path;

/// Why something was not done.
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
        eprintln!("nvshmem-libfabric: {self}\nhint: {}", self.hint);
    }
}
