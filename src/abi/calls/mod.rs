//! Calls that move data: puts and gets, atomics and signals, from the host's arguments to the
//! engine's requests.

pub(crate) mod request;
pub(crate) mod signals;
pub(crate) mod transfers;

use std::ffi::c_int;

use nvshmem_abi::Transport;

use crate::abi::state::job_of;
use engine::lane::Lane;
use ofi::OfiPort;
use request::HOST_QP;

/// Executes `start` on the proxy's lane if the call is the proxy's and the job is connected.
/// `start` must not panic, since no guard is around it.
///
/// # Safety
/// Rules 1 and 3.
#[inline(always)]
pub(crate) unsafe fn with_lane<R>(
    transport: *mut Transport,
    qp: c_int,
    start: impl FnOnce(&mut Lane<OfiPort>) -> Option<R>,
) -> Option<R> {
    if qp == HOST_QP {
        return None;
    }
    // SAFETY: rule 1.
    let connected = unsafe { job_of(transport) }.connection()?;
    // SAFETY: rule 3; the reference ends with this expression.
    start(unsafe { &mut *connected.proxy_lane() })
}
