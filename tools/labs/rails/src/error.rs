//! Errors of the lab: what keeps it from doing what it was asked for.

use std::io;

/// What was tried, and why it failed.
#[derive(Debug, thiserror::Error)]
#[error("{tried}: {source}")]
pub struct LabError {
    tried: String,
    source: io::Error,
}

impl LabError {
    pub(crate) fn new(tried: impl Into<String>, source: io::Error) -> LabError {
        LabError { tried: tried.into(), source }
    }

    pub(crate) fn text(tried: impl Into<String>, why: impl Into<String>) -> LabError {
        LabError { tried: tried.into(), source: io::Error::other(why.into()) }
    }
}
