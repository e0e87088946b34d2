//! Values that are refused.

use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name}={given:?} is refused: {reason}. Accepted: {accepted}")]
pub struct Refused {
    /// The variable, followed by `=key` for a debug key.
    pub name: String,
    pub given: String,
    pub reason: String,
    pub accepted: String,
}

/// All refused values, so that one run shows every mistake.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}", refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct SettingsError {
    /// At least one, in the order of the settings table.
    pub refused: Vec<Refused>,
}
