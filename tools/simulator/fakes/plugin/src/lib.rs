//! A plugin for layout 7 without a network, which is right unless `TEST_PLUGIN_WRONG` names what is
//! to be wrong with it: what the simulator must find.
//!
//! It moves bytes between the processes of one machine with `process_vm_writev`, at once. Atomic
//! operations are not atomic between processes; one PE at a time may change a word.

mod mover;

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nvshmem_abi::c;

use mover::copy;

type T = *mut c::nvt_transport;
type Outcome = Result<(), String>;

/// What is wrong with the plugin.
fn wrong() -> &'static str {
    static WRONG: OnceLock<String> = OnceLock::new();
    WRONG.get_or_init(|| std::env::var("TEST_PLUGIN_WRONG").unwrap_or_default())
}

fn is(what: &str) -> bool {
    wrong() == what
}

/// Process of each PE, and what a wrong plugin has put off.
#[derive(Default)]
struct State {
    pids: Vec<i32>,
    put_off: Vec<Write>,
}

/// Bytes on their way to a PE, or to this process.
#[derive(Clone, Copy)]
struct Write {
    pid: i32,
    from: Source,
    to: u64,
    len: usize,
}

#[derive(Clone, Copy)]
enum Source {
    Address(usize),
    Value(u64),
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pid(pe: i32) -> Result<i32, String> {
    let state = state();
    let pid = state.as_ref().and_then(|state| state.pids.get(pe as usize));
    pid.copied().ok_or_else(|| format!("no PE {pe}"))
}

impl Write {
    fn perform(self) -> Outcome {
        let mut value = match self.from {
            Source::Value(value) => value,
            Source::Address(_) => 0,
        };
        let from = match self.from {
            Source::Value(_) => (&raw mut value).cast(),
            Source::Address(from) => std::ptr::with_exposed_provenance_mut::<c_void>(from),
        };
        // SAFETY: the value is a local, and the host keeps memory valid until the operation is
        // complete. For a plugin that is wrong the kernel checks the address.
        unsafe { copy(self.pid, from, self.to, self.len, true) }
    }

    /// Does it, or puts it off until nobody waits for it any more.
    fn perform_unless(self, put_off: bool) -> Outcome {
        if !put_off {
            return self.perform();
        }
        if let Some(state) = state().as_mut() {
            state.put_off.push(self);
        }
        Ok(())
    }
}

/// Does what was put off.
fn perform_late() -> Outcome {
    let late = state().as_mut().map(|state| std::mem::take(&mut state.put_off));
    late.unwrap_or_default().into_iter().try_for_each(Write::perform)
}

/// The status of a call, with its reason on the error output.
fn status(call: &str, outcome: Outcome) -> i32 {
    match outcome {
        Ok(()) => c::NVT_STATUS_SUCCESS,
        Err(text) => {
            eprintln!("test-plugin: {call}: {text}");
            c::NVT_STATUS_INTERNAL
        }
    }
}

fn unless(what: &str) -> Outcome {
    if is(what) { Err(String::from("told to fail")) } else { Ok(()) }
}

/// The plugin's entry point.
///
/// # Safety
/// As NVSHMEM calls it: `out` is valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvshmemt_init(out: *mut T, _cuda_table: *mut c_void, version: i32) -> i32 {
    if is("init fails") {
        return c::NVT_STATUS_NOT_SUPPORTED;
    }
    mover::allow_all_processes();
    *state() = Some(State::default());
    let mut transport = Box::<c::nvt_transport_7>::default();
    transport.api_version = version;
    transport.attr = c::NVT_ATTR_CONNECTED;
    transport.is_successfully_initialized = 1;
    let ops = &mut transport.host_ops;
    ops.can_reach_peer = Some(can_reach_peer);
    ops.connect_endpoints = Some(connect);
    ops.get_mem_handle = Some(get_mem_handle);
    ops.release_mem_handle = Some(release_mem_handle);
    ops.rma = Some(rma);
    ops.amo = Some(amo);
    ops.put_signal = Some(put_signal);
    ops.fence = Some(fence);
    ops.quiet = if is("no quiet") { None } else { Some(quiet) };
    ops.progress = Some(progress);
    ops.finalize = Some(finalize);
    // SAFETY: the caller vouches for `out`.
    unsafe { *out = Box::into_raw(transport).cast() };
    c::NVT_STATUS_SUCCESS
}

