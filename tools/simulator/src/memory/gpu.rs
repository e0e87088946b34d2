//! The device of a PE: its context, and copies to and from memory that the CPU does not touch.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cuda::{Context, DEFAULT_LIBRARY, Device, Driver, Ordinal, PinnedMemory};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result, error, explain};

/// Bytes that one copy of the driver moves: page-locked, as otherwise the driver copies once more.
const SCRATCH: usize = 2 << 20;

/// A `CUresult`; 0 is success.
pub(crate) type Status = c_uint;

/// `CUmemLocation`: its kind and number.
pub(crate) type Location = [c_int; 2];

/// The host's NUMA node 0.
pub(crate) const NUMA_NODE: Location = [3, 0];

/// `CUmemAllocationProp`, as words.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties([c_int; 8]);

impl Properties {
    pub(crate) fn pinned([kind, id]: Location) -> Properties {
        Properties([1, 0, kind, id, 0, 0, 0, 0])
    }
}

pub(crate) fn access([kind, id]: Location) -> [c_int; 3] {
    [kind, id, 3]
}

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

/// The driver's library, for functions that the host's memory is made with.
#[derive(Debug)]
pub(crate) struct Calls(Library);

impl Calls {
    pub(crate) fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        type Name = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
        let mut name = std::ptr::null();
        // SAFETY: the place is valid; the name is a static string of the driver's, or null.
        let name = unsafe {
            self.required::<Name>("cuGetErrorName")?(status, &raw mut name);
            if name.is_null() { c"an unknown error" } else { CStr::from_ptr(name) }
        };
        Err(device(format!("{call}: {} ({status})", name.to_string_lossy())))
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
    name: String,
    /// A private stream, and page-locked memory to copy through. They are made at the start:
    /// making such memory may wait for what runs on the device.
    lane: Mutex<(usize, Arc<PinnedMemory>)>,
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
        let name = Device::new(driver, ordinal).and_then(|device| device.name()).map_err(device)?;
        let context = Context::primary(driver, ordinal).map_err(device)?;
        let scratch = PinnedMemory::new(&context, SCRATCH).map_err(device)?;
        // SAFETY: memory of this length that nobody knows. The first access is made here, so that
        // it is not one that must not wait.
        unsafe { (scratch.addr() as *mut u8).write_bytes(0, SCRATCH) };
        // SAFETY: the library is loaded already.
        let library = unsafe { Library::open(Some(DEFAULT_LIBRARY), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| device(explain(&error)))?;
        let (calls, lane) = (Calls(library), Mutex::new((0, scratch)));
        let mut gpu = Gpu { context, calls, name, lane };
        gpu.lane.get_mut().unwrap_or_else(PoisonError::into_inner).0 = gpu.new_stream()?;
        Ok(gpu)
    }

    pub(crate) fn new_stream(&self) -> Result<usize> {
        let mut stream = 0;
        // SAFETY: a place for the handle; CU_STREAM_NON_BLOCKING is 1.
        self.bound(|calls| unsafe {
            call!(calls, cuStreamCreate(&raw mut stream => *mut usize, 1 => c_uint))
        })?;
        Ok(stream)
    }

    pub(crate) fn location(&self) -> Location {
        [1, self.context.device().0]
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} (device {})", self.name, self.context.device())
    }

    /// Leaves the context bound on this thread, as NVSHMEM does on its own and the user's.
    pub(crate) fn make_current(&self) -> Result<()> {
        let mut raw = 0;
        // SAFETY: a place for the handle.
        self.bound(|calls| unsafe { call!(calls, cuCtxGetCurrent(&raw mut raw => *mut usize)) })?;
        // SAFETY: the context is retained for the life of the process.
        unsafe { call!(self.calls, cuCtxSetCurrent(raw => usize)) }
    }

    pub(crate) fn bound<R>(&self, f: impl FnOnce(&Calls) -> Result<R>) -> Result<R> {
        let _bound = self.context.bind().map_err(device)?;
        f(&self.calls)
    }

    /// Copies `len` bytes of device memory out, and gives them to `see` in order, with their
    /// offsets. Copies end where `cut` says: a copy of the driver stays in one allocation.
    pub(crate) fn read(
        &self,
        from: usize,
        len: usize,
        cut: Cut,
        mut see: impl FnMut(u64, &[u8]),
    ) -> Result<()> {
        self.copy(from, len, cut, |done, part, stream, scratch| {
            // SAFETY: the scratch has room; `from` is checked by the driver. After the
            // synchronisation nothing writes to the scratch.
            unsafe {
                call!(self.calls, cuMemcpyDtoHAsync_v2(
                    scratch => *mut u8, from + done => usize, part => usize, stream => usize))?;
                call!(self.calls, cuStreamSynchronize(stream => usize))?;
                see(done as u64, std::slice::from_raw_parts(scratch, part));
            }
            Ok(())
        })
    }

    /// Copies `len` bytes in, which `fill` makes for offsets in order.
    pub(crate) fn write(
        &self,
        to: usize,
        len: usize,
        cut: Cut,
        mut fill: impl FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        self.copy(to, len, cut, |done, part, stream, scratch| {
            // SAFETY: the scratch has room, and nothing reads or writes it until the copy below;
            // `to` is checked by the driver.
            unsafe {
                fill(done as u64, std::slice::from_raw_parts_mut(scratch, part));
                call!(self.calls, cuMemcpyHtoDAsync_v2(
                    to + done => usize, scratch => *mut u8, part => usize, stream => usize))?;
                call!(self.calls, cuStreamSynchronize(stream => usize))
            }
        })
    }

    fn copy(
        &self,
        base: usize,
        len: usize,
        cut: Cut,
        mut each: impl FnMut(usize, usize, usize, *mut u8) -> Result<()>,
    ) -> Result<()> {
        let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, scratch) = (lane.0, lane.1.addr() as *mut u8);
        self.bound(|_| {
            let mut done = 0;
            while done < len {
                let room = cut.step - (base + done - cut.base) % cut.step;
                let part = room.min(len - done).min(SCRATCH);
                each(done, part, stream, scratch)?;
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
