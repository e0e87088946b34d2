//! Entries: the functions that the host calls, except those that transfer data
//! ([`crate::abi::calls`]). Each reads its arguments and passes them to the engine.
//!
//! Safety rests on the host's promises, the numbered rules in [`super`]'s documentation.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use log::{info, warn};
use nvshmem_abi::{MemHandle, PeInfo, Transport, c};

use crate::abi::calls::request::{self, HOST_QP};
use crate::abi::collectives::HostCollectives;
use crate::abi::error::{AbiError, guard};
use crate::abi::state::{self, boot_handle, destroy, is_alive, job};
use crate::job::Origin;
use crate::job::counters::exit;
use crate::logging;
use engine::error::EngineError;
use engine::port::Access;
use engine::wire::handle::HandleBytes;

const REACH: c_int = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ | c::NVT_CAP_CPU_ATOMICS;

/// Reports every PE as reachable: connecting finds out which are.
///
/// # Safety
/// Rule 1.
pub(crate) unsafe extern "C" fn can_reach_peer(
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

/// # Safety
/// Rules 1 and 2.
pub(crate) unsafe extern "C" fn connect_endpoints_3(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { connect_endpoints_4(transport, devices, n_devices, std::ptr::null_mut(), 0) }
}

/// Layouts 4 and later. Declines the second call, which creates queue pairs, by leaving the indices
/// unchanged: all share one queue pair.
///
/// # Safety
/// Rules 1 and 2.
pub(crate) unsafe extern "C" fn connect_endpoints_4(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
    _qp_indices: *mut c_int,
    _n_qps: c_int,
) -> c_int {
    guard("connect_endpoints", || {
        // SAFETY: rule 1.
        let job = unsafe { job(transport)? };
        if job.connection().is_some() {
            info!(target: logging::INIT, "no further queue pairs: all use the proxy's rails");
            return Ok(());
        }
        // With no devices offered the host passes {-1}, or NULL and 0 from layout 7 on.
        let offered = job.offered_devices().len();
        let count = if devices.is_null() || offered == 0 { 0 } else { n_devices.max(0) as usize };
        let mut chosen = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: rule 1: the array has `n_devices` entries.
            let device = unsafe { devices.add(at).read() };
            if let Ok(device) = usize::try_from(device) {
                chosen.push(device);
            }
        }
        // SAFETY: rules 1 and 2: no other thread uses the host's collectives while PEs connect.
        let collectives = unsafe { HostCollectives::new(boot_handle(transport))? };
        job.connect(&collectives, &chosen)?;
        // SAFETY: rule 1.
        unsafe { state::watch(transport) };
        Ok(())
    })
}

/// Layout 3a passes (out, handle_in, buf, size, transport, local_only), layout 3b (out, buf, size,
/// transport, local_only), and both claim version 3. Common to both are six words in registers.
pub(crate) type GetMemHandle3 =
    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// Layouts 3b and later.
pub(crate) type GetMemHandle3b =
    unsafe extern "C" fn(*mut MemHandle, *mut c_void, usize, *mut Transport, bool) -> c_int;

/// Returns memory, its length, the transport, and whether it is for local use only, from the
/// arguments of layouts 3a and 3b after `out`. Only the layout's own position can have the
/// transport pointer: a heap block of ours is neither a size nor inside memory that the host
/// registers. None if it is at neither position.
pub(crate) fn registration_of_3(words: [usize; 5]) -> Option<(usize, usize, usize, bool)> {
    // A `bool` argument is in the low byte; the rest of the register may hold anything.
    let flag = |word: usize| word as u8 != 0;
    match words {
        [buf, size, transport, local_only, _] | [_, buf, size, transport, local_only]
            if is_alive(transport) =>
        {
            Some((buf, size, transport, flag(local_only)))
        }
        _ => None,
    }
}

