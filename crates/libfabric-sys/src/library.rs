//! The library, opened at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

use crate::bindings::v1_17;
use crate::newer::NEWEST_API;
use crate::version::Version;
use crate::{FI_ENOSYS, fi_fabric_attr, fi_info, fi_type, fid, fid_fabric};

/// Libfabric's soname, which [`Library::load`] opens unless told otherwise.
pub const DEFAULT_LIBRARY: &str = "libfabric.so.1";

pub const MINIMUM_VERSION: Version =
    Version::new(v1_17::FI_MAJOR_VERSION as u16, v1_17::FI_MINOR_VERSION as u16);

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("cannot load libfabric from `{path}`: {reason}; {}", remedy(.path, .reason))]
    Open { path: String, reason: String },
    #[error("`{path}` is not a usable libfabric: it has no `{symbol}` ({reason})")]
    Symbol { path: String, symbol: &'static str, reason: String },
    #[error("`{path}` is libfabric {found}, but {MINIMUM_VERSION} or newer is needed")]
    TooOld { path: String, found: Version },
    #[error(
        "cannot load libfabric from `{path}`: this process uses `{loaded}` already, and one \
         process can use only one libfabric"
    )]
    AlreadyLoaded { path: String, loaded: String },
}

/// Returns what helps against the dynamic loader's reason.
fn remedy(path: &str, reason: &str) -> String {
    const OTHERS: [(&str, &str); 5] = [
        ("No such file", "libfabric is there, and needs that file"),
        ("open files", "raise `ulimit -n`"),
        ("failed to map", "raise `ulimit -v`, or the memory of this process"),
        ("not found (required by", "an older library is found first: see LD_LIBRARY_PATH"),
        ("undefined symbol", "an older library is found first: see LD_LIBRARY_PATH"),
    ];
    if reason.contains(OTHERS[0].0) && reason.starts_with(path) {
        return format!("install libfabric {MINIMUM_VERSION} or newer, or name the file to load");
    }
    let known = OTHERS.iter().find(|(words, _)| reason.contains(words));
    known.map_or("name another file to load", |(_, helps)| helps).to_owned()
}

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type OpenObject = unsafe extern "C" fn(
    u32,
    *const c_char,
    *mut c_void,
    usize,
    u64,
    *mut *mut fid,
    *mut c_void,
) -> c_int;
type ToString = unsafe extern "C" fn(*mut c_char, usize, *const c_void, fi_type) -> *mut c_char;

/// The libfabric of this process.
#[derive(Debug)]
pub struct Library {
    path: String,
    version: Version,
    getinfo: GetInfo,
    /// Frees a list from [`Self::getinfo`] or an entry from `dupinfo`: null, or given out by this
    /// library and not freed.
    pub freeinfo: unsafe extern "C" fn(*mut fi_info),
    /// Copies an entry given out by this library and not freed; null gives an empty one. Null when
    /// there is no memory.
    pub dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    /// Opens a fabric, `fi_fabric(3)`, with the attributes of a live entry of [`Self::getinfo`].
    pub fabric: OpenFabric,
    open: Option<OpenObject>,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    tostr_r: ToString,
}

/// The one in use. A failed attempt leaves it empty, so that another path can be tried.
static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);

