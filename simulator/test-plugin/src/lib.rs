//! A plugin without a network, for the simulator's own tests.
//!
//! It moves data between the processes of one machine with `process_vm_writev`, and checks how it
//! is called: which fields the host has filled and which it must not touch, the shape and the
//! content of arguments, the order of calls, and which thread makes them. What it finds wrong it
//! prints, and returns a status that ends the PE.
//!
//! Non-blocking operations wait in a queue until `progress`, `quiet` or `fence`, and then run
//! newest first: nobody may rely on more order than the interface promises. Atomic operations are
//! not atomic between processes; one PE at a time may change a word.
//!
//! Environment: `TEST_PLUGIN_FAIL` (see [`Fail`]), `TEST_PLUGIN_DEVICES` (number of NICs to offer),
//! `TEST_PLUGIN_MAX_OP_LEN` (bytes).

mod calls;
mod checks;
mod mover;
mod table;

use std::collections::HashMap;
use std::ffi::CString;
use std::str::FromStr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use nvshmem_abi::{Major, c};

/// Bytes allocated for a transport: the largest layout and a margin.
const ALLOCATED: usize = 512;

/// What a host must leave alone behind its own layout.
const CANARY: u8 = 0xc7;

/// What to do wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fail {
    Nothing,
    /// `init`: nvshmemt_init returns an error.
    Init,
    /// `connect`: connect_endpoints returns an error before its first collective.
    Connect,
    /// `register`: get_mem_handle returns an error.
    Register,
    /// `rma`: rma returns an error.
    Rma,
    /// `quiet-hangs`: quiet does not return.
    QuietHangs,
    /// `null-quiet`: the table has no quiet.
    NullQuiet,
}

/// The one transport of this process.
struct Plugin {
    major: Major,
    raw: *mut u8,
    fail: Fail,
    device_paths: Vec<CString>,
    device_pointers: Vec<*mut std::ffi::c_char>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// PEs asked about with can_reach_peer.
    reached: i32,
    connected: bool,
    /// Process of each PE.
    pids: Vec<i32>,
    /// Registered memory by its number: start and length.
    regions: HashMap<u64, (u64, u64)>,
    next_region: u64,
    /// Whether get_mem_handle was called in the form of layout 3a.
    form_3a: Option<bool>,
    /// Operations not done yet, of user threads and of the proxy thread.
    queues: [Vec<mover::Pending>; 2],
    /// Whether a call promised that another follows, per queue.
    more: [bool; 2],
    proxy: Option<ThreadId>,
}

static CURRENT: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

impl Plugin {
    /// Bytes of the transport that belong to the host's layout.
    fn layout_size(&self, state: &State) -> usize {
        match (self.major, state.form_3a) {
            (Major::V3, Some(true)) => size_of::<c::nvt_transport_3a>(),
            (major, _) => {
                major.layouts().iter().map(|l| l.transport_size()).max().unwrap_or(ALLOCATED)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn env<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The plugin's entry point.
///
/// # Safety
/// As NVSHMEM calls it: `out` is valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvshmemt_init(
    out: *mut *mut c::nvt_transport,
    cuda_table: *mut std::ffi::c_void,
    api_version: i32,
) -> i32 {
    let fail = match std::env::var("TEST_PLUGIN_FAIL").as_deref() {
        Ok("init") => Fail::Init,
        Ok("connect") => Fail::Connect,
        Ok("register") => Fail::Register,
        Ok("rma") => Fail::Rma,
        Ok("quiet-hangs") => Fail::QuietHangs,
        Ok("null-quiet") => Fail::NullQuiet,
        _ => Fail::Nothing,
    };
    let Ok(major) = Major::from_api_version(api_version) else {
        return c::NVT_STATUS_INVALID_VALUE;
    };
    if fail == Fail::Init {
        eprintln!("test-plugin: told to fail in nvshmemt_init");
        return c::NVT_STATUS_NOT_SUPPORTED;
    }
    if cuda_table.is_null() || !CURRENT.load(Ordering::Acquire).is_null() {
        eprintln!("test-plugin: no table of CUDA functions, or a second transport");
        return c::NVT_STATUS_INVALID_VALUE;
    }
    mover::allow_all_processes();
    let n_devices: usize = env("TEST_PLUGIN_DEVICES").unwrap_or(0);
    let device_paths: Vec<CString> = (0..n_devices)
        .filter_map(|i| CString::new(format!("/sys/devices/test/{i}")).ok())
        .collect();
    let device_pointers = device_paths.iter().map(|p| p.as_ptr().cast_mut()).collect();
    let raw = Box::into_raw(Box::new([CANARY_WORD; ALLOCATED / 8])).cast::<u8>();
    let state = Mutex::default();
    let plugin = Plugin { major, raw, fail, device_paths, device_pointers, state };
    let plugin = Box::into_raw(Box::new(plugin));
    // SAFETY: `raw` has room for the largest layout and is aligned for it; `plugin` is ours.
    unsafe { table::fill(&*plugin, plugin, api_version) };
    CURRENT.store(plugin, Ordering::Release);
    // SAFETY: the caller vouches for `out`.
    unsafe { *out = raw.cast() };
    c::NVT_STATUS_SUCCESS
}

const CANARY_WORD: u64 = u64::from_ne_bytes([CANARY; 8]);

/// Gives back everything. The host calls this through `finalize`.
///
/// # Safety
/// No other call is in the plugin, nor follows.
unsafe fn end(plugin: *mut Plugin) {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: both were made by Box::into_raw in nvshmemt_init, and the caller is the last user.
    unsafe {
        let plugin = Box::from_raw(plugin);
        drop(Box::from_raw(plugin.raw.cast::<[u64; ALLOCATED / 8]>()));
        drop(plugin.device_paths);
    }
}
