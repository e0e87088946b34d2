//! Entries for puts and gets.
//!
//! # Path of a common put
//! | file | function | form of the put |
//! |---|---|---|
//! | here | [`rma`] | the host's structs |
//! | `abi/calls/request` | `common` | a [`Request`] |
//! | engine `lane/submit` | `try_start_unbatched` | |
//! | engine `core/post` | `try_post` | a `Transfer`, and a segment's entry |
//! | ofi `data_path/port/operations` | `try_post` | |
//! | ofi `objects/endpoint/endpoint_ops` | `EndpointOps::write`, which is `fi_write` | |
//!
//! If an obstacle such as a fence blocks the fast path, [`rma_general`] starts anew.
//!
//! As in [`crate::abi::entries`], safety rests on the numbered rules in [`crate::abi`]'s
//! documentation.

use std::ffi::c_int;

use nvshmem_abi::{RmaBytes, RmaMem, RmaVerb, Transport, c};

use crate::abi::calls::request::{self, HOST_QP};
use crate::abi::calls::with_lane;
use crate::abi::error::{AbiError, guard};
use crate::abi::state::job;
use engine::port::Direction;
use engine::request::Start;

/// Also the entry `rma_with_hints` of layouts 6 and 7, whose last argument may announce further
/// operations: no operation is delayed for others.
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
    // In memory, or the fast path would keep them in registers for the general one.
    let kept = (transport, pe, remote, local, qp);
    // SAFETY: rules 1, 3 and 4; `kept` is read whole and never changes.
    unsafe {
        let start = if request::is_put_nbi(&verb) {
            with_lane(transport, qp, |lane| {
                let from = request::contiguous(local, &bytes)?;
                let put = request::common(Direction::Write, pe, remote, from)?;
                Some(lane.try_start_unbatched(&put))
            })
        } else {
            None
        };
        if start == Some(Start::Done) {
            return c::NVT_STATUS_SUCCESS;
        }
        if start == Some(Start::Refused) {
            let (transport, .., qp) = (&raw const kept).read_volatile();
            with_lane(transport, qp, |lane| {
                lane.undo_start();
                Some(())
            });
        }
        let (transport, pe, remote, local, qp) = (&raw const kept).read_volatile();
        // With the arguments as they came, it is a jump.
        rma_other(transport, pe, verb, remote, local, bytes, qp)
    }
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

/// Tries the fast path of the proxy's other common operations. Apart from puts, so that the
/// compiler makes straight-line code of these.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe extern "C" fn rma_other(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
) -> c_int {
    let kept = (transport, pe, remote, local, qp);
    // SAFETY: rules 1, 3 and 4; `kept` is read whole and never changes.
    unsafe {
        let is_started = with_lane(transport, qp, |lane| match verb.desc {
            request::GET | request::G if verb.is_nbi != 0 => {
                let into = request::contiguous(local, &bytes)?;
                Some(lane.try_start(&request::common(Direction::Read, pe, remote, into)?))
            }
            request::P => {
                let value = request::word(local, &bytes)?;
                Some(lane.try_start(&request::common(Direction::Write, pe, remote, value)?))
            }
            _ => None,
        });
        if is_started == Some(true) {
            return c::NVT_STATUS_SUCCESS;
        }
        let (transport, pe, remote, local, qp) = (&raw const kept).read_volatile();
        rma_general(transport, pe, verb, remote, local, bytes, qp)
    }
}

/// Handles every operation that the fast path does not: blocking ones, those of user threads, of
/// several elements, and wrong ones.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe extern "C" fn rma_general(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
) -> c_int {
    guard("rma", || {
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        // SAFETY: rule 1; memory that outlives the call is rule 4.
        let (request, blocking) = unsafe { request::read(pe, &verb, remote, local, &bytes)? };
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
