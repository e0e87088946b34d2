//! Announced operations: `rma_with_hints` and `region_flush` of layouts 6 and 7, by which the host
//! says that more follow. Nothing is held back for those.

use std::ffi::c_int;

use nvshmem_abi::{RmaBytes, RmaMem, RmaVerb, Transport, c};

use crate::abi::calls::transfers;
use crate::abi::error::{AbiError, guard};

/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(crate) unsafe extern "C" fn rma_with_hints<A>(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
    _attrs: *const A,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe { transfers::rma(transport, pe, verb, remote, local, bytes, qp) }
}

/// Layout 7: a region has ended.
pub(crate) unsafe extern "C" fn region_flush(
    _transport: *mut Transport,
    role: c_int,
    _issuer: u64,
    _region: u64,
) -> c_int {
    guard("region_flush", || match role {
        c::NVT_REGION_ROLE_PROXY | c::NVT_REGION_ROLE_HOST => Ok(()),
        role => Err(AbiError::BadRole { role }),
    })
}
