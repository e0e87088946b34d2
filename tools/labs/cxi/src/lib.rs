//! A persona of cxi: a libfabric with one provider, which shows cxi's attributes and keeps its
//! rules.
//!
//! Data goes by `tcp;ofi_rxm` of a real libfabric. Its objects are used as they are, but for the
//! tables of operations that matter, which are replaced by tables of this library. So what it
//! proves is that its rules are kept, and nothing of cxi's own code. The rules are from libfabric's
//! sources, `prov/cxi` of 1.21 to 2.6:
//!
//! - Progress is manual; regions belong to endpoints (`FI_MR_ENDPOINT`) and are bound to one that
//!   is enabled, enabled, and closed before it. A region has no key before.
//! - Short of `FI_THREAD_SAFE` an endpoint has no lock. Enabling and closing a region waits for
//!   events that reading the completion queue would take: two threads in an endpoint, its queue and
//!   its regions at once end the process.
//! - A dma-buf is known from libfabric 2.5 on. Before, its description would be read as vectors,
//!   and a region of other memory made: that ends the process.
//! - What is injected fits into a command of the NIC.
//!
//! What costs time alone is printed, for tests to read: whether writes are ordered, how many
//! completions a queue holds, whether CUDA copies small writes from memory of devices.
//!
//! # Environment
//! | variable | default | |
//! |---|---|---|
//! | `CXI_LAB_LIBFABRIC` | `libfabric.so.1` | the real one |
//! | `CXI_LAB_VERSION` | `2.6` | the version that this one says it is |
//! | `CXI_LAB_NICS` | 2 | NICs, each an address of the loopback network |

mod domain;
mod endpoint;
mod hook;
mod info;
mod memory_region;
mod persona;

use std::ffi::{c_char, c_int, c_void};

use libfabric_sys::{FI_ENOSYS, fi_fabric_attr, fi_info, fi_type, fid_fabric};

use persona::Persona;

/// The version that the persona says it is.
#[unsafe(no_mangle)]
pub extern "C" fn fi_version() -> u32 {
    Persona::get().version.packed()
}

/// Lists the NICs.
///
/// # Safety
/// As `fi_getinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_getinfo(
    version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    list: *mut *mut fi_info,
) -> c_int {
    if version > fi_version() {
        return -(FI_ENOSYS as c_int);
    }
    // SAFETY: the caller's promise.
    match unsafe { info::list(hints) } {
        Ok(found) => {
            // SAFETY: the caller's promise.
            unsafe { list.write(found) };
            0
        }
        Err(code) => -code,
    }
}

/// Frees a list.
///
/// # Safety
/// As `fi_freeinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_freeinfo(info: *mut fi_info) {
    // SAFETY: all infos are the real library's.
    unsafe { Persona::get().library.freeinfo(info) }
}

/// Copies an entry.
///
/// # Safety
/// As `fi_dupinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_dupinfo(info: *const fi_info) -> *mut fi_info {
    // SAFETY: all infos are the real library's.
    unsafe { Persona::get().library.dupinfo(info) }
}

/// Opens the fabric.
///
/// # Safety
/// As `fi_fabric(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { domain::open_fabric(attr, fabric, context) }
}

/// Libfabric's text for an error code.
#[unsafe(no_mangle)]
pub extern "C" fn fi_strerror(code: c_int) -> *const c_char {
    persona::error_text(code)
}

/// A value in words.
///
/// # Safety
/// As `fi_tostr(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_tostr_r(
    buffer: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: fi_type,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    let text = unsafe { Persona::get().library.tostr(data, kind) };
    let fitting = text.len().min(len.saturating_sub(1));
    // SAFETY: the buffer has `len` bytes, and the text with its end has no more.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fitting);
        if len > 0 {
            buffer.add(fitting).write(0);
        }
    }
    buffer
}
