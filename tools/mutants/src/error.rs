//! What can go wrong, with what was tried.

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{} is not what it should be: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{} is no Rust: {source}", path.display())]
    Syntax { path: PathBuf, source: syn::Error },
    #[error("The copy does not build, and no mutant is to blame:\n{0}")]
    Build(String),
    #[error("{0} fails, or takes too long, with no mutant at all:\n{1}")]
    Unmutated(String, String),
    #[error("Tests get no processes and no shared memory of their own here: {0}")]
    Room(String),
    #[error(
        "No mutant was tried, of {0} that were chosen: is there such a module, and was there time?"
    )]
    Untried(usize),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// For `map_err`: what was wrong with a file.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(at(path))
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, text).map_err(at(path))
}
