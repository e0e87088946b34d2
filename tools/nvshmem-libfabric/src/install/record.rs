//! The record of what was installed, as a file beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Staged, refused};
use crate::error::ToolError;
use crate::info::{VERSION, json};

/// A file that was installed, by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    /// What was installed, so that what others have put in its place is known.
    pub(super) sha256: String,
}

/// A record, with what the kind of installation adds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record<T> {
    /// This project's version.
    pub(super) version: String,
    pub(super) files: Vec<Entry>,
    #[serde(flatten)]
    pub(super) more: T,
}

const NAME: &str = "installed.json";

impl<T: Serialize + DeserializeOwned> Record<T> {
    pub(super) fn new(files: Vec<Entry>, more: T) -> Self {
        Self { version: VERSION.to_owned(), files, more }
    }

    /// The record in a directory, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, ToolError> {
        let path = directory.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(&path, "cannot be read")(error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            let hint = "it is no record of this version; put the original files back by hand, from `original` beside it";
            ToolError::file(&path, "cannot be understood", error, hint)
        })
    }

    /// Writes it, in place of one that is there.
    ///
    /// # Errors
    /// What the file system refuses.
    pub(super) fn write(&self, directory: &Path) -> Result<(), ToolError> {
        let path = directory.join(NAME);
        let fresh = directory.join(format!(".{NAME}"));
        let staged = Staged(Some(fresh.clone()));
        fs::write(&fresh, json(self)?).map_err(refused(&path, "cannot be written"))?;
        staged.rename(&path)
    }

    /// What was installed under a name.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.name == name)
    }
}

/// Removes the record of a directory.
///
/// # Errors
/// What the file system refuses.
pub(super) fn remove(directory: &Path) -> Result<PathBuf, ToolError> {
    let path = directory.join(NAME);
    fs::remove_file(&path).map_err(refused(&path, "cannot be removed"))?;
    Ok(path)
}
