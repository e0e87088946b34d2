//! Entries for atomics and puts with signal.
//!
//! # Path of a put with signal
//! | step | file |
//! |---|---|
//! | [`put_signal`], read by `common_signal` | here, `abi/calls/request` |
//! | short and common: one message at once | engine `lane/submit`, `core/send` |
//! | other: the protocol is chosen | engine `lane/submit`, `signal` |
//! | eager: one message | engine `core/send` |
//! | counted and chained: segments | engine `core/post` |
//! | chained: the signal leaves when they are delivered | engine `core/complete`, `lane/queues` |
//! | staged: fragments of a bounce buffer | engine `staging/submit` |
//! | messages to and from the fabric | ofi `data_path/messages`, `data_path/port` |
//! | at the target | engine `lane/incoming`, `channel/counts` |
//! | acknowledged | engine `core/complete` |
//!
//! As in [`crate::abi::entries`], safety rests on the numbered rules in [`crate::abi`]'s
//! documentation.

use std::ffi::{c_int, c_void};

use nvshmem_abi::{
    AmoBytes, AmoMem, AmoVerb3, AmoVerb6, RmaBytesVector, RmaMemVector, RmaVerb, Transport, c,
};

use crate::abi::calls::request::{self, Amo, HOST_QP, Put};
use crate::abi::calls::with_lane;
use crate::abi::error::{AbiError, guard};
use crate::abi::state::job;
use engine::atomic::Width;
use engine::request::{PutSignalRequest, Request};

impl From<AmoVerb3> for Amo {
    /// Converts the verb of layouts 3a to 5, which have no floating point.
    fn from(verb: AmoVerb3) -> Self {
        Self { code: verb.desc, float: false }
    }
}

impl From<AmoVerb6> for Amo {
    fn from(verb: AmoVerb6) -> Self {
        Self { code: verb.desc, float: verb.is_float != 0 }
    }
}

/// The amo entry, generic over the layouts' verbs.
///
/// # Safety
/// Rules 1, 3 and 4.
pub(crate) unsafe extern "C" fn amo<V: Into<Amo>>(
    transport: *mut Transport,
    pe: c_int,
    _ret: *mut c_void,
    verb: V,
    mem: *mut AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    let amo = verb.into();
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if try_amo(transport, pe, amo, mem, bytes, qp).is_some() {
            return c::NVT_STATUS_SUCCESS;
        }
        amo_general(transport, pe, amo, mem, bytes, qp)
    }
}

/// Tries the fast path for an atomic that fetches nothing; returns None, with no side effect, for
/// anything else.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
unsafe fn try_amo(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> Option<()> {
    let width = Width::from_bytes(bytes.elembytes)?;
    // SAFETY: rules 1 and 3.
    unsafe {
        with_lane(transport, qp, |lane| {
            lane.try_atomic(&request::common_atomic(pe, amo, mem, width)?).then_some(())
        })
    }
}

/// Handles every atomic that the fast path does not.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe fn amo_general(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    guard("amo", || {
        if qp == HOST_QP {
            // No release of NVSHMEM issues these: its host interface has no remote atomics.
            return Err(AbiError::NotSupported { what: "an atomic operation of a user thread" });
        }
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        // SAFETY: rule 1.
        let request = unsafe { request::atomic(pe, amo, mem, &bytes)? };
        // SAFETY: rule 3.
        unsafe { connected.with_proxy(|lane| lane.atomic(&request)) }?;
        Ok(())
    })
}

/// The put_signal entry of layout 4 (NVSHMEM 3.5) and later, generic over their verbs of atomics.
///
/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(crate) unsafe extern "C" fn put_signal<V: Into<Amo> + Copy>(
    transport: *mut Transport,
    pe: c_int,
    write_verb: RmaVerb,
    remote: *const RmaMemVector,
    local: *const RmaMemVector,
    bytes: *const RmaBytesVector,
    signal_verb: V,
    signal: *mut AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    // In memory, or the fast path would keep them in registers for the general one.
    let kept = (transport, pe, remote, local, bytes, signal);
    let amo = signal_verb.into();
    // SAFETY: rules 1, 3 and 4; `kept` is read whole and never changes.
    unsafe {
        let (remote, local, bytes) = (&*remote, &*local, &*bytes);
        let put = Put { pe, verb: &write_verb, remote, local, bytes };
        let is_sent = with_lane(transport, qp, |lane| {
            let (part, signal) = request::common_signal(&put, amo, signal, signal_bytes)?;
            Some(lane.try_put_signal_unbatched(&part, &signal))
        });
        if is_sent == Some(true) {
            return c::NVT_STATUS_SUCCESS;
        }
        let (transport, pe, remote, local, bytes, signal) = (&raw const kept).read_volatile();
        // With the arguments as they came, it is a jump.
        put_signal_general(
            transport,
            pe,
            write_verb,
            remote,
            local,
            bytes,
            signal_verb,
            signal,
            signal_bytes,
            qp,
        )
    }
}

/// Handles every put with signal that the fast path has not sent.
///
/// # Safety
/// Rules 1, 3 and 4.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
unsafe extern "C" fn put_signal_general<V: Into<Amo>>(
    transport: *mut Transport,
    pe: c_int,
    write_verb: RmaVerb,
    remote: *const RmaMemVector,
    local: *const RmaMemVector,
    bytes: *const RmaBytesVector,
    signal_verb: V,
    signal: *mut AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    guard("put_signal", || {
        // SAFETY: rules 1, 3 and 4; each part that is read is below their number.
        unsafe {
            let (remote, local, bytes) = (&*remote, &*local, &*bytes);
            let parts = Put { pe, verb: &write_verb, remote, local, bytes };
            let n = parts.parts()?;
            let signal = request::atomic(pe, signal_verb.into(), signal, &signal_bytes)?;
            if qp == HOST_QP {
                // No release of NVSHMEM issues this.
                return Err(AbiError::NotSupported { what: "put with signal of a user thread" });
            }
            if signal.atomic.op.fetches() {
                return Err(AbiError::NotSupported { what: "put with a signal that fetches" });
            }
            let connected = job(transport)?.connected()?;
            let put = |parts: &[Request<'_>]| {
                let request = PutSignalRequest { parts, signal };
                connected.with_proxy(|lane| lane.put_signal(&request))
            };
            if n == 0 {
                put(&[])?;
                return Ok(());
            }
            let mut few = [parts.get(0)?; FEW];
            if n <= FEW {
                for (at, part) in few.iter_mut().enumerate().take(n).skip(1) {
                    *part = parts.get(at)?;
                }
                put(&few[..n])?;
            } else {
                let many = (0..n).map(|at| parts.get(at));
                put(&many.collect::<Result<Vec<_>, _>>()?)?;
            }
            Ok(())
        }
    })
}

/// Maximum parts of a put with signal without an allocation. NVSHMEM splits a payload at the
/// borders of heap chunks, so nearly all have one part or two.
const FEW: usize = 4;
