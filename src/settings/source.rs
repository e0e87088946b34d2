//! Where the values of settings come from.

use std::fmt;

/// Where a value came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// An environment variable.
    Environment,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Environment => "environment",
        })
    }
}

/// Where the values of [`Settings`](super::Settings) came from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    /// The variables and debug keys that were set. All others are defaults.
    from_environment: Vec<&'static str>,
}

impl Sources {
    pub(super) fn note(&mut self, name: &'static str) {
        self.from_environment.push(name);
    }

    /// Where the value of a variable or debug key came from.
    pub fn of(&self, name: &str) -> Source {
        if self.from_environment.contains(&name) { Source::Environment } else { Source::Default }
    }
}
