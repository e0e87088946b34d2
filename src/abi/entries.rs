//! The functions that the host calls. Each reads its arguments and hands them to the engine.
//!
//! The safety of all of them rests on what the host promises; the rules are numbered in
//! [`super`]'s documentation.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use log::{info, warn};
use nvshmem_abi::{
    AmoBytes, AmoMem, AmoVerb3, AmoVerb6, MemHandle, PeInfo, RmaBytes, RmaBytesVector, RmaMem,
    RmaMemVector, RmaVerb, Transport, c,
};

use super::bootstrap::Collectives;
use super::connect::connect;
use super::counters;
use super::error::AbiError;
use super::guard::guard;
use super::host_maps::Origin;
use super::plugin::Connected;
use super::request::{self, Amo, Parts, Put, Remote};
use super::table;
use super::table::{boot_handle, destroy, is_alive, plugin};
use crate::engine::handle::HandleBytes;
use crate::engine::ids::Pe;
use crate::engine::lane::Request;
use crate::engine::message::{AtomicRequest, PutSignalRequest};
use crate::engine::port::{Access, Direction};
use crate::engine::short::{Common, Declined, Rest};
use crate::logging;

/// What this transport can do with a peer: put, get and atomics through the host.
const REACH: c_int = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ | c::NVT_CAP_CPU_ATOMICS;

pub(super) const HOST_QP: c_int = c::NVT_QP_HOST;

/// Every PE can be reached: the network decides, and connecting finds out.
///
/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn can_reach_peer(
    access: *mut c_int,
    _peer: *mut PeInfo,
    _transport: *mut Transport,
) -> c_int {
    guard("can_reach_peer", || {
        // SAFETY: rule 1.
        let access = unsafe { access.as_mut() }.ok_or(AbiError::Null { argument: "access" })?;
        *access = REACH;
        Ok(())
    })
}

/// Layouts 3a and 3b.
///
/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn connect_endpoints_3(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
) -> c_int {
    // SAFETY: rules 1 and 2.
    guard("connect_endpoints", || unsafe { do_connect(transport, devices, n_devices) })
}

/// Layouts 4 and later. The second call, which creates queue pairs, is declined by leaving the
/// indices at what the host put there: the one queue pair that all share.
///
/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn connect_endpoints_4(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
    _qp_indices: *mut c_int,
    _n_qps: c_int,
) -> c_int {
    // SAFETY: rules 1 and 2.
    guard("connect_endpoints", || unsafe { do_connect(transport, devices, n_devices) })
}

/// # Safety
/// Rules 1 and 2.
unsafe fn do_connect(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
) -> Result<(), AbiError> {
    // SAFETY: rule 1.
    let plugin = unsafe { plugin(transport)? };
    if plugin.is_connected() {
        info!(target: logging::INIT, "no further queue pairs: all use the proxy's rails");
        return Ok(());
    }
    // With no devices offered the host passes {-1}, or NULL and 0 from layout 7 on.
    let offered = plugin.offered_devices().len();
    let count = if devices.is_null() || offered == 0 { 0 } else { n_devices.max(0) as usize };
    let mut chosen = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: rule 1: the array has `n_devices` entries.
        let device = unsafe { devices.add(at).read() };
        if let Ok(device) = usize::try_from(device) {
            chosen.push(device);
        }
    }
    // SAFETY: rules 1 and 2: nobody else is in the host's collectives while PEs connect.
    let collectives = unsafe { Collectives::new(boot_handle(transport))? };
    plugin.set_connected(connect(plugin, &collectives, &chosen)?);
    Ok(())
}

/// Layout 3a passes (out, handle_in, buf, size, transport, local_only), layout 3b
/// (out, buf, size, transport, local_only), and both say that they are version 3. What they have
/// in common is six words in registers.
pub(super) type GetMemHandle3 =
    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// Layouts 3b and later.
pub(super) type GetMemHandle3b =
    unsafe extern "C" fn(*mut MemHandle, *mut c_void, usize, *mut Transport, bool) -> c_int;