extern "C" fn can_reach_peer(access: *mut i32, _peer: *mut c::nvt_pe_info, _t: T) -> i32 {
    let unreachable = is("reaches nobody");
    let all = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ | c::NVT_CAP_CPU_ATOMICS;
    // SAFETY: the host passes a place for it.
    unsafe { *access = if unreachable { 0 } else { all } };
    c::NVT_STATUS_SUCCESS
}

extern "C" fn connect(t: T, _ids: *mut i32, _n: i32, _qps: *mut i32, _n_qps: i32) -> i32 {
    let connected = unless("connect fails").and_then(|()| {
        // SAFETY: the host has filled the transport, and keeps the bootstrap as long.
        let (boot, n_pes) = unsafe {
            let t = t.cast::<c::nvt_transport_7>();
            ((*t).boot_handle, (*t).n_pes as usize)
        };
        let own = std::process::id() as i32;
        let mut pids = vec![0_i32; n_pes];
        // SAFETY: the handle is the host's; the buffer has room for a number of each PE.
        let gathered = unsafe {
            let allgather = (*boot).allgather.ok_or("no allgather")?;
            allgather((&raw const own).cast(), pids.as_mut_ptr().cast(), 4, boot)
        };
        if let Some(state) = state().as_mut() {
            state.pids = pids;
        }
        if gathered == 0 { Ok(()) } else { Err(format!("allgather returned {gathered}")) }
    });
    status("connect_endpoints", connected)
}

extern "C" fn get_mem_handle(
    out: *mut c::nvt_mem_handle,
    start: *mut c_void,
    _len: usize,
    _t: T,
    _local: bool,
) -> i32 {
    if is("touches memory") {
        // SAFETY: it is not, for memory of a device: that is what is wrong.
        unsafe { start.cast::<u8>().read_volatile() };
    }
    let mut handle = c::nvt_mem_handle { bytes: [0; 512] };
    if !is("empty handles") {
        handle.bytes[..8].copy_from_slice(&(start as u64).to_le_bytes());
    }
    // SAFETY: the host passes 512 bytes; the type has no alignment.
    unsafe { out.write(handle) };
    status("get_mem_handle", unless("registration fails"))
}

extern "C" fn release_mem_handle(_handle: *mut c::nvt_mem_handle, _t: T) -> i32 {
    c::NVT_STATUS_SUCCESS
}

extern "C" fn rma(
    _t: T,
    pe: i32,
    verb: c::nvt_rma_verb,
    remote: *mut c::nvt_rma_memdesc,
    local: *mut c::nvt_rma_memdesc,
    bytes: c::nvt_rma_bytesdesc,
    _qp: i32,
) -> i32 {
    // SAFETY: the host passes two descriptors, valid through the call.
    let (remote, local) = unsafe { (*remote, *local) };
    let len = bytes.nelems as usize * bytes.elembytes as usize;
    let done = unless("operations fail").and_then(|()| match verb.desc {
        c::NVT_OP_P => value(pe, &remote, &local, len),
        c::NVT_OP_PUT => put(pe, &remote, &local, len, is("quiet early")),
        // SAFETY: the host keeps the local side valid until the operation is complete.
        _ => unsafe { copy(pid(pe)?, local.ptr, remote.ptr as u64, len, false) },
    });
    status("rma", done)
}

fn put(
    pe: i32,
    remote: &c::nvt_rma_memdesc,
    local: &c::nvt_rma_memdesc,
    len: usize,
    put_off: bool,
) -> Outcome {
    let mut from = local.ptr.expose_provenance();
    if is("uninitialised offset") {
        // What no host initialises of a local side.
        from = from.wrapping_add(local.offset as usize);
    }
    let len = match wrong() {
        "short puts" => len.saturating_sub(1),
        "long puts" => len + 1,
        _ => len,
    };
    let from = Source::Address(from);
    Write { pid: pid(pe)?, from, to: remote.ptr as u64, len }.perform_unless(put_off)
}

fn value(pe: i32, remote: &c::nvt_rma_memdesc, local: &c::nvt_rma_memdesc, len: usize) -> Outcome {
    let (pid, to) = (pid(pe)?, remote.ptr as u64);
    if is("keeps a value's address") {
        let from = Source::Address(local.ptr.expose_provenance());
        return Write { pid, from, to, len }.perform_unless(true);
    }
    let read = if is("reads behind a value") { 8 } else { len };
    let mut word = 0_u64;
    for at in 0..read {
        // SAFETY: the value is valid for its bytes until the call returns; no plugin may read more,
        // and one that is wrong does.
        let byte = unsafe { local.ptr.cast::<u8>().add(at).read_volatile() };
        word |= u64::from(byte) << (8 * at);
    }
    Write { pid, from: Source::Value(word), to, len }.perform()
}

