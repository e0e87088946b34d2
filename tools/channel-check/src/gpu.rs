//! A GPU, through CUDA's driver.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use channel_producer::KernelArgs;
use nvshmem_transport_libfabric::channel::kernels;
use nvshmem_transport_libfabric::cuda::{
    Context, CudaError, DEFAULT_LIBRARY, Device, DeviceMemory, Driver, Kernel, Module, Ordinal,
    PinnedMemory, Stream,
};

use crate::machine::{Machine, MachineError, Memory, Running};

/// The first GPU of this process.
#[derive(Debug)]
pub struct Gpu {
    name: String,
    context: Arc<Context>,
    module: Arc<Module>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

/// Why there is no GPU to run on.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// The machine has none, or the program was built without kernels: a reason to skip.
    #[error("{0}")]
    Absent(String),
    /// There is one that does not work.
    #[error("{0}")]
    Broken(String),
}

impl From<CudaError> for MachineError {
    fn from(error: CudaError) -> Self {
        MachineError(error.to_string())
    }
}

impl Gpu {
    /// Opens it.
    ///
    /// # Errors
    /// When there is none, or it cannot be used.
    pub fn open() -> Result<Self, NoGpu> {
        let Some(image) = kernels::IMAGE else {
            return Err(NoGpu::Absent(format!("this program was built {}", kernels::BUILT)));
        };
        let driver = Driver::load(DEFAULT_LIBRARY).map_err(|e| NoGpu::Absent(e.to_string()))?;
        driver.initialise().map_err(|error| NoGpu::Absent(error.to_string()))?;
        let broken = |error: CudaError| NoGpu::Broken(error.to_string());
        if Device::count(driver).map_err(broken)? == 0 {
            return Err(NoGpu::Absent(String::from("CUDA has no device")));
        }
        let device = Device::new(driver, Ordinal(0)).map_err(broken)?;
        let context = Context::primary(driver, Ordinal(0)).map_err(broken)?;
        // SAFETY: the image is what nvcc has made.
        let module = unsafe { Module::load(&context, image) }.map_err(broken)?;
        let name = format!("{device}, {driver}, kernels built {}", kernels::BUILT);
        Ok(Self { name, context, module, kernels: Mutex::default() })
    }
}

#[derive(Debug)]
struct Launched {
    stream: Stream,
    _kernel: Arc<Kernel>,
}

impl Running for Launched {
    fn is_done(&mut self) -> Result<bool, MachineError> {
        Ok(self.stream.is_idle()?)
    }
}

impl Machine for Gpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn shared(&self, len: usize) -> Result<Memory, MachineError> {
        let memory = PinnedMemory::new(&self.context, len)?;
        // SAFETY: just allocated, of that length.
        unsafe { std::ptr::write_bytes(memory.addr() as *mut u8, 0, len) };
        Ok(Memory::new(memory.addr(), len, Box::new(memory)))
    }

    fn fast(&self, content: &[u8]) -> Result<Memory, MachineError> {
        let from = PinnedMemory::new(&self.context, content.len())?;
        // SAFETY: just allocated, of that length.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), from.addr() as *mut u8, content.len());
        }
        let memory = DeviceMemory::new(&self.context, content.len())?;
        let stream = Stream::new(&self.context)?;
        memory.fill(&from, &stream)?;
        while !stream.is_idle()? {
            std::thread::yield_now();
        }
        Ok(Memory::new(memory.addr(), content.len(), Box::new(memory)))
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        args: KernelArgs,
        blocks: u32,
        threads: u32,
    ) -> Result<Box<dyn Running>, MachineError> {
        let loaded = {
            let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
            match kernels.get(kernel) {
                Some(loaded) => Arc::clone(loaded),
                None => {
                    let name = CString::new(format!("nlfk_kernel_{kernel}"))
                        .map_err(|error| MachineError(error.to_string()))?;
                    let loaded = Arc::new(self.module.kernel(&name)?);
                    kernels.insert(kernel.to_owned(), Arc::clone(&loaded));
                    loaded
                }
            }
        };
        let stream = Stream::new(&self.context)?;
        // SAFETY: every kernel takes one `nlfk_args`; the rest is the caller's promise.
        unsafe { loaded.launch(&stream, blocks, threads, args) }?;
        Ok(Box::new(Launched { stream, _kernel: loaded }))
    }

    fn with_device(
        &self,
        run: &mut dyn FnMut() -> Result<(), MachineError>,
    ) -> Result<(), MachineError> {
        let _bound = self.context.bind()?;
        run()
    }

    fn warp(&self) -> u32 {
        32
    }

    fn shape(&self) -> (u32, u32) {
        (4, 64)
    }
}
