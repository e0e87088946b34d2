//! The functions that libfabric calls, by their C names.
//!
//! What each does, and for which arguments, is in libibverbs's manual. All are entered as C enters
//! them: pointers are what an earlier call gave, or what the manual asks for.

#![allow(clippy::missing_safety_doc)]

mod devices;
mod objects;
mod queues;
mod refused;

fn refuse<T>(code: i32) -> *mut T {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = code };
    std::ptr::null_mut()
}
