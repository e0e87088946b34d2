//! A kit: a directory with what trying mutants takes. Test programs in `bin`, with the shared
//! libraries that they load, and the list of mutants.

use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result, read, write};

pub(crate) const MUTANTS: &str = "mutants.json";
pub(crate) const PROGRAMS: &str = "bin";
/// How the names of shared libraries end.
pub(crate) const LIBRARY: &str = "so";

pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read(path)?;
    serde_json::from_str(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
}

pub(crate) fn save<T: Serialize>(path: &Path, what: &T) -> Result<()> {
    let text =
        serde_json::to_vec(what).map_err(|source| Error::Json { path: path.to_owned(), source })?;
    write(path, text)
}