/// Layouts 3a and 3b, told apart by the place of the transport pointer. No other argument can have
/// its value by chance: the transport is a heap block of ours, which is neither a size nor inside
/// memory that the host registers.
///
/// # Safety
/// Rule 1, for the form in which it was called.
pub(super) unsafe extern "C" fn get_mem_handle_3(
    out: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_int {
    guard("get_mem_handle", || {
        // A `bool` argument is in the low byte; the rest of the register may hold anything.
        let flag = |word: usize| word as u8 != 0;
        let (buf, size, transport, local_only) = if is_alive(fourth) {
            (second, third, fourth, flag(fifth))
        } else if is_alive(fifth) {
            (third, fourth, fifth, flag(sixth))
        } else {
            return Err(AbiError::UnknownTransport);
        };
        // SAFETY: rule 1.
        unsafe {
            register(out as *mut MemHandle, buf, size, transport as *mut Transport, local_only)
        }
    })
}

/// Layouts 4 and later.
///
/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn get_mem_handle(
    out: *mut MemHandle,
    buf: *mut c_void,
    size: usize,
    transport: *mut Transport,
    local_only: bool,
) -> c_int {
    guard("get_mem_handle", || {
        // SAFETY: rule 1.
        unsafe { register(out, buf as usize, size, transport, local_only) }
    })
}

/// # Safety
/// Rule 1.
unsafe fn register(
    out: *mut MemHandle,
    addr: usize,
    len: usize,
    transport: *mut Transport,
    local_only: bool,
) -> Result<(), AbiError> {
    if out.is_null() {
        return Err(AbiError::Null { argument: "handle" });
    }
    // SAFETY: rule 1.
    let connected = unsafe { plugin(transport)? }.connected()?;
    let access = if local_only { Access::Local } else { Access::LocalAndRemote };
    let memory = connected.regions.memory();
    let origin = if memory.uses_devices() {
        // SAFETY: rule 1. The host changes its maps on the thread that registers, and not meanwhile.
        unsafe { table::host_maps(transport).origin(addr) }.unwrap_or_else(|fault| {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                warn!(target: logging::MEM, "the host's maps of addresses are not used: {fault}");
            });
            Origin::default()
        })
    } else {
        Origin::default()
    };
    let register = || connected.regions.register(addr, len, access);
    let handle = memory.with_origin(addr, origin, register)?;
    if let Err(error) = connected.consistency.prepare(&connected.regions) {
        // Without it the memory must not be used: its flags might come before its data.
        connected.regions.release(&handle)?;
        return Err(error);
    }
    // SAFETY: rule 1; a handle has no alignment.
    unsafe { out.cast::<HandleBytes>().write(handle) };
    Ok(())
}

/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn release_mem_handle(
    handle: *mut MemHandle,
    transport: *mut Transport,
) -> c_int {
    guard("release_mem_handle", || {
        // SAFETY: rule 1; a handle has no alignment.
        let handle = unsafe { handle.cast::<HandleBytes>().as_ref() };
        let handle = handle.ok_or(AbiError::Null { argument: "handle" })?;
        // SAFETY: rule 1.
        let connected = unsafe { plugin(transport)? }.connected()?;
        Ok(connected.regions.release(handle)?)
    })
}

/// Also after a failed `connect_endpoints`, or none.
///
/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn finalize(transport: *mut Transport) -> c_int {
    guard("finalize", || {
        if is_alive(transport as usize) {
            // SAFETY: alive, and rule 2.
            unsafe {
                let plugin = plugin(transport)?;
                counters::tell(plugin);
                plugin.end_leftovers();
            }
        }
        // SAFETY: rule 2.
        unsafe { destroy(transport) }
    })
}

/// Writes what is open to the log.
///
/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn show_info(transport: *mut Transport, _style: c_int) -> c_int {
    guard("show_info", || {
        // SAFETY: rule 1.
        match unsafe { plugin(transport)? }.connected() {
            Ok(connected) => info!(target: logging::INIT, "{}", connected.report),
            Err(_) => info!(target: logging::INIT, "not connected"),
        }
        Ok(())
    })
}

/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn progress(transport: *mut Transport) -> c_int {
    guard("progress", || {
        // SAFETY: rule 1.
        let connected = unsafe { plugin(transport)? }.connected()?;
        // SAFETY: rule 3.
        unsafe { connected.progress() }?;
        Ok(())
    })
}

