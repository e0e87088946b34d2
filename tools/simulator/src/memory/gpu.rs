//! The device of a PE: its context, and copies to and from memory that the CPU does not touch.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
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

macro_rules! calls {
    ($($name:ident = $symbol:literal($($arg:ident: $type:ty),*);)*) => {
        /// Functions of the driver that the host's memory is made with.
        #[derive(Debug)]
        pub(crate) struct Calls {
            library: Library,
            get_error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
            $($name: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Calls {
            fn load() -> Result<Calls> {
                // SAFETY: the library is loaded already.
                let library = unsafe { Library::open(Some(DEFAULT_LIBRARY), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|error| device(explain(&error)))?;
                Ok(Calls {
                    get_error_name: symbol(&library, "cuGetErrorName")?,
                    $($name: symbol(&library, $symbol)?,)*
                    library,
                })
            }

            $(
                /// # Safety
                /// As the driver's documentation has it: pointers lead to places of their type,
                /// and memory that is given away is in no use.
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Result<()> {
                    // SAFETY: the caller's promise, and a function of this type.
                    self.check($symbol, unsafe { (self.$name)($($arg),*) })
                }
            )*
        }
    };
}

calls! {
    get_current = "cuCtxGetCurrent"(context: *mut usize);
    set_current = "cuCtxSetCurrent"(context: usize);
    alloc = "cuMemAlloc_v2"(into: *mut usize, len: usize);
    alloc_managed = "cuMemAllocManaged"(into: *mut usize, len: usize, flags: c_uint);
    free = "cuMemFree_v2"(base: usize);
    register_host = "cuMemHostRegister_v2"(base: *mut c_void, len: usize, flags: c_uint);
    unregister_host = "cuMemHostUnregister"(base: *mut c_void);
    set_attribute = "cuPointerSetAttribute"(value: *const c_void, which: c_uint, address: usize);
    reserve = "cuMemAddressReserve"(
        into: *mut usize, len: usize, alignment: usize, wish: usize, flags: c_ulonglong);
    free_address = "cuMemAddressFree"(base: usize, len: usize);
    create = "cuMemCreate"(
        into: *mut usize, len: usize, properties: *const Properties, flags: c_ulonglong);
    release = "cuMemRelease"(handle: usize);
    map = "cuMemMap"(base: usize, len: usize, offset: usize, handle: usize, flags: c_ulonglong);
    unmap = "cuMemUnmap"(base: usize, len: usize);
    set_access = "cuMemSetAccess"(base: usize, len: usize, access: *const [c_int; 3], count: usize);
    create_stream = "cuStreamCreate"(into: *mut usize, flags: c_uint);
    synchronize = "cuStreamSynchronize"(stream: usize);
    copy_in = "cuMemcpyHtoDAsync_v2"(
        to: usize, from: *const c_void, len: usize, stream: usize);
    copy_out = "cuMemcpyDtoHAsync_v2"(
        to: *mut c_void, from: usize, len: usize, stream: usize);
}

impl Calls {
    pub(crate) fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place is valid; the name is a static string of the driver's, or null.
        let name = unsafe {
            (self.get_error_name)(status, &raw mut name);
            if name.is_null() { c"an unknown error" } else { CStr::from_ptr(name) }
        };
        Err(device(format!("{call}: {} ({status})", name.to_string_lossy())))
    }

    /// A function that not every driver has.
    ///
    /// # Safety
    /// `F` is the type of that function.
    pub(crate) unsafe fn optional<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller's promise.
        unsafe { self.library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
    }
}

fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: the types in the table above are those of the driver's documentation.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => Err(device(explain(&error))),
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
        let (calls, lane) = (Calls::load()?, Mutex::new((0, scratch)));
        let mut gpu = Gpu { context, calls, name, lane };
        gpu.lane.get_mut().unwrap_or_else(PoisonError::into_inner).0 = gpu.new_stream()?;
        Ok(gpu)
    }

    pub(crate) fn new_stream(&self) -> Result<usize> {
        let mut stream = 0;
        // SAFETY: a place for the handle; CU_STREAM_NON_BLOCKING is 1.
        self.bound(|calls| unsafe { calls.create_stream(&raw mut stream, 1) })?;
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
        self.bound(|calls| unsafe { calls.get_current(&raw mut raw) })?;
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.calls.set_current(raw) }
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
                self.calls.copy_out(scratch.cast(), from + done, part, stream)?;
                self.calls.synchronize(stream)?;
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
                self.calls.copy_in(to + done, scratch.cast(), part, stream)?;
                self.calls.synchronize(stream)
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
