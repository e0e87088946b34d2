//! The record of what was installed, as a file in the prefix.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::refused;
use super::staged::{Content, Staged, sweep};
use crate::error::ToolError;
use crate::info::{VERSION, json};

/// The directory of the record, below the prefix.
pub(super) const RECORD: &str = "share/nvshmem-libfabric";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    /// What was installed, so that what others have put in its place is known.
    pub(super) sha256: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: String,
    pub(super) files: Vec<Entry>,
    /// Directories that were not there before, the outer first.
    pub(super) directories: Vec<String>,
}

const NAME: &str = "installed.json";

impl Record {
    pub(super) fn new(files: Vec<Entry>, directories: Vec<String>) -> Self {
        Self { version: VERSION.to_owned(), files, directories }
    }

    pub(super) fn read(directory: &Path) -> Result<Option<Self>, ToolError> {
        let path = directory.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(&path, "cannot be read")(error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            let hint = "it is no record of this version: remove the files of this project by hand";
            ToolError::file(&path, "cannot be understood", error, hint)
        })
    }

    /// Writes it, in place of one that is there.
    pub(super) fn write(&self, directory: &Path) -> Result<(), ToolError> {
        let text = Content::Text(json(self)?.into_bytes());
        Staged::make(&text, NAME, directory)?.rename(&directory.join(NAME))?;
        // On the disk before what it is the record of. A file system that cannot do this for a
        // directory has other ways.
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

pub(super) fn remove(directory: &Path) -> Result<(), ToolError> {
    let path = directory.join(NAME);
    fs::remove_file(&path).map_err(refused(&path, "cannot be removed"))?;
    sweep(directory, NAME);
    Ok(())
}