extern "C" fn amo(
    _t: T,
    pe: i32,
    _ret: *mut c_void,
    verb: c::nvt_amo_verb_6,
    mem: *mut c::nvt_amo_memdesc,
    bytes: c::nvt_amo_bytesdesc,
    _qp: i32,
) -> i32 {
    // SAFETY: the host passes a descriptor, valid through the call.
    let mem = unsafe { *mem };
    status("amo", apply(pe, verb.desc, &mem, bytes.elembytes as usize))
}

/// Reads, changes and writes the word, and returns the old value where that is asked for.
fn apply(pe: i32, desc: i32, mem: &c::nvt_amo_memdesc, width: usize) -> Outcome {
    let (pid, at) = (pid(pe)?, mem.remote_memdesc.ptr as u64);
    let mut old = 0_u64;
    // SAFETY: a local of eight bytes.
    unsafe { copy(pid, (&raw mut old).cast(), at, width, false) }?;
    let new = match desc {
        c::NVT_AMO_SIGNAL_SET => mem.val,
        c::NVT_AMO_ADD | c::NVT_AMO_FETCH_ADD => old.wrapping_add(mem.val),
        other => return Err(format!("atomic operation {other}")),
    };
    Write { pid, from: Source::Value(new), to: at, len: width }
        .perform_unless(is("loses atomics") && desc == c::NVT_AMO_ADD)?;
    if desc > c::NVT_AMO_END_OF_NONFETCH {
        let own = std::process::id() as i32;
        let old = if is("fetches the new value") { new } else { old };
        let fetched = [(old, is("flag before value")), (mem.retflag, false)];
        for ((value, put_off), at) in fetched.into_iter().zip([0, 8]) {
            let to = mem.retptr as u64 + at;
            Write { pid: own, from: Source::Value(value), to, len: 8 }.perform_unless(put_off)?;
        }
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
extern "C" fn put_signal(
    _t: T,
    pe: i32,
    _verb: c::nvt_rma_verb,
    remote: *const c::nvt_memdesc_vector,
    local: *const c::nvt_memdesc_vector,
    bytes: *const c::nvt_bytesdesc_vector,
    sig_verb: c::nvt_amo_verb_6,
    sig: *mut c::nvt_amo_memdesc,
    _sig_bytes: c::nvt_amo_bytesdesc,
    _qp: i32,
) -> i32 {
    // SAFETY: the host passes three vectors of equal length and a descriptor, valid through the
    // call.
    let done = unsafe {
        (0..(*remote).len()).try_for_each(|i| {
            let (remote, local) = (&*(*remote).begin.add(i), &*(*local).begin.add(i));
            let len = (*(*bytes).begin.add(i)).nelems as usize;
            put(pe, remote, local, len, is("signal before data"))
        })
    };
    // SAFETY: as above.
    status("put_signal", done.and_then(|()| apply(pe, sig_verb.desc, unsafe { &*sig }, 8)))
}

extern "C" fn fence(_t: T, _pe: i32, _qp: i32, _is_multi: i32) -> i32 {
    c::NVT_STATUS_SUCCESS
}

extern "C" fn quiet(_t: T, _pe: i32, _qp: i32) -> i32 {
    match wrong() {
        "hangs" => loop {
            std::thread::park();
        },
        "exits" => std::process::exit(3),
        // SAFETY: raise has no precondition.
        "dies" => unsafe { libc::raise(libc::SIGKILL) },
        "keeps a value's address" => status("quiet", perform_late()),
        _ => c::NVT_STATUS_SUCCESS,
    }
}

extern "C" fn progress(_t: T) -> i32 {
    // An idle plugin gives up the core.
    std::thread::yield_now();
    c::NVT_STATUS_SUCCESS
}

extern "C" fn finalize(t: T) -> i32 {
    if is("leaves shared memory") {
        let name = format!("/dev/shm/nvshmem-sim-test-{}:0", std::process::id());
        // The test says so when it is not there.
        let _ = std::fs::write(name, [0; 64]);
    }
    let done = perform_late().and(unless("finalize fails"));
    *state() = None;
    // SAFETY: made by Box::into_raw in nvshmemt_init, and this is the last call.
    drop(unsafe { Box::from_raw(t.cast::<c::nvt_transport_7>()) });
    status("finalize", done)
}
