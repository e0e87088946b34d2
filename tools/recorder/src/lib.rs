//! A remote transport of NVSHMEM that records: it loads another one, has NVSHMEM call this one's
//! functions in place of that one's, and writes each call down before it is made and after it has
//! returned. `docs/tool.md` has the variables.
//!
//! NVSHMEM loads only transports whose names it knows. So the installed file has, inside, the name
//! of the libfabric transport, under which NVSHMEM takes it when it is preloaded. The other one may
//! have that name too, and is therefore loaded by its path: one with a slash in it is compared with
//! files, not with names inside.

mod entries;
mod file;
#[path = "../../../src/abi/note.rs"]
pub mod note;
mod writer;

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt::Display;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nvshmem_abi::{INIT_SYMBOL, Major, Transport, c, file_name};

/// The file of the transport whose calls are recorded. Unless set, the plugin beside this one.
const TRANSPORT: &str = "NVSHMEM_RECORDER_TRANSPORT";

/// A place in this library.
static HERE: u8 = 0;

thread_local! {
    /// Whether this thread is in the entry of the transport behind.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Says something to the user. Where there is no error output any more, nobody.
fn complain(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "nvshmem_transport_recorder: {what}");
}

/// The entry that NVSHMEM looks up: has the transport behind this one make its own, and puts
/// recorded functions into it.
///
/// # Safety
/// As NVSHMEM calls it: `out` is null or valid for writing one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvshmemt_init(
    out: *mut *mut Transport,
    cuda_table: *mut c_void,
    api_version: c_int,
) -> c_int {
    let named = env::var_os(TRANSPORT).filter(|named| !named.is_empty());
    let file = named.map_or_else(|| beside(api_version / 10000), PathBuf::from);
    let fail = |why: &str| {
        complain(format_args!("{TRANSPORT}: {}: {why}", file.display()));
        c::NVT_STATUS_INTERNAL
    };
    if CALLS.replace(true) {
        return fail("the recorder itself is no transport to record");
    }
    // SAFETY: that the file is a transport is the user's word.
    let init = match unsafe { load(&file) } {
        Ok(init) => init,
        Err(why) => {
            CALLS.set(false);
            return fail(&why);
        }
    };
    // SAFETY: as this was called.
    let status = unsafe { init(out, cuda_table, api_version) };
    CALLS.set(false);
    // SAFETY: by contract.
    let transport = unsafe { out.as_ref() }.copied().filter(|transport| !transport.is_null());
    let (c::NVT_STATUS_SUCCESS, Some(transport)) = (status, transport) else { return status };
    match Major::from_api_version(api_version) {
        Ok(major) => {
            let name = file.file_name().unwrap_or_default();
            // SAFETY: it was made for this version just now, and nobody else has it yet.
            unsafe { entries::wrap(transport, major, &name.to_string_lossy()) };
        }
        Err(why) => complain(format_args!("nothing is recorded: {why}")),
    }
    status
}

type Init = unsafe extern "C" fn(*mut *mut Transport, *mut c_void, c_int) -> c_int;

/// The plugin that is installed beside this library.
fn beside(major: c_int) -> PathBuf {
    // Of exported functions that of another library may come first.
    let here = (&raw const HERE).cast();
    // SAFETY: all zero is a value of it: null pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: it is written in the call alone.
    let known = unsafe { libc::dladdr(here, &raw mut found) } != 0 && !found.dli_fname.is_null();
    let mut path = PathBuf::from("./");
    if known {
        // SAFETY: the linker has the name as long as this library, which is never unloaded.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        path.push(OsStr::from_bytes(name.to_bytes()));
    }
    path.with_file_name(file_name("libfabric", major))
}

/// Loads a transport, for ever.
///
/// # Safety
/// It is one.
unsafe fn load(file: &Path) -> Result<Init, String> {
    if !file.as_os_str().as_bytes().contains(&b'/') {
        return Err(String::from("it is no path, as there is no slash in it"));
    }
    let explain = |error: libloading::Error| match std::error::Error::source(&error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    // SAFETY: its initialisers run, as they would if NVSHMEM loaded it.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(explain)?;
    let library = ManuallyDrop::new(library);
    // SAFETY: the type of that symbol in every transport.
    let init = unsafe { library.get::<Option<Init>>(INIT_SYMBOL.as_bytes()) }.map_err(explain)?;
    init.ok_or_else(|| format!("{INIT_SYMBOL} is at address 0"))
}