/// # Safety
/// Rule 1, for the form in which it was called.
pub(crate) unsafe extern "C" fn get_mem_handle_3(
    out: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_int {
    guard("get_mem_handle", || {
        let words = [second, third, fourth, fifth, sixth];
        let (buf, size, transport, local_only) =
            registration_of_3(words).ok_or(AbiError::UnknownTransport)?;
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
pub(crate) unsafe extern "C" fn get_mem_handle(
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
    if addr == 0 {
        return Err(AbiError::Null { argument: "buf" });
    }
    // SAFETY: rule 1.
    let connected = unsafe { job(transport)? }.connected()?;
    let access = if local_only { Access::Local } else { Access::LocalAndRemote };
    let memory = connected.regions.memory();
    let origin = if memory.uses_devices() {
        // SAFETY: rule 1. The host changes its maps on the thread that registers, and not
        // meanwhile.
        unsafe { state::host_maps(transport).origin(addr) }.unwrap_or_else(|fault| {
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
    let handle = memory.origins.during(addr, origin, register)?;
    // SAFETY: rule 1; a handle has no alignment.
    unsafe { out.cast::<HandleBytes>().write(handle) };
    Ok(())
}

/// # Safety
/// Rule 1.
pub(crate) unsafe extern "C" fn release_mem_handle(
    handle: *mut MemHandle,
    transport: *mut Transport,
) -> c_int {
    guard("release_mem_handle", || {
        // SAFETY: rule 1; a handle has no alignment.
        let handle = unsafe { handle.cast::<HandleBytes>().as_ref() };
        let handle = handle.ok_or(AbiError::Null { argument: "handle" })?;
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        let release = || connected.regions.release(handle);
        Ok(connected.release_patiently(release, EngineError::is_in_use)?)
    })
}

/// Also called after a failed `connect_endpoints`, or without one.
///
/// # Safety
/// Rules 1 and 2.
pub(crate) unsafe extern "C" fn finalize(transport: *mut Transport) -> c_int {
    guard("finalize", || {
        if is_alive(transport as usize) {
            // SAFETY: alive, and rule 2.
            unsafe {
                let job = job(transport)?;
                job.tell_counters();
                job.drain_before_close();
            }
        }
        // SAFETY: rule 2.
        unsafe { destroy(transport) }
    })
}

/// # Safety
/// Rule 1.
pub(crate) unsafe extern "C" fn show_info(transport: *mut Transport, _style: c_int) -> c_int {
    guard("show_info", || {
        // SAFETY: rule 1.
        match unsafe { job(transport)? }.connected() {
            Ok(connected) => info!(target: logging::INIT, "{}", connected.report),
            Err(_) => info!(target: logging::INIT, "not connected"),
        }
        Ok(())
    })
}

/// # Safety
/// Rules 1 and 3.
pub(crate) unsafe extern "C" fn progress(transport: *mut Transport) -> c_int {
    guard("progress", || {
        // SAFETY: rule 1.
        let job = unsafe { job(transport)? };
        let connected = job.connected()?;
        // SAFETY: rule 3.
        let progressed = unsafe { connected.progress() };
        // Also where the lane has failed: the host may exit because of that.
        if progressed.is_err() || exit::is_waiting() {
            // SAFETY: rule 3.
            unsafe { job.tell_counters() };
        }
        Ok(progressed?)
    })
}

/// # Safety
/// Rules 1 and 3.
pub(crate) unsafe extern "C" fn fence_3(
    transport: *mut Transport,
    pe: c_int,
    is_proxy: c_int,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { fence_4(transport, pe, is_proxy, 0) }
}

/// Layouts 4 and later. The proxy's queue pairs are one lane, which a fence orders as a whole.
///
/// # Safety
/// Rules 1 and 3.
pub(crate) unsafe extern "C" fn fence_4(
    transport: *mut Transport,
    pe: c_int,
    qp: c_int,
    _is_multi: c_int,
) -> c_int {
    guard("fence", || {
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        let pe = request::pe(pe)?;
        if qp == HOST_QP {
            connected.host.fence(pe)?;
        } else {
            // SAFETY: rule 3.
            unsafe { connected.with_proxy(|lane| lane.fence(pe)) }?;
        }
        Ok(())
    })
}

/// # Safety
/// Rules 1 and 3.
pub(crate) unsafe extern "C" fn quiet(transport: *mut Transport, pe: c_int, qp: c_int) -> c_int {
    guard("quiet", || {
        // SAFETY: rule 1.
        let job = unsafe { job(transport)? };
        let connected = job.connected()?;
        let pe = request::pe(pe)?;
        if qp == HOST_QP {
            connected.host.quiet(pe)?;
        } else {
            // SAFETY: rule 3.
            let ended = unsafe { connected.with_proxy(|lane| lane.quiet(pe)) };
            // The host exits because of an error. SAFETY: rule 3.
            ended.inspect_err(|_| unsafe { job.tell_counters() })?;
        }
        Ok(())
    })
}

/// In the table only if it may be needed: see [`Job::enforces_consistency`](crate::job::Job).
///
/// # Safety
/// Rule 1.
pub(crate) unsafe extern "C" fn enforce_cst(transport: *mut Transport) -> c_int {
    guard("enforce_cst", || {
        // SAFETY: rule 1.
        let connected = unsafe { job(transport)? }.connected()?;
        Ok(connected.enforce_consistency()?)
    })
}
