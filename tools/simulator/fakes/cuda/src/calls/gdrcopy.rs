//! A GDRCopy for these devices, loaded under the name of the real one: `libgdrapi.so.2`.
//!
//! A mapping leads to the second mapping of the device's pages. Memory must be pinned in whole GPU
//! pages of 64 KiB, inside one allocation. The interface is GDRCopy's public one.
//!
//! Environment: `FAKE_GDRCOPY_VERSION` (`MAJOR.MINOR`, 2.4 by default); `FAKE_GDRCOPY_REFUSE=1`,
//! and `gdr_open` finds no kernel module.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::extras::fake_cuda_window;
use crate::state::settings::variable;
use crate::state::status::Out;
use crate::state::table::Table;

const GPU_PAGE: usize = 64 << 10;

const INVALID: u32 = libc::EINVAL as u32;

#[derive(Debug)]
struct Pinned {
    address: usize,
    window: usize,
    len: usize,
}

static ALL: Table<Pinned> = Table::new();
static PINNED: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
extern "C" fn fake_gdrcopy_pinned() -> usize {
    PINNED.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> usize {
    usize::from(variable("FAKE_GDRCOPY_REFUSE", 0) != 1)
}

calls! {
    fn gdr_pin_buffer(
        _library: usize,
        address: usize,
        len: usize,
        _token: u64,
        _space: u32,
        handle: Out<usize>,
    ) {
        let whole = address % GPU_PAGE == 0 && len % GPU_PAGE == 0;
        let window = if whole { fake_cuda_window(address, len) } else { 0 };
        if window == 0 {
            return Err(INVALID);
        }
        PINNED.fetch_add(len, Ordering::Relaxed);
        handle.put(ALL.insert(Arc::new(Pinned { address, window, len })))
    }

    fn gdr_unpin_buffer(_library: usize, handle: usize) {
        PINNED.fetch_sub(ALL.remove(handle)?.len, Ordering::Relaxed);
        Ok(())
    }

    fn gdr_map(_library: usize, handle: usize, va: Out<usize>, len: usize) {
        let pinned = ALL.get(handle)?;
        if len > pinned.len { Err(INVALID) } else { va.put(pinned.window) }
    }

    fn gdr_unmap(_library: usize, handle: usize, _va: usize, _len: usize) {
        ALL.get(handle).map(drop)
    }

    /// Of the information, the device's address alone, which it begins with.
    fn gdr_get_info_v2(_library: usize, handle: usize, info: Out<u64>) {
        info.put(ALL.get(handle)?.address as u64)
    }

    fn gdr_runtime_get_version(major: Out<c_int>, minor: Out<c_int>) {
        let text = variable("FAKE_GDRCOPY_VERSION", String::from("2.4"));
        let parts = text.split_once('.').and_then(|(major, minor)| {
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        let found = parts.unwrap_or_else(|| panic!("{text:?} is not MAJOR.MINOR"));
        major.put(found.0)?;
        minor.put(found.1)
    }
}
