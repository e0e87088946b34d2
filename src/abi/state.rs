//! State of a transport: the host's structure, in its layout, and the job.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nvshmem_abi::{
    Bootstrap, Major, Transport, Transport3b, Transport4, Transport6, Transport7, c,
};

use crate::abi::entries::enforce_cst;
use crate::abi::error::AbiError;
use crate::abi::host_maps::HostMaps;
use crate::abi::operations::{ops_3, ops_4, ops_6, ops_7};
use crate::job::Job;
use crate::job::heartbeat::Heartbeat;

/// The structure in the host's layout. The newest is the largest, so an older host writes only into
/// its own part. Layout 3a is a prefix of 3b in every field in use.
#[repr(C)]
union AnyLayout {
    v3: Transport3b,
    v4: Transport4,
    v6: Transport6,
    v7: Transport7,
}

#[repr(C)]
struct Block {
    /// First, so that the host's pointer is a pointer to the block.
    transport: AnyLayout,
    major: Major,
    /// Heartbeat of the proxy thread, once it may run. Dropped before the job.
    heartbeat: OnceLock<Heartbeat>,
    job: Job,
    /// Memory that `device_pci_paths` points to.
    paths: PciPaths,
}

struct PciPaths {
    pointers: Vec<*mut c_char>,
    _strings: Vec<CString>,
}

/// Addresses of live blocks, by which `get_mem_handle_3` finds the transport among its arguments,
/// and `finalize` refuses a transport it has freed.
static ALIVE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

pub(crate) fn is_alive(address: usize) -> bool {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner).contains(&address)
}

pub(crate) fn create(major: Major, api_version: c_int, job: Job) -> *mut Transport {
    let mut paths = PciPaths::new(&job);
    let n_devices = paths.pointers.len() as i32;
    // The vector's buffer does not move with the vector.
    let pci_paths = if n_devices == 0 { std::ptr::null_mut() } else { paths.pointers.as_mut_ptr() };
    // SAFETY: only integers, pointers and optional functions, for which zero is valid.
    let mut transport: AnyLayout = unsafe { std::mem::zeroed() };
    let consistency: c::nvt_enforce_cst_fn = Some(enforce_cst);
    let consistency = consistency.filter(|_| job.enforces_consistency());
    /// Fills the fields common to all layouts.
    macro_rules! fill {
        ($field:ident, $ops:path) => {{
            // SAFETY: all members of the union are valid when zeroed, which it was.
            let transport = unsafe { &mut transport.$field };
            transport.api_version = api_version;
            transport.type_ = c::NVT_LIB_CODE_NONE;
            transport.attr = c::NVT_ATTR_CONNECTED;
            transport.is_successfully_initialized = 1;
            transport.n_devices = n_devices;
            transport.device_pci_paths = pci_paths;
            transport.host_ops = $ops(consistency);
        }};
    }
    match major {
        Major::V3 => fill!(v3, ops_3),
        Major::V4 | Major::V5 => fill!(v4, ops_4),
        Major::V6 => fill!(v6, ops_6),
        Major::V7 => fill!(v7, ops_7),
    }
    let block = Box::new(Block { transport, major, heartbeat: OnceLock::new(), job, paths });
    let transport = Box::into_raw(block).cast::<Transport>();
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner).push(transport as usize);
    transport
}

/// Ends a transport and frees everything that belongs to it.
///
/// # Safety
/// No other thread uses the transport, now or later.
pub(crate) unsafe fn destroy(transport: *mut Transport) -> Result<(), AbiError> {
    let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(at) = alive.iter().position(|address| *address == transport as usize) else {
        return Err(AbiError::UnknownTransport);
    };
    alive.swap_remove(at);
    drop(alive);
    // SAFETY: it was in the list, so `create` made it and nobody has freed it; nobody uses it, by
    // the caller's promise.
    drop(unsafe { Box::from_raw(transport.cast::<Block>()) });
    Ok(())
}

/// # Safety
/// Null, or alive for `'a`.
#[inline]
pub(crate) unsafe fn job<'a>(transport: *mut Transport) -> Result<&'a Job, AbiError> {
    if transport.is_null() {
        return Err(AbiError::Null { argument: "transport" });
    }
    // SAFETY: by contract, not null.
    Ok(unsafe { job_of(transport) })
}

/// # Safety
/// Alive for `'a`.
#[inline(always)]
pub(crate) unsafe fn job_of<'a>(transport: *mut Transport) -> &'a Job {
    // SAFETY: by contract; the block starts with the transport. Only the field `job` is borrowed:
    // the host writes to the other.
    unsafe { &(*transport.cast::<Block>()).job }
}

/// Starts the heartbeat of a connected transport's proxy thread.
///
/// # Safety
/// Alive.
pub(crate) unsafe fn watch(transport: *mut Transport) {
    // SAFETY: by contract; only these fields are borrowed, as in `job_of`.
    let (job, heartbeat) = unsafe {
        let block = transport.cast::<Block>();
        (&(*block).job, &(*block).heartbeat)
    };
    if let Some(connected) = job.connection() {
        heartbeat.get_or_init(|| {
            // The thread is the host's, so a stall is only logged.
            Heartbeat::of(Arc::clone(&connected.pulse), &job.settings, |_| ())
        });
    }
}

/// Returns the host's bootstrap handle, which it stores after init.
///
/// # Safety
/// Alive, and the host is not writing to it.
pub(crate) unsafe fn boot_handle(transport: *mut Transport) -> *mut Bootstrap {
    let block = transport.cast::<Block>();
    // SAFETY: by contract; the union member is that of the host's layout.
    unsafe {
        match (*block).major {
            Major::V3 => (*block).transport.v3.boot_handle,
            Major::V4 | Major::V5 | Major::V6 | Major::V7 => (*block).transport.v4.boot_handle,
        }
    }
}

/// Returns the host's maps, stored after init. Layout 3a has none: zeros since [`create`].
///
/// # Safety
/// As [`boot_handle`].
pub(crate) unsafe fn host_maps(transport: *mut Transport) -> HostMaps {
    let block = transport.cast::<Block>();
    // SAFETY: by contract; the union member is that of the host's layout.
    let (alias, egm) = unsafe {
        let of = &raw const (*block).transport;
        match (*block).major {
            Major::V3 => ((*of).v3.alias_va_map, (*of).v3.egm_map),
            Major::V4 | Major::V5 => ((*of).v4.alias_va_map, (*of).v4.egm_map),
            Major::V6 => ((*of).v6.alias_va_map, (*of).v6.egm_map),
            Major::V7 => ((*of).v7.alias_va_map, (*of).v7.egm_map),
        }
    };
    HostMaps { alias, egm }
}

impl PciPaths {
    fn new(job: &Job) -> Self {
        let strings: Vec<CString> = job
            .offered_devices()
            .iter()
            .filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok())
            .collect();
        let pointers = strings.iter().map(|path| path.as_ptr().cast_mut()).collect();
        Self { pointers, _strings: strings }
    }
}