/// # Safety
/// Rules 1, 3 and 4.
pub(super) unsafe extern "C" fn rma(
    transport: *mut Transport,
    pe: c_int,
    verb: RmaVerb,
    remote: *mut RmaMem,
    local: *mut RmaMem,
    bytes: RmaBytes,
    qp: c_int,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        match rma_at_once(transport, pe, remote, local, qp, &verb, &bytes) {
            Some(status) => status,
            None => rma_at_length(transport, pe, remote, local, qp, verb, bytes),
        }
    }
}

/// Every operation that is not the common one: those that wait for room, for a fence or for their
/// end, those of user threads, and wrong ones.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
pub(super) unsafe fn rma_at_length(
    transport: *mut Transport,
    pe: c_int,
    remote: *const RmaMem,
    local: *const RmaMem,
    qp: c_int,
    verb: RmaVerb,
    bytes: RmaBytes,
) -> c_int {
    guard("rma", || {
        // SAFETY: rule 1.
        let connected = unsafe { plugin(transport)? }.connected()?;
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

/// The proxy's common operation; gives its status. None if it is of another kind; nothing has happened
/// then.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
pub(super) unsafe fn rma_at_once(
    transport: *mut Transport,
    pe: c_int,
    remote: *const RmaMem,
    local: *const RmaMem,
    qp: c_int,
    verb: &RmaVerb,
    bytes: &RmaBytes,
) -> Option<c_int> {
    if qp == HOST_QP {
        return None;
    }
    // The only entry that does not look whether the host has lost its transport.
    // SAFETY: rule 1, so the transport is not null.
    let connected = unsafe { table::plugin_of(transport) }.connection()?;
    // SAFETY: rule 1.
    let Remote { pe, handle, addr } = unsafe { request::remote_side(pe, remote)? };
    let common = |direction, (local, len)| Common { direction, pe, handle, addr, local, len };
    // Apart for each operation, so that the compiler makes a straight way of each.
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if verb.desc == request::PUT {
            let from = request::contiguous(verb, local, bytes)?;
            return Some(start(connected, common(Direction::Write, from), local));
        }
        // Read again, or the compiler makes one choice among all values, with PUT in the middle.
        match (&raw const verb.desc).read_volatile() {
            request::GET | request::G => {
                let into = request::contiguous(verb, local, bytes)?;
                Some(start(connected, common(Direction::Read, into), local))
            }
            request::P => {
                let value = request::word(local, bytes)?;
                Some(start(connected, common(Direction::Write, value), local))
            }
            _ => None,
        }
    }
}

/// Starts an operation of the common kind on the proxy's lane. What panics in none of its steps needs no
/// guard; the rest has one.
///
/// # Safety
/// Rules 1, 3 and 4; `local` is not null.
#[inline(always)]
unsafe fn start(connected: &Connected, common: Common<'_>, local: *const RmaMem) -> c_int {
    // A closure on the lane would be called, not inlined.
    // SAFETY: rule 3; the reference ends with this expression.
    match unsafe { &mut *connected.proxy_lane() }.start_at_once(common) {
        Ok(()) => c::NVT_STATUS_SUCCESS,
        // SAFETY: by contract.
        Err(Rest::Whole(common)) => unsafe { start_whole(connected, common, local) },
        // SAFETY: rule 3.
        Err(Rest::Declined(declined)) => unsafe { start_declined(connected, declined) },
    }
}

/// An operation that the short way does not do.
///
/// # Safety
/// As for [`start`].
#[cold]
#[inline(never)]
unsafe fn start_whole(connected: &Connected, common: Common<'_>, local: *const RmaMem) -> c_int {
    guard("rma", || {
        // SAFETY: by contract.
        let request = unsafe { request::of_common(common, local) };
        // SAFETY: rule 3.
        Ok(unsafe { connected.with_proxy(|lane| lane.start(&request)) }?)
    })
}

/// An operation that the fabric has not taken at once.
///
/// # Safety
/// Rule 3.
#[cold]
#[inline(never)]
unsafe fn start_declined(connected: &Connected, declined: Declined) -> c_int {
    // SAFETY: rule 3.
    guard("rma", || Ok(unsafe { connected.with_proxy(|lane| lane.start_declined(declined)) }?))
}

/// Layouts 3a and 3b.
///
/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn fence_3(
    transport: *mut Transport,
    pe: c_int,
    is_proxy: c_int,
) -> c_int {
    // SAFETY: rules 1 and 3.
    guard("fence", || unsafe { do_fence(transport, pe, is_proxy) })
}

/// Layouts 4 and later. All queue pairs of the proxy are one lane here, so a fence always orders
/// across them.
///
/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn fence_4(
    transport: *mut Transport,
    pe: c_int,
    qp: c_int,
    _is_multi: c_int,
) -> c_int {
    // SAFETY: rules 1 and 3.
    guard("fence", || unsafe { do_fence(transport, pe, qp) })
}

/// # Safety
/// Rules 1 and 3.
unsafe fn do_fence(transport: *mut Transport, pe: c_int, qp: c_int) -> Result<(), AbiError> {
    // SAFETY: rule 1.
    let connected = unsafe { plugin(transport)? }.connected()?;
    let pe = request::pe(pe)?;
    if qp == HOST_QP {
        connected.host.fence(pe)?;
    } else {
        // SAFETY: rule 3.
        unsafe { connected.with_proxy(|lane| lane.fence(pe)) }?;
    }
    Ok(())
}

/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn quiet(transport: *mut Transport, pe: c_int, qp: c_int) -> c_int {
    guard("quiet", || {
        // SAFETY: rule 1.
        let connected = unsafe { plugin(transport)? }.connected()?;
        let pe = request::pe(pe)?;
        if qp == HOST_QP {
            connected.host.quiet(pe)?;
        } else {
            // SAFETY: rule 3.
            unsafe { connected.with_proxy(|lane| lane.quiet(pe)) }?;
        }
        Ok(())
    })
}

/// Only where it may have something to do: see [`Plugin::enforces_consistency`](super::plugin::Plugin).
///
/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn enforce_cst(transport: *mut Transport) -> c_int {
    guard("enforce_cst", || {
        // SAFETY: rule 1.
        let connected = unsafe { plugin(transport)? }.connected()?;
        // SAFETY: rule 3.
        unsafe { connected.enforce_consistency() }
    })
}

/// Layouts 3a to 5.
///
/// # Safety
/// Rules 1, 3 and 4.
pub(super) unsafe extern "C" fn amo_3(
    transport: *mut Transport,
    pe: c_int,
    _ret: *mut c_void,
    verb: AmoVerb3,
    mem: *mut AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    let amo = Amo { code: verb.desc, float: false };
    // SAFETY: rules 1, 3 and 4.
    unsafe { any_amo(transport, pe, amo, mem, bytes, qp) }
}

/// Layouts 6 and 7.
///
/// # Safety
/// Rules 1, 3 and 4.
pub(super) unsafe extern "C" fn amo_6(
    transport: *mut Transport,
    pe: c_int,
    _ret: *mut c_void,
    verb: AmoVerb6,
    mem: *mut AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    let amo = Amo { code: verb.desc, float: verb.is_float != 0 };
    // SAFETY: rules 1, 3 and 4.
    unsafe { any_amo(transport, pe, amo, mem, bytes, qp) }
}

/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
unsafe fn any_amo(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        if amo_at_once(transport, pe, amo, mem, bytes, qp).is_some() {
            return c::NVT_STATUS_SUCCESS;
        }
        amo_at_length(transport, pe, amo, mem, bytes, qp)
    }
}

/// The common atomic: one that fetches nothing. None if it is of another kind; nothing has happened
/// then.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
unsafe fn amo_at_once(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> Option<()> {
    if qp == HOST_QP {
        return None;
    }
    // SAFETY: rule 1, so the transport is not null.
    let connected = unsafe { table::plugin_of(transport) }.connection()?;
    // SAFETY: rule 1.
    let (handle, addr, atomic) = unsafe { request::common_atomic(amo, mem, bytes)? };
    // A negative PE becomes one that no job has.
    let pe = Pe(pe as u32);
    // SAFETY: rule 3; the reference ends with this function.
    let lane = unsafe { &mut *connected.proxy_lane() };
    lane.atomic_at_once(pe, handle, addr, &atomic).then_some(())
}

/// Every atomic that is not the common one.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe fn amo_at_length(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    // SAFETY: rules 1, 3 and 4.
    guard("amo", || unsafe { do_amo(transport, pe, amo, mem, &bytes, qp) })
}

/// # Safety
/// Rules 1, 3 and 4.
unsafe fn do_amo(
    transport: *mut Transport,
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: &AmoBytes,
    qp: c_int,
) -> Result<(), AbiError> {
    if qp == HOST_QP {
        // No release of NVSHMEM issues them: its host interface has none for remote PEs.
        return Err(AbiError::NotSupported { what: "an atomic operation of a user thread" });
    }
    // SAFETY: rule 1.
    let connected = unsafe { plugin(transport)? }.connected()?;
    // SAFETY: rule 1.
    let request = unsafe { request::atomic(pe, amo, mem, bytes)? };
    // SAFETY: rule 3.
    unsafe { connected.with_proxy(|lane| lane.atomic(&request)) }?;
    Ok(())
}

/// Layouts 4 and 5.
///
/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(super) unsafe extern "C" fn put_signal_4(
    transport: *mut Transport,
    pe: c_int,
    write_verb: RmaVerb,
    remote: *const RmaMemVector,
    local: *const RmaMemVector,
    bytes: *const RmaBytesVector,
    signal_verb: AmoVerb3,
    signal: *mut AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    let amo = Amo { code: signal_verb.desc, float: false };
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        let put = Put { pe, verb: &write_verb, remote, local, bytes };
        if put_signal_at_once(transport, &put, amo, signal, signal_bytes, qp).is_some() {
            return c::NVT_STATUS_SUCCESS;
        }
        put_signal_at_length(transport, &put, amo, signal, signal_bytes, qp)
    }
}

