//! The plugin for NCCL's RMA interface: the symbols that NCCL looks for, one table per version.
//!
//! It is installed as `libnccl-rma-nvshmem-libfabric.so`, which NCCL loads for
//! `NCCL_RMA_PLUGIN=nvshmem-libfabric`.

use nvshmem_transport_libfabric::nccl::abi::{Table14, Table15, Table16};
use nvshmem_transport_libfabric::nccl::tables;

/// For NCCL 2.32 and later.
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v16: Table16 = tables::V16;

/// For NCCL 2.31.
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v15: Table15 = tables::V15;

/// For NCCL 2.30.7.
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v14: Table14 = tables::V14;
