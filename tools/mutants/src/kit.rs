//! A kit: a directory with what trying mutants takes. Test programs in `bin`, and the list of mutants.

use std::path::Path;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::error::{Error, Result, read, write};

/// What became of a mutant when the tests were built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    /// It is in the test programs.
    Built,
    /// It does not compile.
    Unviable,
    /// It would be in code that constants are computed by.
    LeftOut,
}

/// One small change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mutant {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) function: String,
    pub(crate) change: String,
    pub(crate) state: State,
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, line, column, function, change, .. } = self;
        write!(f, "{file}:{line}:{column}: {change} in {function}")
    }
}

pub(crate) const MUTANTS: &str = "mutants.json";
pub(crate) const PROGRAMS: &str = "bin";

pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read(path)?;
    serde_json::from_str(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
}

pub(crate) fn save<T: Serialize>(path: &Path, what: &T) -> Result<()> {
    let text =
        serde_json::to_vec(what).map_err(|source| Error::Json { path: path.to_owned(), source })?;
    write(path, text)
}
