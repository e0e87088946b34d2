//! A GDRCopy for these devices, loaded under the name of the real one: `libgdrapi.so.2`.
//!
//! A mapping leads to the second mapping of the device's pages. Memory must be pinned in whole GPU
//! pages of 64 KiB, inside one allocation. The interface is GDRCopy's public one.
//!
//! Environment: `FAKE_GDRCOPY_VERSION` (`MAJOR.MINOR`, 2.4 by default); `FAKE_GDRCOPY_REFUSE=1`,
//! and `gdr_open` finds no kernel module.

use super::extras::fake_cuda_window;
use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const GPU_PAGE: usize = 64 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle(c_ulong);

struct Pinned {
    address: usize,
    window: usize,
    len: usize,
}

#[repr(C)]
struct Info {
    va: u64,
    mapped_size: u64,
    page_size: u32,
    tm_cycles: u64,
    cycles_per_ms: u32,
    flags: u32,
    mapping_type: c_int,
}

static PINNED: AtomicUsize = AtomicUsize::new(0);

/// How many ranges are pinned, for tests.
#[unsafe(no_mangle)]
extern "C" fn fake_gdrcopy_pinned() -> usize {
    PINNED.load(Ordering::Relaxed)
}

fn version() -> (c_int, c_int) {
    let text = std::env::var("FAKE_GDRCOPY_VERSION").unwrap_or_else(|_| String::from("2.4"));
    let parts = text.split_once('.');
    match parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))) {
        Some(version) => version,
        None => panic!("FAKE_GDRCOPY_VERSION: {text:?} is not MAJOR.MINOR"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> *mut c_void {
    if std::env::var("FAKE_GDRCOPY_REFUSE").as_deref() == Ok("1") {
        return ptr::null_mut();
    }
    ptr::without_provenance_mut(1)
}

#[unsafe(no_mangle)]
extern "C" fn gdr_close(_library: *mut c_void) -> c_int {
    0
}

/// # Safety
/// As GDRCopy has it, here and below: pointers are valid, handles come from `gdr_pin_buffer`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_pin_buffer(
    _library: *mut c_void,
    address: c_ulong,
    len: usize,
    _token: u64,
    _space: u32,
    handle: *mut Handle,
) -> c_int {
    let address = address as usize;
    let whole = address % GPU_PAGE == 0 && len % GPU_PAGE == 0;
    let window = if whole { fake_cuda_window(address, len) } else { 0 };
    if window == 0 {
        return libc::EINVAL;
    }
    let pinned = Box::into_raw(Box::new(Pinned { address, window, len }));
    // SAFETY: the caller's promise.
    unsafe { handle.write(Handle(pinned as c_ulong)) };
    PINNED.fetch_add(1, Ordering::Relaxed);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_unpin_buffer(_library: *mut c_void, handle: Handle) -> c_int {
    // SAFETY: made by `gdr_pin_buffer`, and given back once.
    drop(unsafe { Box::from_raw(handle.0 as *mut Pinned) });
    PINNED.fetch_sub(1, Ordering::Relaxed);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_map(
    _library: *mut c_void,
    handle: Handle,
    va: *mut *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: made by `gdr_pin_buffer`.
    let pinned = unsafe { &*(handle.0 as *const Pinned) };
    if len > pinned.len {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    unsafe { va.write(pinned.window as *mut c_void) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unmap(
    _library: *mut c_void,
    _handle: Handle,
    _va: *mut c_void,
    _len: usize,
) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_get_info_v2(
    _library: *mut c_void,
    handle: Handle,
    info: *mut Info,
) -> c_int {
    // SAFETY: made by `gdr_pin_buffer`.
    let pinned = unsafe { &*(handle.0 as *const Pinned) };
    let found = Info {
        va: pinned.address as u64,
        mapped_size: pinned.len as u64,
        page_size: GPU_PAGE as u32,
        tm_cycles: 0,
        cycles_per_ms: 0,
        flags: 1,
        mapping_type: 1,
    };
    // SAFETY: the caller's promise.
    unsafe { info.write(found) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    let (found_major, found_minor) = version();
    // SAFETY: the caller's promise.
    unsafe {
        major.write(found_major);
        minor.write(found_minor);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_driver_get_version(
    _library: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { gdr_runtime_get_version(major, minor) };
    0
}