impl Library {
    /// Opens libfabric, or answers with the one in use. It stays open until the process ends.
    ///
    /// `path` is a path, or a name for the dynamic loader to search. Any thread may call this.
    ///
    /// # Errors
    /// When there is no such library, when it is not libfabric or older than
    /// [`MINIMUM_VERSION`], and when this process has opened another one before: two names are
    /// different libraries even when they lead to the same file.
    pub fn load(path: &str) -> Result<&'static Self, LoadError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *loaded {
            if library.path == path {
                return Ok(library);
            }
            return Err(LoadError::AlreadyLoaded {
                path: path.to_owned(),
                loaded: library.path.clone(),
            });
        }
        let library: &'static Self = Box::leak(Box::new(Self::open(path)?));
        *loaded = Some(library);
        Ok(library)
    }

    fn open(path: &str) -> Result<Self, LoadError> {
        // SAFETY: loading runs the library's initialisers. Libfabric's have no demands on the
        // process; for any other file the user has named, the user vouches.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| LoadError::Open { path: path.to_owned(), reason: text(&error) })?;
        // SAFETY: `uint32_t fi_version(void)` in every libfabric.
        let version: unsafe extern "C" fn() -> u32 =
            unsafe { symbol(&handle, path, "fi_version") }?;
        // SAFETY: takes nothing, and has no precondition.
        let version = Version::from_packed(unsafe { version() });
        if version < MINIMUM_VERSION {
            return Err(LoadError::TooOld { path: path.to_owned(), found: version });
        }
        // SAFETY: the types are those of the prototypes in <rdma/fabric.h> and <rdma/fi_errno.h>.
        // Symbols are versioned, and the dynamic loader gives the newest one, which keeps the
        // fields of older headers in place.
        let library = unsafe {
            Self {
                path: path.to_owned(),
                version,
                getinfo: symbol(&handle, path, "fi_getinfo")?,
                freeinfo: symbol(&handle, path, "fi_freeinfo")?,
                dupinfo: symbol(&handle, path, "fi_dupinfo")?,
                fabric: symbol(&handle, path, "fi_fabric")?,
                // What a user names in its place may lack what few need.
                open: symbol(&handle, path, "fi_open").ok(),
                strerror: symbol(&handle, path, "fi_strerror")?,
                tostr_r: symbol(&handle, path, "fi_tostr_r")?,
            }
        };
        // Dropping the handle would close the library under the functions just taken from it.
        std::mem::forget(handle);
        Ok(library)
    }

    /// The name or path it was opened by.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// The API version to ask for: the newest that the library and this crate know, for every
    /// purpose alike. A library asked for a newer API than its own answers `-FI_ENOSYS`; asked for
    /// one before 1.18, efa leaves the NIC's own reads and writes unused on some instances.
    pub fn api_version(&self) -> Version {
        self.version.min(NEWEST_API)
    }

    /// Lists what is available, `fi_getinfo(3)`, for [`Self::api_version`].
    ///
    /// # Safety
    /// As the man page says: `node` and `service` are strings or null, `hints` comes from
    /// [`Self::dupinfo`] or is null, and the list is given back by [`Self::freeinfo`].
    pub unsafe fn getinfo(
        &self,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        list: *mut *mut fi_info,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.getinfo)(self.api_version().packed(), node, service, flags, hints, list) }
    }

    /// Opens an object of libfabric itself by its name, `fi_open(3)`, without attributes.
    ///
    /// # Safety
    /// `object` is valid for a write.
    pub unsafe fn open_object(&self, name: &CStr, object: *mut *mut fid) -> c_int {
        let Some(open) = self.open else { return -(FI_ENOSYS as c_int) };
        let (version, nothing) = (self.api_version().packed(), ptr::null_mut());
        // SAFETY: a name, no attributes, and the caller's promise.
        unsafe { open(version, name.as_ptr(), nothing, 0, 0, object, nothing) }
    }

    /// Libfabric's text for an error code. The sign does not matter.
    pub fn strerror(&self, code: i32) -> String {
        // SAFETY: takes any number and returns a static string.
        let text = unsafe { (self.strerror)(code.saturating_abs()) };
        if text.is_null() {
            return String::from("unknown error");
        }
        // SAFETY: not null, and terminated; libfabric's texts live as long as the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// A value in words, `fi_tostr(3)`; at most 4 KiB of it.
    ///
    /// # Safety
    /// `data` points to a value of the type that `kind` names.
    pub unsafe fn tostr(&self, data: *const c_void, kind: fi_type) -> String {
        let mut text = [0 as c_char; 4096];
        // SAFETY: the buffer has the size given; the caller vouches for `data`.
        let filled = unsafe { (self.tostr_r)(text.as_mut_ptr(), text.len(), data, kind) };
        if filled.is_null() {
            return String::new();
        }
        let last = text.len() - 1;
        text[last] = 0;
        // SAFETY: terminated within the buffer by the line above at the latest.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    }
}

/// Looks up a function.
///
/// # Safety
/// `F` is the function pointer type of the symbol.
unsafe fn symbol<F: Copy>(handle: &Handle, path: &str, name: &'static str) -> Result<F, LoadError> {
    // SAFETY: the caller's promise.
    match unsafe { handle.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => {
            Err(LoadError::Symbol { path: path.to_owned(), symbol: name, reason: text(&error) })
        }
    }
}

/// The loader's own text: libloading keeps it in the source of its error.
fn text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_fit_the_reason() {
        for (reason, helps) in [
            (
                "libfabric.so.1: cannot open shared object file: No such file or directory",
                "install",
            ),
            (
                "libefa.so.1: cannot open shared object file: No such file or directory",
                "needs that",
            ),
            ("libfabric.so.1: cannot open shared object file: Too many open files", "ulimit -n"),
            ("libfabric.so.1: failed to map segment from shared object", "ulimit -v"),
            (
                "/x/libibverbs.so.1: version `IBVERBS_1.14' not found (required by /y/libfabric.so.1)",
                "see LD_LIBRARY_PATH",
            ),
            ("/y/libfabric.so.1: undefined symbol: ibv_x, version IBVERBS_1.1", "an older library"),
            ("libfabric.so.1: invalid ELF header", "another file"),
        ] {
            let error = LoadError::Open { path: DEFAULT_LIBRARY.into(), reason: reason.into() };
            assert!(error.to_string().contains(helps), "{error}");
            assert_eq!(error.to_string().contains("install"), helps == "install", "{error}");
        }
    }
}
