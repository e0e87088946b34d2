//! Libfabric's log, and who takes it (`src/log.c`).

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libfabric_sys::{
    FI_CLASS_LOG, FI_EALREADY, FI_EINVAL, FI_LOG_MR, fi_ops, fi_ops_log, fi_provider, fid,
    fid_logging,
};

use crate::info::text;

#[derive(Clone, Copy)]
struct Taker(*const fi_ops_log);

// SAFETY: it lives until its owner closes what was imported, which forgets it here.
unsafe impl Send for Taker {}

static TAKER: Mutex<Option<Taker>> = Mutex::new(None);

pub(crate) fn say(provider: &str, level: u32, line: &str) {
    let taker = *TAKER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Taker(table)) = taker else {
        if std::env::var_os("FI_LOG_LEVEL").is_some() {
            eprintln!("libfabric::{provider}:mr: {line}");
        }
        return;
    };
    let (name, line) = (CString::new(provider), CString::new(format!("{line}\n")));
    let (name, line) = (name.unwrap_or_default(), line.unwrap_or_default());
    let context = [ptr::null_mut(); 4];
    let provider = fi_provider { version: 0, fi_version: 0, context, name: name.as_ptr() };
    // SAFETY: the table is its taker's until it is closed; all that is passed lives until the call
    // ends.
    unsafe {
        let wanted = (*table).enabled.is_some_and(|on| on(&provider, level, FI_LOG_MR, 0) != 0);
        if let (true, Some(take)) = (wanted, (*table).log) {
            take(&provider, level, FI_LOG_MR, c"cxip_iomm_init".as_ptr(), 1, line.as_ptr());
        }
    }
}

/// Opens the log (`fi_open(3)`), the one object of libfabric itself that is known here.
///
/// # Safety
/// The name is a text, and the place is valid for a write.
pub(crate) unsafe fn open(
    name: *const c_char,
    object: *mut *mut fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { text(name) }.as_c_str() != c"logging" {
        return -(FI_EINVAL as c_int);
    }
    if TAKER.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        return -FI_EALREADY;
    }
    let ops = table(import, forget);
    let log = Box::new(fid { fclass: FI_CLASS_LOG as usize, context, ops });
    // SAFETY: the caller's promise.
    unsafe { object.write(Box::leak(log)) };
    0
}

type Bind = unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int;
type Close = unsafe extern "C" fn(*mut fid) -> c_int;

fn table(bind: Bind, close: Close) -> *mut fi_ops {
    // SAFETY: a number and functions that may be missing: all zero is one.
    let mut operations: fi_ops = unsafe { std::mem::zeroed() };
    operations.size = size_of::<fi_ops>();
    (operations.bind, operations.close) = (Some(bind), Some(close));
    Box::leak(Box::new(operations))
}

unsafe extern "C" fn import(_log: *mut fid, taker: *mut fid, _flags: u64) -> c_int {
    // SAFETY: called as `fi_import_log` does, with an object of that kind.
    unsafe {
        if (*taker).fclass != FI_CLASS_LOG as usize {
            return -(FI_EINVAL as c_int);
        }
        let operations = (*taker.cast::<fid_logging>()).ops;
        if (*operations).size < size_of::<fi_ops_log>() {
            return -(FI_EINVAL as c_int);
        }
        *TAKER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taker(operations));
        (*taker).ops = table(refuse, give_back);
    }
    0
}

/// The log itself stays open.
unsafe extern "C" fn forget(_log: *mut fid) -> c_int {
    0
}

unsafe extern "C" fn refuse(_taker: *mut fid, _other: *mut fid, _flags: u64) -> c_int {
    -(FI_EINVAL as c_int)
}

unsafe extern "C" fn give_back(_taker: *mut fid) -> c_int {
    *TAKER.lock().unwrap_or_else(PoisonError::into_inner) = None;
    0
}
