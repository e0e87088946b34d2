//! What the arguments of a call must look like.

use std::thread;

use nvshmem_abi::{Major, c};

use crate::mover::Action;
use crate::table::given;
use crate::{CANARY, Plugin, State};

/// What the simulator writes into arguments that NVSHMEM leaves uninitialised.
const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;
pub(crate) const POISON_INT: i32 = POISON as u32 as i32;

const MAGIC: u64 = 0x7465_7374_706c_7567;

/// Fails the call with a text unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $($text:tt)+) => {
        if !$cond {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// Which queue an operation belongs to: 0 user, 1 proxy. Checks the thread against it.
pub(crate) fn queue_of(state: &mut State, qp: i32) -> Result<usize, String> {
    let here = thread::current().id();
    if qp == c::NVT_QP_HOST {
        ensure!(state.proxy != Some(here), "the proxy thread used the user's queue pair");
        return Ok(0);
    }
    let proxy = *state.proxy.get_or_insert(here);
    ensure!(proxy == here, "two threads act as the proxy");
    Ok(1)
}

/// The queue pair that an operation of the proxy's or the user's has.
pub(crate) fn qp_of_operation(qp: i32) -> Result<(), String> {
    ensure!(qp == c::NVT_QP_HOST || qp == c::NVT_QP_DEFAULT, "queue pair {qp}");
    Ok(())
}

/// The queue pair of a quiet.
pub(crate) fn qp_of_quiet(plugin: &Plugin, qp: i32) -> Result<(), String> {
    let proxy = if plugin.major == Major::V3 { c::NVT_QP_DEFAULT } else { c::NVT_QP_ALL };
    ensure!(qp == c::NVT_QP_HOST || qp == proxy, "quiet on queue pair {qp}");
    Ok(())
}

/// A handle's contents.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub(crate) pid: i32,
    pub(crate) region: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Handle {
    pub(crate) fn encode(self) -> c::nvt_mem_handle {
        let mut handle = c::nvt_mem_handle { bytes: [0; 512] };
        let words = [MAGIC, self.pid as u64, self.region, self.start, self.len];
        for (to, word) in handle.bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        handle
    }

    /// Reads a handle at any alignment.
    pub(crate) fn decode(at: *const c::nvt_mem_handle) -> Result<Handle, String> {
        ensure!(!at.is_null(), "a handle is NULL");
        // SAFETY: the host passes pointers to 512 bytes; the type has no alignment.
        let bytes = unsafe { (*at).bytes };
        let mut words =
            bytes.chunks_exact(8).filter_map(|w| Some(u64::from_le_bytes(w.try_into().ok()?)));
        let mut word = || words.next().unwrap_or(0);
        ensure!(word() == MAGIC, "a handle of somebody else");
        Ok(Handle { pid: word() as i32, region: word(), start: word(), len: word() })
    }

    fn covers(&self, at: u64, len: u64) -> bool {
        at >= self.start && at - self.start <= self.len && len <= self.len - (at - self.start)
    }
}

/// The remote side of an operation: its handle is that PE's, and covers it.
pub(crate) fn remote_side(
    state: &State,
    pe: i32,
    desc: *const c::nvt_rma_memdesc,
    len: u64,
) -> Result<u64, String> {
    ensure!(!desc.is_null(), "no remote side");
    // SAFETY: the host passes a descriptor that is valid through the call.
    let desc = unsafe { *desc };
    let handle = Handle::decode(desc.handle)?;
    let pid = state.pids.get(pe as usize).copied();
    ensure!(pid == Some(handle.pid), "PE {pe} with a handle of process {}", handle.pid);
    let at = desc.ptr as u64;
    ensure!(handle.covers(at, len), "{len} remote bytes at {at:#x} cross a chunk");
    ensure!(desc.offset == at - handle.start, "offset {} in the chunk", desc.offset);
    Ok(at)
}

/// The local side of a put or get.
pub(crate) fn local_side(
    state: &State,
    desc: *const c::nvt_rma_memdesc,
    len: u64,
) -> Result<usize, String> {
    ensure!(!desc.is_null(), "no local side");
    // SAFETY: the host passes a descriptor that is valid through the call.
    let desc = unsafe { *desc };
    let at = desc.ptr as u64;
    if !desc.handle.is_null() {
        own_handle(state, desc.handle, at, len)?;
    }
    ensure!(desc.offset == POISON, "the local offset is initialised, which no host does");
    Ok(desc.ptr.expose_provenance())
}

/// A handle of this process that is registered and covers the bytes.
pub(crate) fn own_handle(
    state: &State,
    handle: *const c::nvt_mem_handle,
    at: u64,
    len: u64,
) -> Result<(), String> {
    let handle = Handle::decode(handle)?;
    let known = state.regions.get(&handle.region) == Some(&(handle.start, handle.len));
    ensure!(handle.pid == std::process::id() as i32 && known, "a local handle not registered here");
    ensure!(handle.covers(at, len), "{len} local bytes at {at:#x} cross a chunk");
    Ok(())
}

/// What an rma call asks for: the action, its remote address and length, and whether it blocks.
pub(crate) fn rma(
    state: &State,
    pe: i32,
    verb: &c::nvt_rma_verb,
    remote: *const c::nvt_rma_memdesc,
    local: *const c::nvt_rma_memdesc,
    bytes: &c::nvt_rma_bytesdesc,
) -> Result<(Action, u64, u64, bool), String> {
    ensure!(state.connected, "rma before connect_endpoints");
    ensure!(matches!(verb.is_nbi, 0 | 1), "is_nbi is {}", verb.is_nbi);
    if verb.desc == c::NVT_OP_P {
        let len = bytes.elembytes;
        ensure!(bytes.nelems == 1 && matches!(len, 1 | 2 | 4 | 8), "a P of {len} bytes");
        let poisoned = (bytes.srcstride as u64, bytes.deststride as u64, verb.is_stream);
        ensure!(poisoned == (POISON, POISON, POISON_INT), "a P with fields no host initialises");
        ensure!(!local.is_null(), "a P without a value");
        // SAFETY: the host passes a descriptor that is valid through the call.
        let local = unsafe { *local };
        ensure!(local.handle.is_null(), "a P with a local handle");
        let mut value = [0; 8];
        // SAFETY: the value is valid for its bytes until the call returns. No more are read.
        unsafe {
            local.ptr.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr(), len as usize);
        }
        let at = remote_side(state, pe, remote, len as u64)?;
        return Ok((Action::Value(u64::from_le_bytes(value)), at, len as u64, false));
    }
    let plain = (bytes.elembytes, bytes.srcstride, bytes.deststride, verb.is_stream);
    ensure!(plain == (1, 1, 1, 0), "elembytes, strides, is_stream are {plain:?}");
    ensure!(verb.cstrm.is_null(), "a CUDA stream");
    let len = bytes.nelems;
    let at = remote_side(state, pe, remote, len)?;
    let here = local_side(state, local, len)?;
    let action = match verb.desc {
        c::NVT_OP_PUT => Action::Write(here),
        c::NVT_OP_GET | c::NVT_OP_G => Action::Read(here),
        other => return Err(format!("operation {other}")),
    };
    Ok((action, at, len, verb.is_nbi == 0))
}

