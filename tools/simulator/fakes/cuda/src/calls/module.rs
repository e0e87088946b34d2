//! Kernels: there is nothing that could run them, but one is known by its name and done by the CPU.
//! It waits for a word of the host, as the transport has it do to measure copies beside a kernel.
//! Every other one is refused, after the call has waited as a driver's does: see
//! [`crate::state::context`].

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use super::device::loads_eagerly;
use super::stream::{allowed, of_handle};
use crate::state::context::{Work, current, enqueue};
use crate::state::memory::place;
use crate::state::settings::variable;
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Status, answer, put};
use crate::state::table::Table;

/// The kernel that is known: it sets the second word from its argument, and ends when the first one
/// is set.
const WAITS: &CStr = c"nvshmem_libfabric_wait";

#[derive(Debug)]
struct Module;

static MODULES: Table<Module> = Table::new();

fn refuse_alone() -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        context.alone(|| Err(NOT_SUPPORTED))
    }))
}

/// Whether an image is PTX with the kernel that is known.
///
/// # Safety
/// PTX ends with a zero. Nothing else is read further than its first bytes.
unsafe fn is_known(image: *const c_void) -> bool {
    const PTX: &[u8] = b".version";
    if image.is_null() || variable("FAKE_CUDA_KERNELS", 1) == 0 {
        return false;
    }
    // SAFETY: every image has that many bytes.
    if unsafe { std::slice::from_raw_parts(image.cast::<u8>(), PTX.len()) } != PTX {
        return false;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    text.windows(WAITS.count_bytes()).any(|name| name == WAITS.to_bytes())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(into: *mut usize, image: *const c_void) -> Status {
    // SAFETY: the caller's promise.
    if !unsafe { is_known(image) } {
        return refuse_alone();
    }
    answer(current().and_then(|context| {
        allowed()?;
        // SAFETY: the caller's promise.
        context.alone(|| unsafe { put(into, MODULES.insert(Arc::new(Module))) })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: usize) -> Status {
    if MODULES.get(module).is_err() {
        return refuse_alone();
    }
    answer(current().and_then(|context| {
        allowed()?;
        context.alone(|| MODULES.remove(module).map(drop))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    into: *mut usize,
    module: usize,
    name: *const c_char,
) -> Status {
    if MODULES.get(module).is_err() {
        return NOT_SUPPORTED;
    }
    // SAFETY: a string, by the caller's promise.
    if unsafe { CStr::from_ptr(name) } != WAITS {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    answer(unsafe { put(into, module) })
}

/// None was launched before, so each is loaded by this call, unless kernels are loaded eagerly.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    kernel: usize,
    _blocks_x: c_uint,
    _blocks_y: c_uint,
    _blocks_z: c_uint,
    _threads_x: c_uint,
    _threads_y: c_uint,
    _threads_z: c_uint,
    _shared: c_uint,
    stream: usize,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Status {
    if MODULES.get(kernel).is_err() {
        return if loads_eagerly() { NOT_SUPPORTED } else { refuse_alone() };
    }
    answer(current().and_then(|context| {
        let stream = of_handle(stream)?;
        // SAFETY: the kernel has one argument, an address.
        let words = unsafe { **arguments.cast::<*mut usize>() };
        let words = place(words, 8)?;
        if !words.known() {
            return Err(INVALID_VALUE);
        }
        let launch = || {
            enqueue(&stream, Work::Wait(words));
            Ok(())
        };
        if loads_eagerly() { launch() } else { context.alone(launch) }
    }))
}
