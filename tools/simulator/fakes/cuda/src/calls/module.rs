//! Kernels: there are none, as there is nothing that could run them. Every call says so, after it has waited as a driver's
//! does: see [`crate::state::context`].

use std::ffi::{c_char, c_uint, c_void};

use super::capture::allowed;
use super::device::loads_eagerly;
use crate::state::context::current;
use crate::state::status::{NOT_SUPPORTED, Status, answer};

/// Waits until the context is idle, with no other call on it meanwhile.
fn refuse_alone() -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        context.alone(|| Err(NOT_SUPPORTED))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(_into: *mut usize, _image: *const c_void) -> Status {
    refuse_alone()
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    _into: *mut usize,
    _image: *const c_void,
    _options: c_uint,
    _names: *mut c_void,
    _values: *mut *mut c_void,
) -> Status {
    refuse_alone()
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(_module: usize) -> Status {
    refuse_alone()
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(
    _into: *mut usize,
    _module: usize,
    _name: *const c_char,
) -> Status {
    NOT_SUPPORTED
}

/// None was launched before, so each is loaded by this call, unless kernels are loaded eagerly.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    _kernel: usize,
    _blocks_x: c_uint,
    _blocks_y: c_uint,
    _blocks_z: c_uint,
    _threads_x: c_uint,
    _threads_y: c_uint,
    _threads_z: c_uint,
    _shared: c_uint,
    _stream: usize,
    _arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Status {
    if loads_eagerly() { NOT_SUPPORTED } else { refuse_alone() }
}