/// Layouts 6 and 7.
///
/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(super) unsafe extern "C" fn put_signal_6(
    transport: *mut Transport,
    pe: c_int,
    write_verb: RmaVerb,
    remote: *const RmaMemVector,
    local: *const RmaMemVector,
    bytes: *const RmaBytesVector,
    signal_verb: AmoVerb6,
    signal: *mut AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    let amo = Amo { code: signal_verb.desc, float: signal_verb.is_float != 0 };
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        let put = Put { pe, verb: &write_verb, remote, local, bytes };
        if put_signal_at_once(transport, &put, amo, signal, signal_bytes, qp).is_some() {
            return c::NVT_STATUS_SUCCESS;
        }
        put_signal_at_length(transport, &put, amo, signal, signal_bytes, qp)
    }
}

/// The common put with signal: one piece, of few bytes. None if it is of another kind; nothing has
/// happened then.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(always)]
unsafe fn put_signal_at_once(
    transport: *mut Transport,
    put: &Put<'_>,
    amo: Amo,
    signal: *const AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> Option<()> {
    if qp == HOST_QP {
        return None;
    }
    // SAFETY: rule 1, so the transport is not null.
    let connected = unsafe { table::plugin_of(transport) }.connection()?;
    // SAFETY: rules 1 and 4.
    let common = unsafe { request::common_signal(put, amo, signal, signal_bytes)? };
    // SAFETY: rule 3; the reference ends with this function.
    let lane = unsafe { &mut *connected.proxy_lane() };
    lane.put_signal_at_once(&common).then_some(())
}

/// Every put with signal that is not the common one.
///
/// # Safety
/// Rules 1, 3 and 4.
#[inline(never)]
unsafe fn put_signal_at_length(
    transport: *mut Transport,
    put: &Put<'_>,
    amo: Amo,
    signal: *const AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    guard("put_signal", || {
        // SAFETY: rules 1, 3 and 4.
        unsafe {
            let parts = Parts::new(put)?;
            let signal = request::atomic(put.pe, amo, signal, &signal_bytes)?;
            do_put_signal(transport, &parts, signal, qp)
        }
    })
}

/// Parts of a put with signal that need no memory of their own. NVSHMEM splits a payload at the
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
        // No release of NVSHMEM issues it.
        return Err(AbiError::NotSupported { what: "put with signal of a user thread" });
    }
    if signal.atomic.op.fetches() {
        return Err(AbiError::BadAtomic { code: signal.atomic.op as c_int });
    }
    // SAFETY: rule 1.
    let connected = unsafe { plugin(transport)? }.connected()?;
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
