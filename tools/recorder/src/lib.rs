//! A remote transport of NVSHMEM that records: it loads another one, has NVSHMEM call this one's
//! functions in place of that one's, and writes each call down before it is made and after it has
//! returned. `docs/tool.md` has the variables.

mod entries;
mod file;
#[path = "../../../src/abi/note.rs"]
pub mod note;
mod writer;

use std::cell::Cell;
use std::env;
use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nvshmem_abi::{INIT_SYMBOL, Major, Transport, c, file_name};

/// The transport whose calls are recorded: its name as NVSHMEM_REMOTE_TRANSPORT has it, or its
/// file.
const TRANSPORT: &str = "NVSHMEM_RECORDER_TRANSPORT";

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
    let named = env::var(TRANSPORT).unwrap_or_else(|_| String::from("libfabric"));
    let file = match named.contains('/') {
        true => named,
        false => file_name(&named, api_version / 10000),
    };
    // SAFETY: that the file is a transport is the user's word.
    let init = match unsafe { load(&file) } {
        Ok(init) => init,
        Err(why) => {
            complain(format_args!("{TRANSPORT}: {file}: {why}"));
            return c::NVT_STATUS_INTERNAL;
        }
    };
    if CALLS.replace(true) {
        complain(format_args!("{TRANSPORT}: the recorder itself is no transport to record"));
        return c::NVT_STATUS_INTERNAL;
    }
    // SAFETY: as this was called.
    let status = unsafe { init(out, cuda_table, api_version) };
    CALLS.set(false);
    // SAFETY: by contract.
    let transport = unsafe { out.as_ref() }.copied().filter(|transport| !transport.is_null());
    let (c::NVT_STATUS_SUCCESS, Some(transport)) = (status, transport) else { return status };
    match Major::from_api_version(api_version) {
        Ok(major) => {
            let name = Path::new(&file).file_name().unwrap_or_default();
            // SAFETY: it was made for this version just now, and nobody else has it yet.
            unsafe { entries::wrap(transport, major, &name.to_string_lossy()) };
        }
        Err(why) => complain(format_args!("nothing is recorded: {why}")),
    }
    status
}

type Init = unsafe extern "C" fn(*mut *mut Transport, *mut c_void, c_int) -> c_int;

/// Loads a transport, for ever.
///
/// # Safety
/// It is one.
unsafe fn load(file: &str) -> Result<Init, String> {
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
