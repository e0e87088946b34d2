//! Announced operations: `rma_with_hints` and `region_flush` of layouts 6 and 7, by which the host
//! says that more follow.
//!
//! Only puts of the proxy thread come in bursts. A user thread may stay away for minutes, and
//! nobody else is sure to end its burst.

use std::ffi::c_int;

use nvshmem_abi::{OpAttrs6, OpAttrs7, RmaBytes, RmaMem, RmaVerb, Transport, c};

use crate::abi::calls::request::{self, HOST_QP};
use crate::abi::calls::transfers::{rma_general, try_rma};
use crate::abi::error::{AbiError, guard};
use crate::abi::state::{job, job_of};

const MORE_FOLLOWS: u32 = c::NVT_OP_FLAG_MORE_FOLLOWS as u32;
const BATCH_RMA: u32 = c::NVT_REGION_HINT_BATCH_RMA as u32;

/// What a layout's host says of an operation.
pub(crate) trait OpAttrs {
    /// Whether another operation follows at once.
    fn announce_more(&self) -> bool;
}

impl OpAttrs for OpAttrs6 {
    fn announce_more(&self) -> bool {
        self.flags & MORE_FOLLOWS != 0
    }
}

impl OpAttrs for OpAttrs7 {
    fn announce_more(&self) -> bool {
        self.flags & MORE_FOLLOWS != 0 || self.hints & BATCH_RMA != 0
    }
}

/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(crate) unsafe extern "C" fn rma_with_hints<A: OpAttrs>(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
    attrs: *const A,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        let more = attrs.as_ref().is_some_and(A::announce_more);
        hinted(transport, pe, verb, remote, local, bytes, qp, more)
    }
}

/// `rma` where there are bursts: it ends the one that it does not belong to.
///
/// # Safety
/// Rules 1, 3 and 4.
pub(crate) unsafe extern "C" fn rma(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe { hinted(transport, pe, verb, remote, local, bytes, qp, false) }
}

/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
unsafe fn hinted(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *const RmaMem,
    local: *const RmaMem,
    bytes: RmaBytes,
    qp: c_int,
    more: bool,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if more && qp != HOST_QP && batches(transport) {
            return in_burst(transport, pe, &verb, remote, local, &bytes);
        }
        match try_rma(transport, pe, remote, local, qp, &verb, &bytes) {
            Some(status) => {
                end_burst(transport);
                status
            }
            None => rma_general(transport, pe, remote, local, qp, &verb, &bytes),
        }
    }
}

/// Ends the burst that the last operation, which was not announced to be followed, did not belong
/// to.
///
/// # Safety
/// Rules 1 and 3; the transport is not null.
#[inline(always)]
unsafe fn end_burst(transport: *mut Transport) {
    // SAFETY: rules 1 and 3.
    unsafe {
        if let Some(connected) = job_of(transport).connection() {
            connected.with_proxy(|lane| lane.end_burst());
        }
    }
}

/// Whether bursts make a difference on the transport's rails.
///
/// # Safety
/// Rules 1 and 3.
#[inline(always)]
unsafe fn batches(transport: *mut Transport) -> bool {
    // SAFETY: rules 1 and 3.
    unsafe {
        !transport.is_null()
            && job_of(transport)
                .connection()
                .is_some_and(|connected| connected.with_proxy(|lane| lane.batches()))
    }
}

/// An operation of the proxy thread that others follow.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe fn in_burst(
    transport: *mut Transport,
    pe: c_int,
    verb: &RmaVerb,
    remote: *const RmaMem,
    local: *const RmaMem,
    bytes: &RmaBytes,
) -> c_int {
    guard("rma_with_hints", || {
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        // SAFETY: rule 1; memory that outlives the call is rule 4.
        let (request, blocking) = unsafe { request::read(pe, verb, remote, local, bytes)? };
        // SAFETY: rule 3.
        unsafe {
            connected.with_proxy(|lane| match blocking {
                true => lane.complete(&request),
                false => lane.start_in_burst(&request),
            })
        }?;
        Ok(())
    })
}

/// Layout 7: a region has ended. All that was held back for it goes out, together with what was
/// held back otherwise.
///
/// # Safety
/// Rule 1, and rule 3 for the role of the proxy.
pub(crate) unsafe extern "C" fn region_flush(
    transport: *mut Transport,
    role: c_int,
    _issuer: u64,
    _region: u64,
) -> c_int {
    guard("region_flush", || {
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        match role {
            // SAFETY: rule 3.
            c::NVT_REGION_ROLE_PROXY => unsafe { connected.with_proxy(|lane| lane.end_burst()) },
            // Nothing of user threads is held back.
            c::NVT_REGION_ROLE_HOST => {}
            role => return Err(AbiError::BadRole { role }),
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_follows_where_a_flag_or_the_hint_of_a_region_says_so() {
        // Others, which say nothing of it.
        let others = !(MORE_FOLLOWS | BATCH_RMA);
        for (flags, announced) in
            [(0, false), (MORE_FOLLOWS, true), (others, false), (others | MORE_FOLLOWS, true)]
        {
            assert_eq!(OpAttrs6 { flags }.announce_more(), announced);
            assert_eq!(OpAttrs7 { flags, ..Default::default() }.announce_more(), announced);
        }
        for (hints, announced) in
            [(0, false), (BATCH_RMA, true), (others, false), (others | BATCH_RMA, true)]
        {
            assert_eq!(OpAttrs7 { hints, ..Default::default() }.announce_more(), announced);
        }
    }
}
