//! Entries for atomics and puts with signal.
//!
//! # Path of a put with signal
//! | step | file |
//! |---|---|
//! | [`put_signal`] | here |
//! | the protocol is chosen | engine `lane/submit`, `signal` |
//! | eager: one message | engine `core/send` |
//! | counted and chained: segments | engine `core/post` |
//! | chained: the signal leaves when they are delivered | engine `core/complete`, `lane/queues` |
//! | staged: fragments of a bounce buffer | engine `staging/submit` |
//! | at the target | engine `lane/incoming`, `channel/counts` |
//!
//! As in [`crate::abi::entries`], safety rests on the numbered rules in [`crate::abi`]'s
//! documentation.

use std::ffi::{c_int, c_void};

use nvshmem_abi::{
    AmoBytes, AmoMem, AmoVerb3, AmoVerb6, RmaBytesVector, RmaMemVector, RmaVerb, Transport, c,
};

use crate::abi::calls::request::{self, Amo, HOST_QP, Parts, Put};
use crate::abi::error::{AbiError, guard};
use crate::abi::state::{self, job};
use crate::job::Connected;
use engine::atomic::Width;
use engine::request::Request;
use engine::request::{AtomicRequest, PutSignalRequest};

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
    if qp == HOST_QP || transport.is_null() {
        return None;
    }
    // SAFETY: rule 1; the transport is not null.
    let connected = unsafe { state::job_of(transport) }.connection()?;
    let width = Width::from_bytes(bytes.elembytes)?;
    // SAFETY: rule 1.
    let request = unsafe { request::common_atomic(pe, amo, mem, width)? };
    // SAFETY: rule 3; the reference ends with this function.
    let lane = unsafe { &mut *connected.proxy_lane() };
    lane.try_atomic(&request).then_some(())
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
    let verb = &write_verb;
    let amo = signal_verb.into();
    let put = Put { pe, verb, remote, local, bytes };
    let mut call = (transport, put, (amo, signal, signal_bytes), qp);
    // The general path reads the arguments from memory, so that the fast path has all registers.
    std::hint::black_box(&mut call);
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        let common = read_common(transport, &put, amo, signal, signal_bytes, qp);
        if let Some((connected, part, signal)) = common {
            // The reference ends with this expression.
            if (*connected.proxy_lane()).try_put_signal(&part, &signal) {
                return c::NVT_STATUS_SUCCESS;
            }
        }
        put_signal_general(&call)
    }
}

/// Reads the common put with signal: one contiguous part. None for any other.
///
/// # Safety
/// Rules 1 and 4.
#[inline(always)]
unsafe fn read_common<'a>(
    transport: *mut Transport,
    put: &Put<'_>,
    amo: Amo,
    signal: *const AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> Option<(&'a Connected, Request<'a>, AtomicRequest<'a>)> {
    if qp == HOST_QP || transport.is_null() {
        return None;
    }
    // SAFETY: rule 1; the transport is not null.
    let connected = unsafe { state::job_of(transport) }.connection()?;
    // SAFETY: rules 1 and 4.
    let (part, signal) = unsafe { request::common_signal(put, amo, signal, signal_bytes)? };
    Some((connected, part, signal))
}

/// Handles every put with signal that the fast path has not sent.
///
/// # Safety
/// Rules 1, 3 and 4.
#[cold]
#[inline(never)]
unsafe fn put_signal_general(
    call: &(*mut Transport, Put<'_>, (Amo, *mut AmoMem, AmoBytes), c_int),
) -> c_int {
    guard("put_signal", || {
        let (transport, ref put, (amo, signal, signal_bytes), qp) = *call;
        // SAFETY: rules 1, 3 and 4.
        unsafe {
            let parts = Parts::new(put)?;
            let signal = request::atomic(put.pe, amo, signal, &signal_bytes)?;
            do_put_signal(transport, &parts, signal, qp)
        }
    })
}

/// Maximum parts of a put with signal without an allocation. NVSHMEM splits a payload at the
/// borders of heap chunks, so nearly all have one part or two.
const FEW: usize = 4;

/// # Safety
/// Rules 1, 3 and 4.
unsafe fn do_put_signal(
    transport: *mut Transport,
    parts: &Parts<'_>,
    signal: AtomicRequest<'_>,
    qp: c_int,
) -> Result<(), AbiError> {
    if qp == HOST_QP {
        // No release of NVSHMEM issues this.
        return Err(AbiError::NotSupported { what: "put with signal of a user thread" });
    }
    if signal.atomic.op.fetches() {
        return Err(AbiError::BadAtomic { code: signal.atomic.op as c_int });
    }
    // SAFETY: rule 1.
    let connected = unsafe { job(transport)? }.connected()?;
    let put = |parts: &[Request<'_>]| {
        let request = PutSignalRequest { parts, signal };
        // SAFETY: rule 3.
        unsafe { connected.with_proxy(|lane| lane.put_signal(&request)) }
    };
    let n = parts.len();
    if n == 0 {
        put(&[])?;
        return Ok(());
    }
    // SAFETY: there is a first part; rule 1.
    let mut few = [unsafe { parts.get(0)? }; FEW];
    if n <= FEW {
        for (at, part) in few.iter_mut().enumerate().take(n).skip(1) {
            // SAFETY: `at` is below `n`; rule 1.
            *part = unsafe { parts.get(at)? };
        }
        put(&few[..n])?;
    } else {
        let many = (0..n).map(|at| {
            // SAFETY: `at` is below `n`; rule 1.
            unsafe { parts.get(at) }
        });
        put(&many.collect::<Result<Vec<_>, _>>()?)?;
    }
    Ok(())
}
