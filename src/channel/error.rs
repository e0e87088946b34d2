//! Errors of a channel, in words that a user can act on.

use std::sync::Arc;
use std::time::Duration;

use channel_sys as c;
use thiserror::Error;

use crate::bootstrap::BootstrapError;
use crate::channel::ring::RingSizeError;
use crate::job::JobError;
use crate::settings::SettingsError;
use cuda::CudaError;
use engine::error::EngineError;

/// An error of a channel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Environment variables that are not accepted.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The PEs did not come together.
    #[error("{0}")]
    Bootstrap(#[from] BootstrapError),
    /// A number of slots that no ring has.
    #[error("{0}")]
    RingSize(#[from] RingSizeError),
    /// A number of rings that no channel has.
    #[error("a channel has a power of two of rings, at most {}, not {rings}", c::NLF_MAX_RINGS)]
    Rings {
        /// What was asked for.
        rings: u32,
    },
    /// More PEs than a descriptor can name.
    #[error("a channel has at most {} PEs, not {n_pes}", c::NLF_MAX_PES)]
    TooManyPes {
        /// How many there are.
        n_pes: u32,
    },
    /// The rails were not opened, or the PEs not connected.
    #[error("{0}")]
    Rails(String),
    /// Memory that is not to be had.
    #[error("there are no {len} bytes of memory to be had")]
    NoMemory {
        /// How many were asked for.
        len: usize,
    },
    /// Memory on a device, asked for where there is none.
    #[error("{len} bytes on a device: {why}")]
    NoDevice {
        /// How many were asked for.
        len: usize,
        /// What is missing.
        why: String,
    },
    /// Memory of CUDA.
    #[error("{0}")]
    Cuda(#[from] CudaError),
    /// The part of the context that is on the device.
    #[error("the context on the device: {0}")]
    Device(String),
    /// Memory that cannot be registered here.
    #[error("registering {len} bytes at {addr:#x}: {why}")]
    Register {
        /// The first byte.
        addr: usize,
        /// How many.
        len: usize,
        /// Why not.
        why: String,
    },
    /// A peer that does not do its part of a registration.
    #[error("registering {len} bytes: PE {pe} {why}")]
    Peer {
        /// Bytes here.
        len: usize,
        /// The peer.
        pe: u32,
        /// What it does or says.
        why: String,
    },
    /// Memory that cannot be released yet.
    #[error("{0}")]
    Release(EngineError),
    /// A region that is not registered.
    #[error("no region of this channel begins at {addr:#x}")]
    NoRegion {
        /// The address given.
        addr: usize,
    },
    /// The context has failed: an operation, or a kernel's request.
    #[error("the channel has failed: {0}")]
    Failed(String),
    /// Not everything that was pushed was delivered.
    #[error("{0}")]
    Undelivered(Arc<ChannelError>),
    /// The proxy thread is not there any more.
    #[error("the channel's proxy thread has ended")]
    Ended,
    /// The proxy thread could not be started.
    #[error("starting the channel's proxy thread: {0}")]
    Thread(std::io::Error),
    /// The proxy thread is in a call that does not come back.
    #[error(
        "the channel's proxy thread did not end within {waited:?}: a call of the provider's or of CUDA's driver does \
         not come back. What it may still use is not freed: memory that is registered has to stay as it is until the \
         process ends"
    )]
    Stuck {
        /// How long its end was waited for.
        waited: Duration,
    },
    /// A child of fork has called.
    #[error("{}", JobError::Child)]
    Child,
    /// Something took too long.
    #[error("{what} was not over after {waited:?}")]
    Late {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
}

impl ChannelError {
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self, Self::Release(failed) if failed.is_in_use())
    }
}

impl From<JobError> for ChannelError {
    fn from(error: JobError) -> Self {
        Self::Rails(error.to_string())
    }
}
