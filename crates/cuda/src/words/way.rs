//! The ways to single words in device memory: which there are, what they cost, how they fail.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::copy::request::StartError;
use crate::driver::error::{CudaError, refused};
use crate::words::gdrcopy::GDRCOPY_LIBRARY;
use engine::port::PortError;

/// How words are reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// The CPU, through a mapping by GDRCopy.
    Gdrcopy,
    /// The driver: loads by copies, stores by stream memory operations or copies.
    Stream,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Gdrcopy => "GDRCopy",
            Way::Stream => "the driver's streams",
        })
    }
}

/// What a word costs, as measured at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// A load of 8 bytes.
    pub load: Duration,
    /// A store of 8 bytes.
    pub store: Duration,
}

/// Which ways may be tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WordsOptions {
    /// The library of GDRCopy. None: not to be used.
    pub gdrcopy: Option<String>,
    /// How long the device may take for a word before that is an error.
    pub patience: Duration,
}

impl Default for WordsOptions {
    fn default() -> Self {
        let gdrcopy = Some(GDRCOPY_LIBRARY.to_owned());
        Self { gdrcopy, patience: Duration::from_secs(30) }
    }
}

/// Why a word was not read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WordError {
    /// No attached range has this word, or it is not aligned to its width.
    #[error("no word of {width} bytes at {addr:#x} in the attached memory of {context}")]
    NoWord {
        /// The address.
        addr: usize,
        /// The width in bytes.
        width: usize,
        /// The context.
        context: String,
    },
    /// The driver could not do it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The word could not be given to the driver.
    #[error(transparent)]
    Start(StartError),
}

impl From<StartError> for WordError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Cuda(error) => WordError::Cuda(error),
            other => WordError::Start(other),
        }
    }
}

impl From<WordError> for PortError {
    fn from(error: WordError) -> Self {
        match error {
            WordError::Cuda(error) => error.into(),
            other => refused("reaching a word", other.to_string()),
        }
    }
}
