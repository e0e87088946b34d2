//! Values that are refused.

use std::fmt;

use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name}={given:?} is refused: {reason}. Accepted: {accepted}")]
pub struct Refused {
    /// The variable, followed by `=key` for a debug key.
    pub name: String,
    /// Its value.
    pub given: String,
    pub reason: String,
    pub accepted: String,
}

/// All refused values, so that one run shows every mistake.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub struct SettingsError {
    /// At least one, in the order of the settings table.
    pub refused: Vec<Refused>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refused) in self.refused.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{refused}")?;
        }
        Ok(())
    }
}
