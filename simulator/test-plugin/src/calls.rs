//! The operations of the table.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use nvshmem_abi::{Major, c};

use crate::checks::{self, Handle, ensure};
use crate::mover::{self, Action, Pending};
use crate::table::given;
use crate::{CURRENT, Fail, Plugin, State};

const ACCESS: i32 = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ | c::NVT_CAP_CPU_ATOMICS;

type T = *mut c::nvt_transport;

/// Runs a call's body; what it finds wrong becomes a status.
fn call(name: &str, t: T, body: impl FnOnce(&Plugin) -> Result<(), String>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the pointer is null or the plugin, which lives until finalize has returned.
        let plugin = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        match plugin {
            Some(plugin) if plugin.raw == t.cast() => body(plugin),
            _ => Err("not our transport".to_string()),
        }
    }));
    let text = match result {
        Ok(Ok(())) => return c::NVT_STATUS_SUCCESS,
        Ok(Err(text)) => text,
        Err(_) => "panic".to_string(),
    };
    eprintln!("test-plugin: {name}: {text}");
    c::NVT_STATUS_INTERNAL
}

pub(crate) extern "C" fn can_reach_peer(access: *mut i32, peer: *mut c::nvt_pe_info, t: T) -> i32 {
    call("can_reach_peer", t, |plugin| {
        checks::filled(plugin)?;
        let mut state = plugin.lock();
        // SAFETY: the host passes both, valid through the call.
        let pe = unsafe { (*peer).pe };
        ensure!(pe == state.reached, "asked for PE {pe} after {} others", state.reached);
        state.reached += 1;
        // SAFETY: as above.
        unsafe { *access = ACCESS };
        Ok(())
    })
}

pub(crate) extern "C" fn connect_3(t: T, ids: *mut i32, n: i32) -> i32 {
    call("connect_endpoints", t, |plugin| connect(plugin, ids, n))
}

pub(crate) extern "C" fn connect_4(t: T, ids: *mut i32, n: i32, out: *mut i32, qps: i32) -> i32 {
    call("connect_endpoints", t, |plugin| {
        if plugin.lock().connected {
            ensure!(ids.is_null() && n == 0, "queue pairs with devices");
            ensure!(!out.is_null() && qps > 0, "no place for {qps} queue pairs");
            return Ok(());
        }
        ensure!(out.is_null() && qps == 0, "{qps} queue pairs in the first connect_endpoints");
        connect(plugin, ids, n)
    })
}

fn connect(plugin: &Plugin, ids: *mut i32, n: i32) -> Result<(), String> {
    let g = given(plugin);
    let reached = plugin.lock().reached;
    ensure!(reached == g.n_pes, "connect_endpoints after {reached} of {} PEs", g.n_pes);
    for pe in 0..g.n_pes as usize {
        // SAFETY: the host's table has an entry for each PE.
        let cap = unsafe { *g.cap.add(pe) };
        ensure!(cap == ACCESS, "cap of PE {pe} is {cap}");
    }
    let ids = match n {
        0 => &[],
        // SAFETY: the host passes so many.
        _ => unsafe { std::slice::from_raw_parts(ids, n as usize) },
    };
    let devices = plugin.device_pointers.len() as i32;
    match (devices, plugin.major) {
        (0, Major::V7) => ensure!(ids.is_empty(), "devices {ids:?} where there are none"),
        (0, _) => ensure!(ids == [-1], "devices {ids:?} where there are none"),
        _ => ensure!(
            !ids.is_empty() && ids.iter().all(|id| (0..devices).contains(id)),
            "devices {ids:?} of {devices}"
        ),
    }
    ensure!(plugin.fail != Fail::Connect, "told to fail");

    // SAFETY: the host keeps the handle as long as the transport.
    let boot = unsafe { *g.boot };
    let (Some(allgather), Some(alltoall), Some(barrier)) =
        (boot.allgather, boot.alltoall, boot.barrier)
    else {
        return Err("a bootstrap without collectives".into());
    };
    let n_pes = g.n_pes as usize;
    let own = std::process::id() as i32;
    let mut pids = vec![0_i32; n_pes];
    let to: Vec<u8> = (0..n_pes).map(|to| (g.my_pe as usize * 16 + to) as u8).collect();
    let mut from = vec![0_u8; n_pes];
    // SAFETY: the buffers have room for a contribution of each PE.
    let statuses = unsafe {
        [
            allgather((&raw const own).cast(), pids.as_mut_ptr().cast(), 4, g.boot),
            alltoall(to.as_ptr().cast(), from.as_mut_ptr().cast(), 1, g.boot),
            barrier(g.boot),
        ]
    };
    ensure!(statuses == [0; 3], "bootstrap returned {statuses:?}");
    let expected: Vec<u8> = (0..n_pes).map(|pe| (pe * 16 + g.my_pe as usize) as u8).collect();
    ensure!(from == expected, "alltoall gave {from:?} instead of {expected:?}");
    let mut state = plugin.lock();
    state.pids = pids;
    state.connected = true;
    Ok(())
}

