//! Contexts: the primary ones of the devices, and the stack of each thread.

use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::stream::allowed;
use crate::state::context::{BOUND, Context, Raw, bound, current, of_device, of_handle};
use crate::state::device::{device, devices};
use crate::state::memory::forget_all;
use crate::state::settings::variable;
use crate::state::status::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Out,
};
use crate::state::table::lock;

static AT_FLUSH: Mutex<Vec<unsafe extern "C" fn()>> = Mutex::new(Vec::new());

fn raw(context: Option<&'static Context>) -> Raw {
    context.map_or(std::ptr::null(), std::ptr::from_ref)
}

calls! {
    fn cuDevicePrimaryCtxRetain(into: Out<Raw>, number: c_int) {
        let device = device(number)?;
        let (context, holders) = &mut *lock(&device.primary);
        *holders += 1;
        into.put(raw(Some(*context.get_or_insert_with(|| Context::new(device)))))
    }

    fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
        let (context, holders) = &mut *lock(&device(number)?.primary);
        *holders = holders.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if let Some(context) = context.take_if(|_| *holders == 0) {
            context.break_down(CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(number: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let is_active = lock(&device(number)?.primary).0.is_some();
        flags.put(0)?;
        active.put(is_active.into())
    }

    fn cuCtxCreate_v2(into: Out<Raw>, _flags: c_uint, number: c_int) {
        let device = device(number)?;
        if variable("FAKE_CUDA_CONTEXTS", 1) == 0 {
            return Err(OUT_OF_MEMORY);
        }
        of_device(device).into_iter().for_each(Context::pass);
        let context = Context::new(device);
        BOUND.with_borrow_mut(|stack| stack.push(context));
        into.put(raw(Some(context)))
    }

    fn cuCtxDestroy_v2(context: Raw) {
        let context = of_handle(context)?;
        while context.is_beside_a_kernel() {
            std::thread::sleep(Duration::from_micros(100));
        }
        BOUND.with_borrow_mut(|stack| {
            if stack.last().is_some_and(|last| std::ptr::eq(*last, context)) {
                stack.pop();
            }
        });
        context.destroy();
        forget_all(context);
        Ok(())
    }

    /// A limit is taken, and limits nothing. That of stacks, 0, is kept for
    /// [`crate::calls::extras`].
    fn cuCtxSetLimit(limit: u32, value: usize) {
        let context = current()?;
        allowed()?;
        if variable("FAKE_CUDA_LIMITS", 1) == 0 {
            return Err(NOT_SUPPORTED);
        }
        context.alone(|| match limit {
            0 => {
                context.stack.store(value as u64, Relaxed);
                Ok(())
            }
            1..=6 => Ok(()),
            _ => Err(INVALID_VALUE),
        })
    }

    fn cuCtxGetCurrent(into: Out<Raw>) {
        devices()?;
        into.put(raw(bound()))
    }

    fn cuCtxSetCurrent(context: Raw) {
        devices()?;
        let next = if context.is_null() { None } else { Some(of_handle(context)?) };
        BOUND.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(next);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Raw) {
        devices()?;
        let context = of_handle(context)?;
        context.check()?;
        BOUND.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(into: Out<Raw>) {
        devices()?;
        let last = BOUND.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if into.is_null() { Ok(()) } else { into.put(raw(Some(last))) }
    }

    fn cuCtxGetDevice(into: Out<c_int>) {
        into.put(current()?.device.ordinal as c_int)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.put(0)?;
        greatest.put(-5)
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        current()?;
        if !matches!((target, scope), (0, 100 | 200)) {
            return Err(INVALID_VALUE);
        }
        let nics = lock(&AT_FLUSH).clone();
        // SAFETY: what was given to `fake_cuda_at_flush` can be called at any time.
        nics.into_iter().for_each(|nic| unsafe { nic() });
        Ok(())
    }

    /// Has the stand-in for a NIC called at every flush, from now on: what it has written to memory
    /// of devices is to be visible there when it returns.
    fn fake_cuda_at_flush(nic: unsafe extern "C" fn()) {
        lock(&AT_FLUSH).push(nic);
        Ok(())
    }
}
