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

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Bootstrap(#[from] BootstrapError),
    #[error("{0}")]
    RingSize(#[from] RingSizeError),
    #[error("a channel has a power of two of rings, at most {}, not {rings}", c::NLF_MAX_RINGS)]
    Rings { rings: u32 },
    #[error("a channel has at most {} PEs, not {n_pes}", c::NLF_MAX_PES)]
    TooManyPes { n_pes: u32 },
    #[error("{0}")]
    Rails(String),
    #[error("there are no {len} bytes of memory to be had")]
    NoMemory { len: usize },
    #[error("{len} bytes on a device: {why}")]
    NoDevice { len: usize, why: String },
    #[error("{0}")]
    Cuda(#[from] CudaError),
    #[error("the context on the device: {0}")]
    Device(String),
    #[error("registering {len} bytes at {addr:#x}: {why}")]
    Register { addr: usize, len: usize, why: String },
    #[error("registering {len} bytes: PE {pe} {why}")]
    Peer { len: usize, pe: u32, why: String },
    #[error("{0}")]
    Release(EngineError),
    #[error("no region of this channel begins at {addr:#x}")]
    NoRegion { addr: usize },
    #[error("the channel has failed: {0}")]
    Failed(String),
    #[error("{0}")]
    Undelivered(Arc<ChannelError>),
    #[error("the channel's proxy thread has ended")]
    Ended,
    #[error("starting the channel's proxy thread: {0}")]
    Thread(std::io::Error),
    #[error(
        "the channel's proxy thread did not end within {waited:?}: a call of the provider's or of CUDA's driver does \
         not come back. What it may still use is not freed: memory that is registered has to stay as it is until the \
         process ends"
    )]
    Stuck { waited: Duration },
    #[error("{}", JobError::Child)]
    Child,
    #[error("{what} was not over after {waited:?}")]
    Late { what: &'static str, waited: Duration },
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