/// What the host has filled before it asks for peers.
pub(crate) fn filled(plugin: &Plugin) -> Result<(), String> {
    let g = given(plugin);
    ensure!(g.api_version / 10000 == plugin.major.number(), "api_version {}", g.api_version);
    ensure!(!g.boot.is_null() && !g.cap.is_null() && g.heap_base != 0, "fields left NULL");
    // A static heap begins where CUDA has put it: only its chunks' offsets are multiples.
    ensure!(g.granularity >= 4096 && g.heap_base % 4096 == 0, "the heap is not aligned");
    ensure!(g.max_op_len > 0, "max_op_len is 0");
    ensure!((0..g.n_pes).contains(&g.my_pe), "PE {} of {}", g.my_pe, g.n_pes);
    // SAFETY: the host keeps the handle as long as the transport.
    let boot = unsafe { *g.boot };
    ensure!((boot.pg_rank, boot.pg_size) == (g.my_pe, g.n_pes), "another rank in the bootstrap");
    ensure!(boot.version == 30000, "bootstrap version {}", boot.version);
    ensure!((0..boot.npes_node).contains(&boot.mype_node), "PE {} of its host", boot.mype_node);
    Ok(())
}

/// What lies behind the host's layout is as it was.
pub(crate) fn canary(plugin: &Plugin, state: &State) -> Result<(), String> {
    let size = plugin.layout_size(state);
    // SAFETY: the allocation has this many bytes.
    let all = unsafe { std::slice::from_raw_parts(plugin.raw, crate::ALLOCATED) };
    let touched = all[size..].iter().position(|b| *b != CANARY);
    ensure!(
        touched.is_none(),
        "byte {} of a transport of {size} was written",
        size + touched.unwrap_or(0)
    );
    Ok(())
}
