//! Host memory that the driver locks: allocated here, or brought by the program.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::stream::allowed;
use crate::state::context::current;
use crate::state::device::take;
use crate::state::memory::{Mapping, find, forget, fresh_id, insert, remove};
use crate::state::pages::{Kind, Pages, round_up};
use crate::state::settings::variable;
use crate::state::status::{
    ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, NOT_SUPPORTED, Outcome, Status, answer, put,
};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(into: *mut *mut c_void, len: usize, flags: u32) -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let device = context.device;
        let whole = round_up(len)?;
        take(&device.pinned, &device.behaviour.pinned_limit, len)?;
        lock_pages(len);
        let pages = Pages::new(whole)?;
        let base = pages.show(0, true)?;
        insert(Mapping {
            base,
            len,
            kind: Kind::Pinned,
            context: Some(context),
            device,
            // The device uses the program's own mapping, as a real one does.
            alias: base,
            pages: Some(pages),
            opened: true,
            cpu: true,
            physical: None,
            id: fresh_id(),
        });
        // SAFETY: the caller's promise.
        unsafe { put(into, base as *mut c_void) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(base: *mut c_void) -> Status {
    answer(current().and_then(|context| {
        allowed()?;
        context.alone(|| forget(remove(base as usize, &[Kind::Pinned])?))
    }))
}

/// Takes as long as on an H200: 1.9 ms for 32 MiB.
fn lock_pages(len: usize) {
    std::thread::sleep(Duration::from_nanos(len as u64 / 17));
}

fn register(base: usize, len: usize) -> Outcome {
    let context = current()?;
    if variable("FAKE_CUDA_REGISTERS", 1) == 0 {
        return Err(NOT_SUPPORTED);
    }
    if len == 0 || base == 0 {
        return Err(INVALID_VALUE);
    }
    if find(base).is_some() || find(base + len - 1).is_some() {
        return Err(ALREADY_REGISTERED);
    }
    take(&context.device.pinned, &context.device.behaviour.pinned_limit, len)?;
    lock_pages(len);
    insert(Mapping {
        base,
        len,
        kind: Kind::Registered,
        context: Some(context),
        device: context.device,
        alias: base,
        pages: None,
        opened: true,
        cpu: true,
        physical: None,
        id: fresh_id(),
    });
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(base: *mut c_void, len: usize, _flags: u32) -> Status {
    answer(register(base as usize, len))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(base: *mut c_void) -> Status {
    answer(current().and_then(|context| {
        context.alone(|| {
            let found = remove(base as usize, &[Kind::Registered]).map_err(|_| NOT_REGISTERED)?;
            found.device.pinned.fetch_sub(found.len as u64, Relaxed);
            Ok(())
        })
    }))
}
