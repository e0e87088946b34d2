//! A GPU, through CUDA's driver.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use channel_producer::KernelArgs;
use cuda::{
    Context, CopyEngine, CudaError, DEFAULT_LIBRARY, Device, Direction, Driver, Memory as Examined,
    Module, Ordinal, PinnedMemory, Stream, Transfer,
};
use nvshmem_transport_libfabric::channel::kernels;

use crate::machines::{HasEnded, Machine, MachineError, Memory};

const BOUNCE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Gpu {
    name: String,
    context: Arc<Context>,
    module: Arc<Module>,
    copies: Mutex<Copies>,
}

#[derive(Debug)]
struct Copies {
    engine: CopyEngine,
    bounce: Arc<PinnedMemory>,
}

impl Copies {
    /// Copies `len` bytes between the bounce memory and memory of the GPU, and waits for them.
    fn run(
        &mut self,
        driver: &'static Driver,
        direction: Direction,
        addr: usize,
        len: usize,
    ) -> Result<(), MachineError> {
        let failed = |error: &dyn std::fmt::Display| MachineError(error.to_string());
        let range = match Examined::examine(driver, addr, len).map_err(|error| failed(&error))? {
            Examined::Device(range) => range,
            other => {
                return Err(MachineError(format!("{addr:#x} is no memory of a GPU: {other:?}")));
            }
        };
        let (range, memory, offset) = (&range, &self.bounce, 0);
        let transfer = Transfer { direction, range, addr, memory, offset, len };
        self.engine.start(&transfer).map_err(|error| failed(&error))?;
        loop {
            if let Some(ended) = self.engine.poll() {
                return ended.map_err(|error| failed(&error));
            }
        }
    }
}

/// Why there is no GPU to run on.
#[derive(Debug)]
pub(crate) enum NoGpu {
    /// The machine has none, or the program was built without kernels: a reason to skip.
    Absent(String),
    /// There is one that does not work.
    Broken(String),
}

impl From<NoGpu> for MachineError {
    fn from((NoGpu::Absent(reason) | NoGpu::Broken(reason)): NoGpu) -> Self {
        MachineError(reason)
    }
}

impl From<CudaError> for MachineError {
    fn from(error: CudaError) -> Self {
        MachineError(error.to_string())
    }
}

impl Gpu {
    pub(crate) fn open(number: u32) -> Result<Self, NoGpu> {
        let Some(image) = kernels::IMAGE else {
            return Err(NoGpu::Absent(format!("this program was built {}", kernels::BUILT)));
        };
        let driver = Driver::load(DEFAULT_LIBRARY).map_err(|e| NoGpu::Absent(e.to_string()))?;
        driver.initialise().map_err(|error| NoGpu::Absent(error.to_string()))?;
        let broken = |error: CudaError| NoGpu::Broken(error.to_string());
        let last = Device::count(driver).map_err(broken)? - 1;
        if last < 0 {
            return Err(NoGpu::Absent(String::from("CUDA has no device")));
        }
        let ordinal = Ordinal(last.min(number as i32));
        let device = Device::new(driver, ordinal).map_err(broken)?;
        let context = Context::primary(driver, ordinal).map_err(broken)?;
        // SAFETY: the image is what nvcc has made.
        let module = unsafe { Module::load(&context, image) }.map_err(broken)?;
        let name = format!("{device}, {driver}, kernels built {}", kernels::BUILT);
        let engine = CopyEngine::new(&context).map_err(broken)?;
        let bounce = PinnedMemory::new(&context, BOUNCE).map_err(broken)?;
        let copies = Mutex::new(Copies { engine, bounce });
        Ok(Self { name, context, module, copies })
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

    fn read(&self, addr: usize, into: &mut [u8]) -> Result<(), MachineError> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (addr..).step_by(BOUNCE).zip(into.chunks_mut(BOUNCE)) {
            copies.run(self.context.driver(), Direction::FromDevice, at, piece.len())?;
            let from = copies.bounce.addr() as *const u8;
            // SAFETY: as long as the bounce memory at most, which nobody writes to by now.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MachineError> {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, piece) in (addr..).step_by(BOUNCE).zip(from.chunks(BOUNCE)) {
            let to = copies.bounce.addr() as *mut u8;
            // SAFETY: as long as the bounce memory at most, from which the last copy has ended.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
            copies.run(self.context.driver(), Direction::ToDevice, at, piece.len())?;
        }
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        args: KernelArgs,
        blocks: u32,
        threads: u32,
    ) -> Result<HasEnded, MachineError> {
        let name = CString::new(format!("nlfk_kernel_{kernel}"))
            .map_err(|error| MachineError(error.to_string()))?;
        let kernel = self.module.kernel(&name)?;
        let stream = Stream::new(&self.context)?;
        // SAFETY: every kernel takes one `nlfk_args`; the rest is the caller's promise.
        unsafe { kernel.launch(&stream, blocks, threads, args) }?;
        // The module has the code, and stays as long as the kernel's handle does.
        Ok(Box::new(move || {
            let _loaded = &kernel;
            Ok(stream.is_idle()?)
        }))
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
