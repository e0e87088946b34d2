//! Kernels: there are none, as there is nothing that could run them. Every call says so.

use std::ffi::{c_char, c_uint, c_void};

use crate::state::status::{NOT_SUPPORTED, Status};

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(_into: *mut usize, _image: *const c_void) -> Status {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(_module: usize) -> Status {
    NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(
    _into: *mut usize,
    _module: usize,
    _name: *const c_char,
) -> Status {
    NOT_SUPPORTED
}

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
    NOT_SUPPORTED
}
