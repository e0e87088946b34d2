//! GDRCopy's library: CPU mappings of device memory, by a kernel module. Optional.

use std::ffi::{c_int, c_ulong, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_NOW};
use thiserror::Error;

use crate::driver::library::reason;
use crate::memory::device_memory::GPU_PAGE;

/// Name of the library, with the version of the interface used here.
pub const GDRCOPY_LIBRARY: &str = "libgdrapi.so.2";

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GdrcopyError {
    #[error("cannot load GDRCopy from `{path}`: {reason}")]
    Open { path: String, reason: String },
    #[error("`{path}` is no GDRCopy: it has no `{symbol}`")]
    Symbol { path: String, symbol: &'static str },
    #[error("`{path}` is GDRCopy {major}.{minor}, and 2.x is needed")]
    Version { path: String, major: i32, minor: i32 },
    #[error("GDRCopy {version} is installed, but `gdr_open` failed: is the module gdrdrv loaded?")]
    NoModule { version: String },
    #[error("{call} for {len} bytes at {addr:#x}: error {code} ({text})")]
    Call { call: &'static str, addr: usize, len: usize, code: i32, text: String },
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Pinned(c_ulong);

#[derive(Debug)]
struct Functions {
    pin: unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut Pinned) -> c_int,
    unpin: unsafe extern "C" fn(*mut c_void, Pinned) -> c_int,
    map: unsafe extern "C" fn(*mut c_void, Pinned, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut c_void, Pinned, *mut c_void, usize) -> c_int,
    info: unsafe extern "C" fn(*mut c_void, Pinned, *mut Info) -> c_int,
}

#[repr(C)]
#[derive(Default)]
struct Info {
    va: u64,
    rest: [u64; 15],
}

/// GDRCopy, open until the process ends.
#[derive(Debug)]
pub struct Gdrcopy {
    path: String,
    version: (i32, i32),
    functions: Functions,
    /// The library's handle of the module, locked since the library's list of pinned ranges is not.
    open: Mutex<ModuleHandle>,
}

#[derive(Debug)]
struct ModuleHandle(*mut c_void);

// SAFETY: a handle that any thread may use, one at a time.
unsafe impl Send for ModuleHandle {}

static OPENED: Mutex<Vec<&'static Gdrcopy>> = Mutex::new(Vec::new());

impl Gdrcopy {
    /// Opens GDRCopy once. `path` may be a name for the dynamic loader.
    pub fn load(path: &str) -> Result<&'static Self, GdrcopyError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gdrcopy) = opened.iter().find(|gdrcopy| gdrcopy.path == path) {
            return Ok(gdrcopy);
        }
        let gdrcopy: &'static Self = Box::leak(Box::new(Self::open(path)?));
        opened.push(gdrcopy);
        Ok(gdrcopy)
    }

    fn open(path: &str) -> Result<Self, GdrcopyError> {
        // SAFETY: loading runs the library's initialisers. GDRCopy's have no demands on the
        // process; whoever names another file vouches for it.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW) };
        let handle = handle.map_err(|error| GdrcopyError::Open {
            path: path.to_owned(),
            reason: reason(&error),
        })?;
        // SAFETY: the types are those of the prototypes in GDRCopy's public header, version 2.
        let (functions, get_version, open) = unsafe {
            type Version = unsafe extern "C" fn(*mut c_int, *mut c_int);
            type OpenModule = unsafe extern "C" fn() -> *mut c_void;
            let functions = Functions {
                pin: symbol(&handle, path, "gdr_pin_buffer")?,
                unpin: symbol(&handle, path, "gdr_unpin_buffer")?,
                map: symbol(&handle, path, "gdr_map")?,
                unmap: symbol(&handle, path, "gdr_unmap")?,
                info: symbol(&handle, path, "gdr_get_info_v2")
                    .or_else(|_| symbol(&handle, path, "gdr_get_info"))?,
            };
            let version: Version = symbol(&handle, path, "gdr_runtime_get_version")?;
            let open: OpenModule = symbol(&handle, path, "gdr_open")?;
            (functions, version, open)
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: pointers to two numbers.
        unsafe { get_version(&raw mut major, &raw mut minor) };
        if major != 2 {
            return Err(GdrcopyError::Version { path: path.to_owned(), major, minor });
        }
        // SAFETY: takes nothing, and has no precondition.
        let module = unsafe { open() };
        if module.is_null() {
            return Err(GdrcopyError::NoModule { version: format!("{major}.{minor}") });
        }
        // Dropping the handle would unload the functions just looked up.
        std::mem::forget(handle);
        let open = Mutex::new(ModuleHandle(module));
        Ok(Self { path: path.to_owned(), version: (major, minor), functions, open })
    }

    /// Maps device memory of one allocation for the CPU. Its context must be bound.
    pub(crate) fn map(
        &'static self,
        addr: usize,
        len: usize,
    ) -> Result<GdrcopyMapping, GdrcopyError> {
        let start = addr - addr % GPU_PAGE;
        let len = (addr + len - start).next_multiple_of(GPU_PAGE);
        let check = |call, code| match code {
            0 => Ok(()),
            code => {
                let text = std::io::Error::from_raw_os_error(code).to_string();
                Err(GdrcopyError::Call { call, addr: start, len, code, text })
            }
        };
        let (functions, open) = (&self.functions, self.lock());
        let mut pinned = Pinned(0);
        let mut cpu = ptr::null_mut();
        let mut info = Info::default();
        // SAFETY: pointers to the results; `info` is longer than any version's structure. Pinned
        // memory is unpinned when a later step fails.
        unsafe {
            let code = (functions.pin)(open.0, start as c_ulong, len, 0, 0, &raw mut pinned);
            check("gdr_pin_buffer", code)?;
            let mapped = check("gdr_map", (functions.map)(open.0, pinned, &raw mut cpu, len))
                .and_then(|()| {
                    let code = (functions.info)(open.0, pinned, &raw mut info);
                    check("gdr_get_info", code).inspect_err(|_| {
                        let _ = (functions.unmap)(open.0, pinned, cpu, len);
                    })
                });
            if let Err(error) = mapped {
                let _ = (functions.unpin)(open.0, pinned);
                return Err(error);
            }
        }
        Ok(GdrcopyMapping {
            gdrcopy: self,
            pinned,
            cpu: cpu as usize,
            start: info.va as usize,
            len,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ModuleHandle> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Gdrcopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GDRCopy {}.{}", self.version.0, self.version.1)
    }
}

/// GDRCopy's CPU mapping of device memory, until dropped.
#[derive(Debug)]
pub(crate) struct GdrcopyMapping {
    gdrcopy: &'static Gdrcopy,
    pinned: Pinned,
    cpu: usize,
    /// Device address of the first byte.
    start: usize,
    len: usize,
}

impl GdrcopyMapping {
    /// Returns the CPU's address of a device address, which must be mapped.
    pub(crate) fn cpu_addr(&self, addr: usize) -> usize {
        self.cpu + (addr - self.start)
    }
}

impl Drop for GdrcopyMapping {
    fn drop(&mut self) {
        let functions = &self.gdrcopy.functions;
        let open = self.gdrcopy.lock();
        // After an error the memory is gone already, and the mapping with it.
        // SAFETY: mapped and pinned by `map`, and given back once, here, in GDRCopy's order.
        unsafe {
            let _ = (functions.unmap)(open.0, self.pinned, self.cpu as *mut _, self.len);
            let _ = (functions.unpin)(open.0, self.pinned);
        }
    }
}

/// # Safety
/// `F` is the function pointer type of the symbol.
unsafe fn symbol<F: Copy>(
    handle: &Handle,
    path: &str,
    symbol: &'static str,
) -> Result<F, GdrcopyError> {
    // SAFETY: the caller's promise.
    match unsafe { handle.get::<F>(symbol.as_bytes()) } {
        Ok(found) => Ok(*found),
        Err(_) => Err(GdrcopyError::Symbol { path: path.to_owned(), symbol }),
    }
}