/// Six arguments of pointer size: enough for either form of get_mem_handle.
pub(crate) type AnyForm = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> i32;

pub(crate) unsafe extern "C" fn get_mem_handle(
    out: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> i32 {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or the plugin, which lives until finalize has returned.
    let ours = unsafe { current.as_ref() }.map_or(0, |plugin| plugin.raw as usize);
    let short = fourth == ours;
    let (buf, size, t, local_only) =
        if short { (second, third, fourth, fifth) } else { (third, fourth, fifth, sixth) };
    let t = std::ptr::with_exposed_provenance_mut(t);
    call("get_mem_handle", t, |plugin| {
        let g = given(plugin);
        let mut state = plugin.lock();
        ensure!(state.connected, "a registration before connect_endpoints");
        ensure!(short || plugin.major == Major::V3, "six arguments");
        let form = *state.form_3a.get_or_insert(!short);
        ensure!(form != short, "the form has changed");
        ensure!(matches!(local_only & 0xff, 0 | 1), "local_only is {}", local_only & 0xff);
        let local_only = local_only & 0xff == 1;
        ensure!(short || (second == 0) == local_only, "handle_in {second:#x} of a 3a host");
        if !local_only {
            let offset = (buf as u64).wrapping_sub(g.heap_base);
            ensure!(offset % g.granularity == 0, "a chunk at {offset} of the heap");
            ensure!(size as u64 == g.granularity, "a chunk of {size} bytes");
        }
        ensure!(plugin.fail != Fail::Register, "told to fail");
        state.next_region += 1;
        let (region, start, len) = (state.next_region, buf as u64, size as u64);
        state.regions.insert(region, (start, len));
        let handle = Handle { pid: std::process::id() as i32, region, start, len };
        let out = std::ptr::with_exposed_provenance_mut::<c::nvt_mem_handle>(out);
        // SAFETY: the host passes 512 bytes; the type has no alignment.
        unsafe { out.write(handle.encode()) };
        Ok(())
    })
}

pub(crate) extern "C" fn release_mem_handle(handle: *mut c::nvt_mem_handle, t: T) -> i32 {
    call("release_mem_handle", t, |plugin| {
        let handle = Handle::decode(handle)?;
        let mut state = plugin.lock();
        let inside = |at: usize| (at as u64).wrapping_sub(handle.start) < handle.len;
        let pending = state.queues.iter().flatten().any(|pending| match pending.action {
            Action::Write(at) | Action::Read(at) => inside(at),
            Action::Value(_) => false,
        });
        let known = state.regions.remove(&handle.region);
        ensure!(known == Some((handle.start, handle.len)), "a handle not registered here");
        ensure!(!pending, "memory released while operations on it are pending");
        Ok(())
    })
}

pub(crate) extern "C" fn finalize(t: T) -> i32 {
    let status = call("finalize", t, |plugin| {
        let state = plugin.lock();
        checks::canary(plugin, &state)?;
        ensure!(state.regions.is_empty(), "{} handles not released", state.regions.len());
        Ok(())
    });
    let current = CURRENT.load(Ordering::Acquire);
    if !current.is_null() {
        // SAFETY: finalize is the last call, made when no other is in the plugin.
        unsafe { crate::end(current) };
    }
    status
}

pub(crate) extern "C" fn show_info(t: T, style: i32) -> i32 {
    call("show_info", t, |plugin| {
        ensure!(style == 0, "style {style}");
        println!("test-plugin: layout {}", plugin.major);
        Ok(())
    })
}

pub(crate) extern "C" fn progress(t: T) -> i32 {
    let status = call("progress", t, |plugin| {
        let mut state = plugin.lock();
        let queue = checks::queue_of(&mut state, c::NVT_QP_DEFAULT)?;
        ensure!(!state.more[queue], "progress where another rma was promised");
        for queue in 0..2 {
            let n = state.queues[queue].len().min(8);
            drain(&mut state, queue, |_| true, n)?;
        }
        Ok(())
    });
    // An idle plugin gives up the core.
    std::thread::yield_now();
    status
}

/// Does up to `most` operations of a queue, newest first.
fn drain(
    state: &mut State,
    queue: usize,
    which: impl Fn(&Pending) -> bool,
    most: usize,
) -> Result<(), String> {
    let mut done = 0;
    let mut at = state.queues[queue].len();
    while at > 0 && done < most {
        at -= 1;
        if which(&state.queues[queue][at]) {
            let pending = state.queues[queue].remove(at);
            let pid = state.pids[pending.pe as usize];
            // SAFETY: the host keeps the local side valid until the operation is complete.
            unsafe { pending.perform(pid) }?;
            done += 1;
        }
    }
    Ok(())
}

pub(crate) extern "C" fn rma(
    t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *mut c::nvt_rma_memdesc,
    local: *mut c::nvt_rma_memdesc,
    bytes: c::nvt_rma_bytesdesc,
    qp: i32,
) -> i32 {
    call("rma", t, |plugin| submit(plugin, pe, &verb, remote, local, &bytes, qp, false))
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) extern "C" fn rma_with_hints_6(
    t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *mut c::nvt_rma_memdesc,
    local: *mut c::nvt_rma_memdesc,
    bytes: c::nvt_rma_bytesdesc,
    qp: i32,
    attrs: *const c::nvt_op_attrs_6,
) -> i32 {
    call("rma_with_hints", t, |plugin| {
        // SAFETY: the host passes attributes, valid through the call.
        let flags = unsafe { *attrs }.flags as i32;
        ensure!(matches!(flags, 0 | c::NVT_OP_FLAG_MORE_FOLLOWS), "flags {flags}");
        submit(plugin, pe, &verb, remote, local, &bytes, qp, flags != 0)
    })
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) extern "C" fn rma_with_hints_7(
    t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *mut c::nvt_rma_memdesc,
    local: *mut c::nvt_rma_memdesc,
    bytes: c::nvt_rma_bytesdesc,
    qp: i32,
    attrs: *const c::nvt_op_attrs_7,
) -> i32 {
    call("rma_with_hints", t, |plugin| {
        // SAFETY: the host passes attributes, valid through the call.
        let attrs = unsafe { *attrs };
        let none = (attrs.hints, attrs.issuer_id, attrs.region_id);
        ensure!(none == (0, 0, 0), "hints, issuer, region are {none:?}");
        let flags = attrs.flags as i32;
        ensure!(matches!(flags, 0 | c::NVT_OP_FLAG_MORE_FOLLOWS), "flags {flags}");
        submit(plugin, pe, &verb, remote, local, &bytes, qp, flags != 0)
    })
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
fn submit(
    plugin: &Plugin,
    pe: i32,
    verb: &c::nvt_rma_verb,
    remote: *const c::nvt_rma_memdesc,
    local: *const c::nvt_rma_memdesc,
    bytes: &c::nvt_rma_bytesdesc,
    qp: i32,
    more: bool,
) -> Result<(), String> {
    ensure!(plugin.fail != Fail::Rma, "told to fail");
    checks::qp_of_operation(qp)?;
    let mut state = plugin.lock();
    let queue = checks::queue_of(&mut state, qp)?;
    let (action, remote, len, blocks) = checks::rma(&state, pe, verb, remote, local, bytes)?;
    let most = given(plugin).max_op_len;
    ensure!(len <= most, "{len} bytes where {most} are the most");
    state.more[queue] = more;
    let pending = Pending { pe, action, remote, len: len as usize };
    if blocks {
        let pid = state.pids[pe as usize];
        // SAFETY: the host keeps the local side valid until the operation is complete.
        return unsafe { pending.perform(pid) };
    }
    state.queues[queue].push(pending);
    Ok(())
}

pub(crate) extern "C" fn fence_3(t: T, pe: i32, is_proxy: i32) -> i32 {
    call("fence", t, |plugin| {
        let me = given(plugin).my_pe;
        ensure!(is_proxy == 0 || pe != me, "a fence for oneself, which no 3a or 3b host sends");
        fence(plugin, pe, is_proxy)
    })
}

pub(crate) extern "C" fn fence_4(t: T, pe: i32, qp: i32, is_multi: i32) -> i32 {
    call("fence", t, |plugin| {
        ensure!(is_multi == 0, "is_multi is {is_multi}");
        fence(plugin, pe, qp)
    })
}

fn fence(plugin: &Plugin, pe: i32, qp: i32) -> Result<(), String> {
    checks::qp_of_operation(qp)?;
    let mut state = plugin.lock();
    let queue = checks::queue_of(&mut state, qp)?;
    drain(&mut state, queue, |p| p.pe == pe, usize::MAX)
}

pub(crate) extern "C" fn quiet(t: T, pe: i32, qp: i32) -> i32 {
    call("quiet", t, |plugin| {
        checks::qp_of_quiet(plugin, qp)?;
        let n_pes = given(plugin).n_pes;
        ensure!((0..n_pes).contains(&pe), "quiet for PE {pe} of {n_pes}");
        if plugin.fail == Fail::QuietHangs && pe == n_pes - 1 {
            loop {
                std::thread::park();
            }
        }
        let mut state = plugin.lock();
        let queue = checks::queue_of(&mut state, qp)?;
        ensure!(!state.more[queue], "quiet where another rma was promised");
        drain(&mut state, queue, |p| p.pe == pe, usize::MAX)
    })
}

pub(crate) extern "C" fn enforce_cst(t: T) -> i32 {
    call("enforce_cst", t, |plugin| {
        let mut state = plugin.lock();
        checks::queue_of(&mut state, c::NVT_QP_DEFAULT).map(drop)
    })
}

pub(crate) extern "C" fn region_flush(t: T, role: i32, issuer: u64, region: u64) -> i32 {
    call("region_flush", t, |_| {
        ensure!(role == c::NVT_REGION_ROLE_HOST, "role {role}");
        ensure!(issuer == 1 && region >= 1, "issuer {issuer}, region {region}");
        Ok(())
    })
}

pub(crate) extern "C" fn amo_3(
    t: T,
    pe: i32,
    ret: *mut c_void,
    verb: c::nvt_amo_verb_3,
    mem: *mut c::nvt_amo_memdesc,
    bytes: c::nvt_amo_bytesdesc,
    qp: i32,
) -> i32 {
    call("amo", t, |plugin| {
        let unset = [verb.is_fetch, verb.is_val, verb.is_cmp, bytes.name_type];
        ensure!(unset == [checks::POISON_INT; 4], "fields no host initialises: {unset:?}");
        ensure!(ret.is_null(), "a return pointer");
        amo(plugin, pe, verb.desc, false, mem, bytes.elembytes, qp)
    })
}

pub(crate) extern "C" fn amo_6(
    t: T,
    pe: i32,
    ret: *mut c_void,
    verb: c::nvt_amo_verb_6,
    mem: *mut c::nvt_amo_memdesc,
    bytes: c::nvt_amo_bytesdesc,
    qp: i32,
) -> i32 {
    call("amo", t, |plugin| {
        let unset = [verb.is_fetch, verb.is_val, verb.is_cmp, bytes.name_type];
        ensure!(unset == [checks::POISON_INT; 4], "fields no host initialises: {unset:?}");
        ensure!(ret.is_null() && matches!(verb.is_float, 0 | 1), "is_float is {}", verb.is_float);
        amo(plugin, pe, verb.desc, verb.is_float == 1, mem, bytes.elembytes, qp)
    })
}

fn amo(
    plugin: &Plugin,
    pe: i32,
    desc: i32,
    is_float: bool,
    mem: *const c::nvt_amo_memdesc,
    width: i32,
    qp: i32,
) -> Result<(), String> {
    ensure!(qp == c::NVT_QP_DEFAULT, "an atomic operation on queue pair {qp}");
    let mut state = plugin.lock();
    checks::queue_of(&mut state, qp)?;
    apply(&state, pe, desc, is_float, mem, width)
}

/// Reads, changes and writes the word, and returns the old value where that is asked for.
fn apply(
    state: &State,
    pe: i32,
    desc: i32,
    is_float: bool,
    mem: *const c::nvt_amo_memdesc,
    width: i32,
) -> Result<(), String> {
    ensure!(matches!(width, 4 | 8), "an atomic operation of {width} bytes");
    // SAFETY: the host passes a descriptor, valid through the call.
    let mem = unsafe { *mem };
    let at = checks::remote_side(state, pe, &raw const mem.remote_memdesc, width as u64)?;
    let pid = state.pids[pe as usize];
    let mut word = 0_u64;
    let local = (&raw mut word).cast::<c_void>();
    // SAFETY: a local of eight bytes.
    unsafe { mover::copy(pid, local, at, width as usize, false) }?;
    let old = word;
    word = match desc {
        c::NVT_AMO_INC | c::NVT_AMO_FETCH_INC => old.wrapping_add(1),
        c::NVT_AMO_SET | c::NVT_AMO_SIGNAL | c::NVT_AMO_SIGNAL_SET | c::NVT_AMO_SWAP => mem.val,
        c::NVT_AMO_ADD | c::NVT_AMO_FETCH_ADD if is_float && width == 8 => {
            (f64::from_bits(old) + f64::from_bits(mem.val)).to_bits()
        }
        c::NVT_AMO_ADD | c::NVT_AMO_FETCH_ADD if is_float => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(mem.val as u32)).to_bits())
        }
        c::NVT_AMO_ADD | c::NVT_AMO_FETCH_ADD | c::NVT_AMO_SIGNAL_ADD => old.wrapping_add(mem.val),
        c::NVT_AMO_AND | c::NVT_AMO_FETCH_AND => old & mem.val,
        c::NVT_AMO_OR | c::NVT_AMO_FETCH_OR => old | mem.val,
        c::NVT_AMO_XOR | c::NVT_AMO_FETCH_XOR => old ^ mem.val,
        c::NVT_AMO_COMPARE_SWAP => {
            if old == mem.cmp {
                mem.val
            } else {
                old
            }
        }
        c::NVT_AMO_FETCH => old,
        other => return Err(format!("atomic operation {other}")),
    };
    // SAFETY: a local of eight bytes.
    unsafe { mover::copy(pid, (&raw mut word).cast(), at, width as usize, true) }?;
    if desc > c::NVT_AMO_END_OF_NONFETCH {
        checks::own_handle(state, mem.ret_handle, mem.retptr as u64, 16)?;
        let ret = mem.retptr.cast::<c::nvt_g_elem>();
        // SAFETY: the return location is in registered memory of this process, as just checked,
        // and aligned as the host's elements are.
        unsafe {
            AtomicU64::from_ptr(&raw mut (*ret).data).store(old, Ordering::Relaxed);
            AtomicU64::from_ptr(&raw mut (*ret).flag).store(mem.retflag, Ordering::Release);
        }
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) extern "C" fn put_signal_4(
    t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *const c::nvt_memdesc_vector,
    local: *const c::nvt_memdesc_vector,
    bytes: *const c::nvt_bytesdesc_vector,
    sig_verb: c::nvt_amo_verb_3,
    sig: *mut c::nvt_amo_memdesc,
    sig_bytes: c::nvt_amo_bytesdesc,
    qp: i32,
) -> i32 {
    call("put_signal", t, |plugin| {
        let rest = [sig_verb.is_fetch, sig_verb.is_val, sig_verb.is_cmp];
        ensure!(rest == [0; 3], "the signal's verb has {rest:?}");
        let signal = (sig_verb.desc, sig.cast_const(), sig_bytes.elembytes);
        put_signal(plugin, pe, &verb, [remote, local], bytes, signal, qp)
    })
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
pub(crate) extern "C" fn put_signal_6(
    t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *const c::nvt_memdesc_vector,
    local: *const c::nvt_memdesc_vector,
    bytes: *const c::nvt_bytesdesc_vector,
    sig_verb: c::nvt_amo_verb_6,
    sig: *mut c::nvt_amo_memdesc,
    sig_bytes: c::nvt_amo_bytesdesc,
    qp: i32,
) -> i32 {
    call("put_signal", t, |plugin| {
        let rest = [sig_verb.is_fetch, sig_verb.is_val, sig_verb.is_cmp, sig_verb.is_float];
        ensure!(rest == [0; 4], "the signal's verb has {rest:?}");
        let signal = (sig_verb.desc, sig.cast_const(), sig_bytes.elembytes);
        put_signal(plugin, pe, &verb, [remote, local], bytes, signal, qp)
    })
}

fn put_signal(
    plugin: &Plugin,
    pe: i32,
    verb: &c::nvt_rma_verb,
    sides: [*const c::nvt_memdesc_vector; 2],
    bytes: *const c::nvt_bytesdesc_vector,
    signal: (i32, *const c::nvt_amo_memdesc, i32),
    qp: i32,
) -> Result<(), String> {
    ensure!(qp == c::NVT_QP_DEFAULT, "put_signal on queue pair {qp}");
    ensure!((verb.desc, verb.is_nbi) == (c::NVT_OP_PUT, 1), "put_signal with {verb:?}");
    let (desc, sig, width) = signal;
    ensure!(matches!(desc, c::NVT_AMO_SIGNAL_SET | c::NVT_AMO_SIGNAL_ADD), "signal {desc}");
    ensure!(width == 8, "a signal of {width} bytes");
    // SAFETY: the host passes three vectors, valid through the call.
    let (remote, local, bytes) = unsafe { (&*sides[0], &*sides[1], &*bytes) };
    let n = remote.len();
    ensure!(local.len() == n && bytes.len() == n, "vectors of different lengths");
    let mut state = plugin.lock();
    checks::queue_of(&mut state, qp)?;
    for i in 0..n {
        // SAFETY: each of the vectors has `n` elements.
        let (remote, local, bytes) =
            unsafe { (remote.begin.add(i), local.begin.add(i), *bytes.begin.add(i)) };
        let (action, remote, len, _) = checks::rma(&state, pe, verb, remote, local, &bytes)?;
        ensure!(len > 0, "an empty piece");
        let len = len as usize;
        ensure!(matches!(action, Action::Write(_)), "a read in put_signal");
        let pid = state.pids[pe as usize];
        // SAFETY: the host keeps the local side valid until the operation is complete.
        unsafe { Pending { pe, action, remote, len }.perform(pid) }?;
    }
    apply(&state, pe, desc, false, sig, width)
}
