//! The plugin as a loaded library.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nvshmem_abi::{CUDA_TABLE_SLOTS, INIT_SYMBOL, Layout, Major, c, file_name};

use crate::error::{Result, check, error, explain};

#[derive(Debug)]
pub(crate) struct Plugin {
    library: ManuallyDrop<Library>,
    path: PathBuf,
    layout: Layout,
}

impl Plugin {
    pub(crate) fn load(dir: &Path, layout: Layout) -> Result<Plugin> {
        let path = dir.join(file_name("libfabric", layout.major()));
        // SAFETY: a library's initialisers run. That is what a host does with a plugin.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| error!("plugin: {}: {}", path.display(), explain(&e)))?;
        Ok(Plugin { library: ManuallyDrop::new(library), path, layout })
    }

    pub(crate) fn init(&self, api_version: i32) -> Result<*mut c::nvt_transport> {
        // SAFETY: this is the type of that symbol in every layout.
        let symbol = unsafe { self.library.get::<c::nvt_init_fn>(INIT_SYMBOL.as_bytes()) }
            .map_err(|e| error!("plugin: {}: {}", self.path.display(), explain(&e)))?;
        let init = (*symbol).ok_or_else(|| error!("plugin: {INIT_SYMBOL} is at address 0"))?;
        let mut transport = std::ptr::null_mut();
        let cuda_table = (&raw const CUDA_TABLE).cast_mut().cast();
        // SAFETY: the arguments are as in the interface; the table is static.
        let status = unsafe { init(&raw mut transport, cuda_table, api_version) };
        check(status, || format!("{INIT_SYMBOL} with api_version {api_version}"))?;
        if transport.is_null() {
            return Err(error!("plugin: {INIT_SYMBOL} succeeded without a transport"));
        }
        Ok(transport)
    }

    /// What is done with the library once nothing of it is in use: NVSHMEM 3.6 and older close it,
    /// later ones leave it to the end of the process.
    pub(crate) fn unload(self) {
        match self.layout.major() {
            Major::V3 | Major::V4 | Major::V5 => {
                if let Err(e) = ManuallyDrop::into_inner(self.library).close() {
                    eprintln!("nvshmem-sim: {}: dlclose: {}", self.path.display(), explain(&e));
                }
            }
            Major::V6 | Major::V7 => {}
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
