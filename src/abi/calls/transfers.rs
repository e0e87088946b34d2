//! Entries for puts and gets.
//!
//! # Path of a common put
//! | file | function | form of the put |
//! |---|---|---|
//! | here | [`rma`], [`try_rma`] | the host's structs |
//! | `abi/calls/request` | `common` | a [`Request`] |
//! | engine `lane/submit` | `try_start` | |
//! | engine `core/post` | `try_post` | a `Transfer`, kept in a segment |
//! | ofi `data_path/port/operations` | `try_post` | |
//! | ofi `objects/endpoint` | `EndpointOps::write`, which is `fi_write` | |
//!
//! If an obstacle such as a fence blocks the fast path, [`rma_general`] starts anew.
//!
//! As in [`crate::abi::entries`], safety rests on the numbered rules in [`crate::abi`]'s
//! documentation.

use std::ffi::c_int;

use nvshmem_abi::{RmaBytes, RmaMem, RmaVerb, Transport, c};

use crate::abi::calls::request::{self, HOST_QP};
use crate::abi::error::{AbiError, guard};
use crate::abi::state::{job, job_of};
use crate::job::Connected;
use engine::port::Direction;
use engine::request::Request;

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
    // The general path reads the arguments from memory, so that the fast path has all registers.
    let call = Call { transport, pe, remote, local, qp };
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if try_rma(transport, pe, remote, local, qp, &verb, &bytes).is_some() {
            return c::NVT_STATUS_SUCCESS;
        }
        rma_general(&call, &verb, &bytes)
    }
}

/// The rma entry of layouts 6 and 7, whose hints may announce further operations. Ignores them: no
/// operation is delayed for others.
///
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
    unsafe { rma(transport, pe, verb, remote, local, bytes, qp) }
}

/// The entry of layout 7 for the end of a region of hinted operations.
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

/// Arguments that the host passes in registers.
struct Call {
    transport: *mut Transport,
    pe: c_int,
    remote: *const RmaMem,
    local: *const RmaMem,
    qp: c_int,
}

/// Handles every operation that the fast path does not: blocking ones, those of user threads, of
/// several elements, and wrong ones.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe fn rma_general(call: &Call, verb: &RmaVerb, bytes: &RmaBytes) -> c_int {
    guard("rma", || {
        let Call { transport, pe, remote, local, qp } = *call;
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        // SAFETY: rule 1; memory that outlives the call is rule 4.
        let (request, blocking) = unsafe { request::read(pe, verb, remote, local, bytes)? };
        match (qp == HOST_QP, blocking) {
            // SAFETY: rule 3.
            (false, false) => unsafe { connected.with_proxy(|lane| lane.start(&request)) }?,
            // SAFETY: rule 3.
            (false, true) => unsafe { connected.with_proxy(|lane| lane.complete(&request)) }?,
            (true, false) => connected.host.start(&request)?,
            (true, true) => connected.host.complete(&request)?,
        }
        Ok(())
    })
}

/// Tries the fast path for the proxy's common operations, and returns the status; None, with no
/// side effect, for anything else.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
pub(crate) unsafe fn try_rma(
    transport: *mut Transport,
    pe: c_int,
    remote: *const RmaMem,
    local: *const RmaMem,
    qp: c_int,
    verb: &RmaVerb,
    bytes: &RmaBytes,
) -> Option<()> {
    if qp == HOST_QP || transport.is_null() {
        return None;
    }
    // SAFETY: rule 1; the transport is not null.
    let connected = unsafe { job_of(transport) }.connection()?;
    // Separate for each operation, so that the compiler makes straight-line code of each.
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if request::is_put_nbi(verb) {
            let from = request::contiguous(verb, local, bytes)?;
            let put = request::common(Direction::Write, pe, remote, from)?;
            return start(connected, &put);
        }
        // Read again, or the compiler makes one search among all values, with PUT in the middle.
        match (&raw const verb.desc).read_volatile() {
            request::GET | request::G => {
                let into = request::contiguous(verb, local, bytes)?;
                let get = request::common(Direction::Read, pe, remote, into)?;
                start(connected, &get)
            }
            request::P => {
                let value = request::word(local, bytes)?;
                let put = request::common(Direction::Write, pe, remote, value)?;
                start(connected, &put)
            }
            _ => None,
        }
    }
}

/// Starts a common operation on the proxy's lane, unless an obstacle blocks it. Cannot panic, so it
/// needs no guard.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
unsafe fn start(connected: &Connected, request: &Request<'_>) -> Option<()> {
    // A closure on the lane would be called, not inlined.
    // SAFETY: rule 3; the reference ends with this expression.
    unsafe { &mut *connected.proxy_lane() }.try_start_unbatched(request).then_some(())
}
