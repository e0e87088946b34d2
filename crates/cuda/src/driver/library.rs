//! The driver's library, as loaded in this process.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use cudarc::driver::sys;
use libloading::os::unix::{Library as Handle, RTLD_LAZY};

use crate::MEM;
use crate::driver::api::{Api, Status};
use crate::driver::error::{CudaError, LoadError, code};

/// Name by which CUDA programs load the driver.
pub const DEFAULT_LIBRARY: &str = "libcuda.so.1";

const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;

/// Version of the driver's interface, as `cuDriverGetVersion` packs it: 12020 is 12.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DriverVersion(u32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The CUDA driver, loaded until the process ends.
///
/// # Threads
/// Any, at once: the driver's functions may be called from all threads.
#[derive(Debug)]
pub struct Driver {
    path: String,
    version: DriverVersion,
    missing: Vec<&'static str>,
    pub(crate) api: Api,
}

static OPENED: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

impl Driver {
    /// Returns the driver if this process has loaded it; loads nothing and never calls `cuInit`.
    /// Takes a look-up in the dynamic loader's list until then, afterwards one load.
    ///
    /// # Errors
    /// [`LoadError::NotInUse`] if the process has not loaded it, which is logged once;
    /// [`LoadError::Symbol`] if it is too old.
    pub fn of_process() -> Result<&'static Self, LoadError> {
        static FOUND: OnceLock<&'static Driver> = OnceLock::new();
        static SAID: Once = Once::new();
        if let Some(driver) = FOUND.get() {
            return Ok(driver);
        }
        // SAFETY: nothing is loaded, so no initialiser runs.
        let handle = unsafe { Handle::open(Some(DEFAULT_LIBRARY), RTLD_NOLOAD | RTLD_LAZY) };
        let Ok(handle) = handle else {
            let error = LoadError::NotInUse { path: DEFAULT_LIBRARY.to_owned() };
            SAID.call_once(|| {
                log::info!(target: MEM, "{error}; all memory is taken for host memory");
            });
            return Err(error);
        };
        let driver = Self::keep(DEFAULT_LIBRARY, handle)?;
        FOUND.get_or_init(|| {
            log::info!(target: MEM, "{driver}");
            driver
        });
        Ok(driver)
    }

    /// Loads the driver, for programs that need a GPU: tests, benchmarks, diagnosis. `path` may be
    /// a name for the dynamic loader.
    pub fn load(path: &str) -> Result<&'static Self, LoadError> {
        // SAFETY: loading runs the library's initialisers. A CUDA driver's have no demands on the
        // process; whoever names another file vouches for it.
        let handle = unsafe { Handle::open(Some(path), RTLD_LAZY) };
        let handle = handle
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: reason(&error) })?;
        Self::keep(path, handle)
    }

    /// Starts CUDA (`cuInit`), for programs that need a GPU; the transport never does.
    pub fn initialise(&self) -> Result<(), CudaError> {
        // SAFETY: takes a number, which has to be zero.
        let status = unsafe { (self.api.cuInit)(0) };
        self.check("cuInit", status, || String::from("this process"))
    }

    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// Returns true if kernels are loaded when first launched (`CUDA_MODULE_LOADING`, lazy by
    /// default since 12.2). Such a launch waits for all running kernels, and all later work on the
    /// device waits for it. False if the driver does not tell.
    pub fn loads_kernels_lazily(&self) -> bool {
        const LAZY: u32 = sys::CUmoduleLoadingMode_enum::CU_MODULE_LAZY_LOADING as u32;
        let Some(get) = self.api.cuModuleGetLoadingMode else { return false };
        // A number, since a driver may know modes that the header does not.
        let mut mode = 0_u32;
        // SAFETY: a pointer to a number of the enum's size.
        let status = unsafe { get((&raw mut mode).cast()) };
        status == code::SUCCESS && mode == LAZY
    }

    fn keep(path: &str, handle: Handle) -> Result<&'static Self, LoadError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = opened.iter().find(|driver| driver.path == path) {
            return Ok(driver);
        }
        let driver: &'static Self = Box::leak(Box::new(Self::resolve(path, &handle)?));
        // Dropping the handle would unload the functions just looked up.
        std::mem::forget(handle);
        opened.push(driver);
        Ok(driver)
    }

    fn resolve(path: &str, handle: &Handle) -> Result<Self, LoadError> {
        let find = |name: &'static str| {
            // SAFETY: the address is looked up, and not used here.
            let found = unsafe { handle.get::<*mut c_void>(name.as_bytes()) };
            found.map_or(ptr::null_mut(), |symbol| symbol.into_raw())
        };
        // SAFETY: a library with these functions is a CUDA driver, or a stand-in for one.
        let mut api = unsafe { Api::resolve(find) }
            .map_err(|symbol| LoadError::Symbol { path: path.to_owned(), symbol })?;
        let mut version = 0;
        // SAFETY: a pointer to the number. The call needs no `cuInit`.
        let status = unsafe { (api.cuDriverGetVersion)(&raw mut version) };
        let version = if status == code::SUCCESS { version.unsigned_abs() } else { 0 };
        // CUDA 13 introduced this form of the call.
        api.cuMemcpyBatchAsync_v2 = api.cuMemcpyBatchAsync_v2.filter(|_| version >= 13_000);
        let missing = api.missing();
        Ok(Self { path: path.to_owned(), version: DriverVersion(version), missing, api })
    }

    #[inline]
    pub(crate) fn check(
        &self,
        call: &'static str,
        status: Status,
        subject: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        if status == code::SUCCESS { Ok(()) } else { Err(self.error(call, status, subject())) }
    }

    #[cold]
    pub(crate) fn lacks(&self, call: &'static str, subject: String) -> CudaError {
        CudaError {
            call,
            subject,
            code: code::NOT_SUPPORTED,
            name: String::from("CUDA_ERROR_NOT_SUPPORTED"),
            text: format!("driver {} has no such function", self.version),
        }
    }

    #[cold]
    pub(crate) fn error(&self, call: &'static str, status: Status, subject: String) -> CudaError {
        if status == code::DEINITIALIZED {
            // After shutdown the driver does not even name its own errors.
            let (name, text) = (
                "CUDA_ERROR_DEINITIALIZED",
                "the driver has shut down, as it does when a process ends",
            );
            return CudaError { call, subject, code: status, name: name.into(), text: text.into() };
        }
        let words = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text: *const c_char = ptr::null();
            // SAFETY: a pointer to the result. Any number is answered, unknown ones by null.
            unsafe { get(status, &raw mut text) };
            if text.is_null() {
                return String::from("unknown error");
            }
            // SAFETY: a non-null string, which lives as long as the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        CudaError {
            call,
            subject,
            code: status,
            name: words(self.api.cuGetErrorName),
            text: words(self.api.cuGetErrorString),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA driver {} ({})", self.version, self.path)?;
        if !self.missing.is_empty() {
            write!(f, ", without {}", self.missing.join(", "))?;
        }
        Ok(())
    }
}

pub(crate) fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
