//! Host memory that the driver locks: allocated here, or brought by the program.

use std::time::Duration;

use super::stream::allowed;
use crate::state::context::current;
use crate::state::device::PINNED;
use crate::state::memory::{Mapping, find, forget, remove};
use crate::state::pages::{Kind, Pages, round_up};
use crate::state::settings::variable;
use crate::state::status::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, NOT_SUPPORTED, Out};

/// Takes as long as on an H200: 1.9 ms for 32 MiB.
fn lock_pages(len: usize) {
    std::thread::sleep(Duration::from_nanos(len as u64 / 17));
}

calls! {
    fn cuMemHostAlloc(into: Out<usize>, len: usize, flags: u32) {
        let context = current()?;
        allowed()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let whole = round_up(len)?;
        context.device.take(PINNED, len)?;
        lock_pages(len);
        let pages = Pages::new(whole)?;
        let base = pages.show(0, true)?;
        let made = Mapping::new((base, len), Kind::Pinned, context.device, Some(pages));
        // The device uses the program's own mapping, as a real one does.
        Mapping { context: Some(context), alias: base, ..made }.insert();
        into.put(base)
    }

    fn cuMemFreeHost(base: usize) {
        let context = current()?;
        allowed()?;
        context.alone(|| forget(remove(base, &[Kind::Pinned])?))
    }

    fn cuMemHostRegister_v2(base: usize, len: usize, _flags: u32) {
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
        context.device.take(PINNED, len)?;
        lock_pages(len);
        let made = Mapping::new((base, len), Kind::Registered, context.device, None);
        Mapping { context: Some(context), ..made }.insert();
        Ok(())
    }

    fn cuMemHostUnregister(base: usize) {
        let context = current()?;
        context.alone(|| {
            let found = remove(base, &[Kind::Registered]).map_err(|_| NOT_REGISTERED)?;
            found.device.give_back(PINNED, found.len);
            Ok(())
        })
    }
}
