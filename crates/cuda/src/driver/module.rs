use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;

/// Compiled code in a context, loaded from a fatbin.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Module {}
// SAFETY: the same, and it has no mutable state.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a fatbin. May wait for all work on the device.
    ///
    /// # Errors
    /// The driver's, for example if the fatbin has no code for the device.
    ///
    /// # Safety
    /// `image` is a fatbin from a compiler: the driver reads its length from the image itself.
    pub unsafe fn load(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Self>, CudaError> {
        const CALL: &str = "cuModuleLoadData";
        let driver = context.driver();
        let load =
            driver.api.cuModuleLoadData.ok_or_else(|| driver.lacks(CALL, context.to_string()))?;
        // Aligned for the words at its start.
        let mut words = vec![0u64; image.len().div_ceil(8)];
        // SAFETY: the copy is at least as long, and both are plain bytes.
        unsafe {
            ptr::copy_nonoverlapping(image.as_ptr(), words.as_mut_ptr().cast(), image.len());
        }
        let _bound = context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle; the image is complete, as the caller promises; the
        // context is bound. The driver makes a copy.
        let status = unsafe { load(&raw mut raw, words.as_ptr().cast()) };
        driver.check(CALL, status, || format!("{} bytes, {context}", image.len()))?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    pub fn kernel(self: &Arc<Self>, name: &CStr) -> Result<Kernel, CudaError> {
        const CALL: &str = "cuModuleGetFunction";
        let driver = self.context.driver();
        let subject = || format!("kernel {}", name.to_string_lossy());
        let get = driver.api.cuModuleGetFunction.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let _bound = self.context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a pointer to the handle, a live module, a terminated string.
        let status = unsafe { get(&raw mut raw, self.raw, name.as_ptr()) };
        driver.check(CALL, status, subject)?;
        Ok(Kernel { module: Arc::clone(self), raw, name: name.to_string_lossy().into_owned() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let driver = self.context.driver();
        if let (Ok(_bound), Some(unload)) = (self.context.bind(), driver.api.cuModuleUnload) {
            // After an error CUDA has shut down.
            // SAFETY: loaded by `load`, and unloaded once, here; its kernels hold it.
            let _ = unsafe { unload(self.raw) };
        }
    }
}

#[derive(Debug)]
pub struct Kernel {
    module: Arc<Module>,
    raw: CUfunction,
    name: String,
}

// SAFETY: a handle, which any thread may pass to the driver.
unsafe impl Send for Kernel {}
// SAFETY: the same, and it has no mutable state.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Launches it on a stream with one argument. [`Stream::is_idle`] reports its end and its
    /// error.
    ///
    /// # Safety
    /// The kernel takes one argument of type `T`. Memory to which it points outlives the kernel.
    pub unsafe fn launch<T: Copy>(
        &self,
        stream: &Stream,
        blocks: u32,
        threads: u32,
        mut argument: T,
    ) -> Result<(), CudaError> {
        const CALL: &str = "cuLaunchKernel";
        let driver = self.module.context.driver();
        let subject = || format!("kernel {}, {blocks} blocks of {threads}", self.name);
        let launch = driver.api.cuLaunchKernel.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let _bound = self.module.context.bind()?;
        let mut arguments: [*mut c_void; 1] = [(&raw mut argument).cast()];
        let (raw, on, no_shared, extra) = (self.raw, stream.raw(), 0, ptr::null_mut());
        // SAFETY: the kernel and the stream live, and are of the bound context; the argument is
        // read before the call returns; the rest is the caller's promise.
        let status = unsafe {
            launch(raw, blocks, 1, 1, threads, 1, 1, no_shared, on, arguments.as_mut_ptr(), extra)
        };
        driver.check(CALL, status, subject)
    }
}
