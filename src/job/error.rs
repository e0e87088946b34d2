use thiserror::Error;

use cuda::CudaError;
use engine::error::EngineError;
use engine::ids::MAX_PES;
use engine::port::PortError;
use engine::wire::handshake::ExchangeError;
use ofi::OfiError;

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum JobError {
    #[error("{0}")]
    Fabric(#[from] OfiError),
    #[error("{0}")]
    Port(#[from] PortError),
    #[error("{0}")]
    Engine(#[from] EngineError),
    #[error("connecting the PEs: {0}")]
    Exchange(#[from] ExchangeError),
    #[error("connecting the PEs: {what}")]
    Collectives { what: String },
    #[error(
        "provider {provider} connects the PEs of one host, but only {here} of this job's {n_pes} PEs are \
         on this host: set NVSHMEM_LIBFABRIC_PROVIDER to tcp or to your NIC's provider, or in containers of one host the same \
         NVSHMEM_LIBFABRIC_HOST_ID"
    )]
    OtherHosts { provider: &'static str, here: u32, n_pes: u32 },
    #[error("a job of {n_pes} PEs: this transport connects at most {MAX_PES}")]
    TooManyPes { n_pes: u32 },
    #[error("{0}")]
    Cuda(#[from] CudaError),
    #[error(
        "this process is a child of fork, and what it has of a job is its parent's: start a program that uses the \
         transport anew (exec, or the start method 'spawn')"
    )]
    Child,
    #[error("the transport is not connected: connect_endpoints has not been called or has failed")]
    NotConnected,
}
