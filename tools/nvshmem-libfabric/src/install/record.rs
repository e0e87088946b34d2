//! The record of what was installed, as a file beside it.

use std::fs::{self, File};
use std::io::{self, Write};
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
    /// What was installed before. It is still there where an update was killed between record and
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<String>,
}

impl Entry {
    /// Whether a file with this digest is one that was installed.
    pub(super) fn is_ours(&self, sha256: &str) -> bool {
        self.sha256 == sha256 || self.before.as_deref() == Some(sha256)
    }
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
        let fresh = fresh(directory);
        let staged = Staged(Some(fresh.clone()));
        let text = json(self)?;
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(refused(&path, "cannot be written"))?;
        staged.rename(&path)?;
        // On the disk before what it is the record of. A file system that cannot do this for a
        // directory has other ways.
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }

    /// What was installed under a name.
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.name == name)
    }
}

/// What a record is called until it is whole.
fn fresh(directory: &Path) -> PathBuf {
    directory.join(format!(".{NAME}"))
}

/// Removes the record of a directory.
///
/// # Errors
/// What the file system refuses.
pub(super) fn remove(directory: &Path) -> Result<PathBuf, ToolError> {
    let path = directory.join(NAME);
    fs::remove_file(&path).map_err(refused(&path, "cannot be removed"))?;
    // Of one that was killed while it wrote.
    let _ = fs::remove_file(fresh(directory));
    Ok(path)
}
