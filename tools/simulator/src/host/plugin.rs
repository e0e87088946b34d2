//! The plugin as a loaded library.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nvshmem_abi::{CUDA_TABLE_SLOTS, INIT_SYMBOL, Layout, Major, c, file_name};

use crate::error::{Error, Result, check, explain};

const KNOWN: [&str; 4] = ["ibrc", "ucx", "ibdevx", "libfabric"];

/// A loaded plugin. It is unloaded as that host would: NVSHMEM 3.6 and older close the library,
/// later ones leave it to the end of the process.
#[derive(Debug)]
pub(crate) struct Plugin {
    library: ManuallyDrop<Library>,
    path: PathBuf,
    layout: Layout,
    /// Whether nothing of the plugin is in use, so that its code may go.
    idle: AtomicBool,
}

impl Plugin {
    pub(crate) fn load(dir: &Path, layout: Layout) -> Result<Plugin> {
        let named = std::env::var("NVSHMEM_REMOTE_TRANSPORT");
        let named = named.unwrap_or_else(|_| String::from("libfabric"));
        let Some(known) = KNOWN.iter().find(|known| known.eq_ignore_ascii_case(&named)) else {
            let message = format!("NVSHMEM_REMOTE_TRANSPORT: NVSHMEM knows no transport {named}");
            return Err(Error::Plugin(message));
        };
        let path = dir.join(file_name(known, layout.major()));
        // SAFETY: a library's initialisers run. That is what a host does with a plugin.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| Error::Plugin(format!("{}: {}", path.display(), explain(&e))))?;
        let (library, idle) = (ManuallyDrop::new(library), AtomicBool::new(true));
        Ok(Plugin { library, path, layout, idle })
    }

    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }

    pub(crate) fn init(&self, api_version: i32) -> Result<*mut c::nvt_transport> {
        // SAFETY: this is the type of that symbol in every layout.
        let symbol = unsafe { self.library.get::<c::nvt_init_fn>(INIT_SYMBOL.as_bytes()) }
            .map_err(|e| Error::Plugin(format!("{}: {}", self.path.display(), explain(&e))))?;
        let init =
            (*symbol).ok_or_else(|| Error::Plugin(format!("{INIT_SYMBOL} is at address 0")))?;
        let mut transport = std::ptr::null_mut();
        let cuda_table = (&raw const CUDA_TABLE).cast_mut().cast();
        // SAFETY: the arguments are as in the interface; the table is static.
        let status = unsafe { init(&raw mut transport, cuda_table, api_version) };
        check(status, || format!("{INIT_SYMBOL} with api_version {api_version}"))?;
        if transport.is_null() {
            return Err(Error::Plugin(format!("{INIT_SYMBOL} succeeded without a transport")));
        }
        Ok(transport)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if self.layout.major() <= Major::V5 && self.idle.load(Ordering::Acquire) {
            // SAFETY: the library is not used after this.
            let library = unsafe { ManuallyDrop::take(&mut self.library) };
            if let Err(e) = library.close() {
                eprintln!("nvshmem-sim: {}: dlclose: {}", self.path.display(), explain(&e));
            }
        }
    }
}

/// Stands in for an entry of the host's table of CUDA driver functions: there is no CUDA here.
extern "C" fn no_cuda() -> i32 {
    const CUDA_ERROR_NOT_INITIALIZED: i32 = 3;
    CUDA_ERROR_NOT_INITIALIZED
}

struct CudaTable(#[allow(dead_code, reason = "read by the plugin")] [*const c_void; 39]);

// SAFETY: addresses of code, never written.
unsafe impl Sync for CudaTable {}

static CUDA_TABLE: CudaTable = CudaTable([no_cuda as *const c_void; CUDA_TABLE_SLOTS]);
