//! The device of a PE: its context, and copies to and from memory that the CPU does not touch.

use std::ffi::{c_uint, c_void};
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cuda::{Context, DEFAULT_LIBRARY, Device, Driver, Ordinal, PinnedMemory, Stream};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result, error, explain};

/// Bytes that one copy of the driver moves: page-locked, as otherwise the driver copies once more.
const SCRATCH: usize = 2 << 20;

/// A `CUresult`; 0 is success.
pub(crate) type Status = c_uint;

/// Calls a function of CUDA's driver by its name, as C does: each argument is followed by its type.
/// Like every call through a pointer it is `unsafe`.
macro_rules! call {
    ($calls:expr, $name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let (calls, name) = (&$calls, stringify!($name));
        type Function = unsafe extern "C" fn($($type),*) -> $crate::memory::gpu::Status;
        calls.required::<Function>(name).and_then(|function| calls.check(name, function($($argument),*)))
    }};
}
pub(crate) use call;

#[derive(Debug)]
pub(crate) struct Calls(Library);

impl Calls {
    pub(crate) fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        Err(device(format!("{call} returned {status}")))
    }

    /// # Safety
    /// `F` is the type of that function.
    pub(crate) unsafe fn required<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.0.get::<F>(name.as_bytes()) };
        found.map(|symbol| *symbol).map_err(|error| device(explain(&error)))
    }
}

pub(crate) fn device(error: impl Display) -> Error {
    error!("device: {}", error.to_string())
}

/// A device with its primary context, for the life of the process.
///
/// # Threads
/// Any. Each call binds the context and restores what was bound.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) context: Arc<Context>,
    pub(crate) calls: Calls,
    /// A private stream, and page-locked memory to copy through. They are made at the start:
    /// making such memory may wait for what runs on the device.
    lane: Mutex<(Stream, Arc<PinnedMemory>)>,
}

impl Gpu {
    pub(crate) fn of_process(pe: u32) -> Result<&'static Gpu> {
        static GPU: OnceLock<Result<Gpu>> = OnceLock::new();
        GPU.get_or_init(|| Gpu::start(pe)).as_ref().map_err(Clone::clone)
    }

    fn start(pe: u32) -> Result<Gpu> {
        let driver = Driver::load(DEFAULT_LIBRARY).map_err(device)?;
        driver.initialise().map_err(device)?;
        let count = Device::count(driver).map_err(device)?;
        if count < 1 {
            return Err(device("the driver has no device"));
        }
        let ordinal = Ordinal((i64::from(pe) % i64::from(count)) as i32);
        let context = Context::primary(driver, ordinal).map_err(device)?;
        let scratch = PinnedMemory::new(&context, SCRATCH).map_err(device)?;
        // SAFETY: memory of this length that nobody knows. The first access is made here, so that
        // it is not one that must not wait.
        unsafe { (scratch.addr() as *mut u8).write_bytes(0, SCRATCH) };
        // SAFETY: the library is loaded already.
        let library = unsafe { Library::open(Some(DEFAULT_LIBRARY), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| device(explain(&error)))?;
        let lane = Mutex::new((Stream::new(&context).map_err(device)?, scratch));
        Ok(Gpu { context, calls: Calls(library), lane })
    }

    /// Leaves the context bound on this thread, as NVSHMEM does on its own and the user's.
    pub(crate) fn make_current(&self) -> Result<()> {
        self.context.bind().map(std::mem::forget).map_err(device)
    }

    pub(crate) fn bound<R>(&self, f: impl FnOnce(&Calls) -> Result<R>) -> Result<R> {
        let _bound = self.context.bind().map_err(device)?;
        f(&self.calls)
    }

    /// Copies `len` bytes of the device in or out, in blocks in order, each with its offset. `each`
    /// makes what comes in, or sees what has come out. Copies end where `cut` says: a copy of the
    /// driver stays in one allocation.
    pub(crate) fn copy(
        &self,
        at: usize,
        len: usize,
        cut: Cut,
        is_in: bool,
        mut each: impl FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, scratch) = (lane.0.as_ptr(), lane.1.addr() as *mut u8);
        self.bound(|calls| {
            let mut done = 0;
            while done < len {
                let there = at + done;
                let room = cut.step - (there - cut.base) % cut.step;
                let part = room.min(len - done).min(SCRATCH);
                // SAFETY: the scratch has room, and is used by no copy but the one in its turn,
                // which has ended behind the synchronisation; the driver checks `there`.
                unsafe {
                    let block = std::slice::from_raw_parts_mut(scratch, part);
                    if is_in {
                        each(done as u64, block);
                        call!(calls, cuMemcpyHtoDAsync_v2(
                            there => usize, scratch => *mut u8, part => usize,
                            stream => *mut c_void))?;
                    } else {
                        call!(calls, cuMemcpyDtoHAsync_v2(
                            scratch => *mut u8, there => usize, part => usize,
                            stream => *mut c_void))?;
                    }
                    call!(calls, cuStreamSynchronize(stream => *mut c_void))?;
                    if !is_in {
                        each(done as u64, block);
                    }
                }
                done += part;
            }
            Ok(())
        })
    }
}

/// Where copies must end: at every multiple of `step` after `base`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) base: usize,
    pub(crate) step: usize,
}
