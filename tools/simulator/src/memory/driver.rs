//! The functions of CUDA's driver that a PE with device memory calls, in the process that NVSHMEM's
//! host library would have loaded the driver into.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result, explain};

/// The name that CUDA programs load the driver by.
const LIBRARY: &str = "libcuda.so.1";

/// A `CUresult`; 0 is success.
pub(crate) type Status = c_uint;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Status = 600;

/// `CU_STREAM_NON_BLOCKING`: neither waits for the legacy stream nor holds it.
pub(crate) const NON_BLOCKING: c_uint = 1;

/// `CU_MEM_LOCATION_TYPE_DEVICE` and `CU_MEM_LOCATION_TYPE_HOST_NUMA`.
pub(crate) const ON_DEVICE: c_uint = 1;
pub(crate) const ON_NUMA_NODE: c_uint = 3;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    pub(crate) location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Properties {
    /// Memory that stays where it is, shared with nobody.
    pub(crate) fn pinned(location: Location) -> Properties {
        Properties {
            kind: 1,
            handle_types: 0,
            location,
            windows: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    location: Location,
    flags: c_uint,
}

const _: () = assert!(size_of::<Access>() == 12);

impl Access {
    pub(crate) fn read_write(location: Location) -> Access {
        Access { location, flags: 3 }
    }
}

macro_rules! driver {
    ($($method:ident = $symbol:literal($($arg:ident: $type:ty),*);)*) => {
        /// The driver. It stays loaded.
        #[derive(Debug)]
        pub(crate) struct Driver {
            library: Library,
            get_error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
            stream_query: unsafe extern "C" fn(usize) -> Status,
            $($method: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Driver {
            /// Loads the driver by its name, as CUDA's runtime does, and starts it.
            ///
            /// # Errors
            /// There is none, it lacks a function, or it has no device.
            pub(crate) fn load() -> Result<Driver> {
                // SAFETY: the library's initialisers run, as in every CUDA program.
                let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) }
                    .map_err(|error| Error::Device(explain(&error)))?;
                let driver = Driver {
                    get_error_name: symbol(&library, "cuGetErrorName")?,
                    stream_query: symbol(&library, "cuStreamQuery")?,
                    $($method: symbol(&library, $symbol)?,)*
                    library,
                };
                // SAFETY: it has no precondition; 0 are the only flags.
                unsafe { driver.init(0) }?;
                Ok(driver)
            }

            $(
                /// # Safety
                /// As the driver's documentation has it: pointers lead to places of their type,
                /// and memory that is given away is in no use.
                #[allow(clippy::too_many_arguments, reason = "the driver's arguments")]
                pub(crate) unsafe fn $method(&self, $($arg: $type),*) -> Result<()> {
                    // SAFETY: the caller's promise, and a function of this type.
                    self.check($symbol, unsafe { (self.$method)($($arg),*) })
                }
            )*
        }
    };
}

driver! {
    init = "cuInit"(flags: c_uint);
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    device_name = "cuDeviceGetName"(name: *mut c_char, room: c_int, device: c_int);
    retain = "cuDevicePrimaryCtxRetain"(context: *mut usize, device: c_int);
    set_current = "cuCtxSetCurrent"(context: usize);
    push = "cuCtxPushCurrent_v2"(context: usize);
    pop = "cuCtxPopCurrent_v2"(context: *mut usize);
    alloc = "cuMemAlloc_v2"(into: *mut usize, len: usize);
    alloc_managed = "cuMemAllocManaged"(into: *mut usize, len: usize, flags: c_uint);
    free = "cuMemFree_v2"(base: usize);
    alloc_host = "cuMemHostAlloc"(into: *mut *mut c_void, len: usize, flags: c_uint);
    register_host = "cuMemHostRegister_v2"(base: *mut c_void, len: usize, flags: c_uint);
    unregister_host = "cuMemHostUnregister"(base: *mut c_void);
    set_attribute = "cuPointerSetAttribute"(value: *const c_void, which: c_uint, address: usize);
    granularity = "cuMemGetAllocationGranularity"(
        into: *mut usize, properties: *const Properties, option: c_uint);
    reserve = "cuMemAddressReserve"(
        into: *mut usize, len: usize, alignment: usize, wish: usize, flags: c_ulonglong);
    free_address = "cuMemAddressFree"(base: usize, len: usize);
    create = "cuMemCreate"(
        into: *mut usize, len: usize, properties: *const Properties, flags: c_ulonglong);
    release = "cuMemRelease"(handle: usize);
    map = "cuMemMap"(
        base: usize, len: usize, offset: usize, handle: usize, flags: c_ulonglong);
    unmap = "cuMemUnmap"(base: usize, len: usize);
    set_access = "cuMemSetAccess"(base: usize, len: usize, access: *const Access, count: usize);
    create_stream = "cuStreamCreate"(into: *mut usize, flags: c_uint);
    destroy_stream = "cuStreamDestroy_v2"(stream: usize);
    synchronize = "cuStreamSynchronize"(stream: usize);
    copy_in = "cuMemcpyHtoDAsync_v2"(to: usize, from: *const c_void, len: usize, stream: usize);
    copy_out = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: usize, len: usize, stream: usize);
}

impl Driver {
    /// Turns a result into an error with the driver's name for it.
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
        Err(Error::Device(format!("{call}: {} ({status})", name.to_string_lossy())))
    }

    /// Whether a stream has nothing left to do.
    pub(crate) fn is_idle(&self, stream: usize) -> Result<bool> {
        // SAFETY: a stream of this driver; the driver checks it.
        match unsafe { (self.stream_query)(stream) } {
            NOT_READY => Ok(false),
            status => self.check("cuStreamQuery", status).map(|()| true),
        }
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
        Err(error) => Err(Error::Device(format!("{LIBRARY}: {}", explain(&error)))),
    }
}
