//! The transport's resident kernel, executed by the thread of its stream: orders from a ring in
//! page-locked memory to copy bytes and to store words. See `copy/resident_kernel.rs` of the crate
//! `cuda`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::context::Context;
use crate::state::device::{LAUNCHES, ORDERS};
use crate::state::memory::place;
use crate::state::status::{INVALID_VALUE, Outcome};
use crate::state::worker::{move_bytes, run_kernel};

pub(crate) const NAME: &CStr = c"nvshmem_libfabric_resident";

const RING: u32 = 64;

/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ILLEGAL_ADDRESS: u32 = 700;

pub(crate) struct Arguments {
    page: usize,
    number: u32,
    next: u32,
    idle: Duration,
    life: Duration,
}

impl Arguments {
    pub(crate) fn of(words: &[u64]) -> Self {
        let nanos = |ns: u64| Duration::from_nanos(ns & 0xffff_ffff);
        Self {
            page: words[0] as usize,
            number: words[1] as u32,
            next: (words[1] >> 32) as u32,
            idle: nanos(words[2]),
            life: nanos(words[2] >> 32),
        }
    }
}

/// Waits for room on the device, then executes orders until there are none for a while.
pub(crate) fn run(context: &Context, arguments: Arguments) {
    while context.device.behaviour.resident.load(Relaxed) == 1 && context.check().is_ok() {
        thread::sleep(Duration::from_micros(20));
    }
    let Ok(page) = place(arguments.page, 256 + 32 * RING as usize) else {
        return context.break_down(ILLEGAL_ADDRESS);
    };
    run_kernel(context, || {
        context.device.count(LAUNCHES);
        execute_all(context, page.alias, &arguments);
    });
}

fn execute_all(context: &Context, page: usize, arguments: &Arguments) {
    let Arguments { number, mut next, idle, life, .. } = *arguments;
    // SAFETY: aligned words of page-locked memory, which the transport uses by atomic accesses and
    // keeps until the kernel has ended.
    let word = |at: usize| unsafe { AtomicU32::from_ptr((page + at) as *mut u32) };
    // SAFETY: as above.
    let long = |at: usize| unsafe { AtomicU64::from_ptr((page + at) as *mut u64) };
    word(4).store(number, SeqCst);
    fence(SeqCst);
    while context.device.behaviour.resident.load(Relaxed) == 2 && context.check().is_ok() {
        thread::sleep(Duration::from_micros(20));
    }
    let start = Instant::now();
    let (mut last, mut unfenced) = (start, Vec::new());
    let stops = context.device.behaviour.resident.load(Relaxed) == 3;
    while !stops
        && word(64).load(SeqCst) != number
        && last.elapsed() < idle
        && start.elapsed() < life
    {
        if context.check().is_err() {
            return;
        }
        let order =
            [0, 1, 2, 3].map(|at| long(256 + 32 * (next % RING) as usize + 8 * at).load(SeqCst));
        if order.iter().any(|word| word >> 56 != u64::from(next / RING % 256)) {
            thread::yield_now();
            continue;
        }
        let (is_after, reports) = (order[2] & 1 << 41 != 0, order[2] & 1 << 42 != 0);
        if is_after && land(&mut unfenced, false).is_err() {
            return context.break_down(ILLEGAL_ADDRESS);
        }
        unfenced.push(order.map(|word| word & 0xff_ffff_ffff_ffff));
        if reports && land(&mut unfenced, order[2] & 1 << 43 != 0).is_err() {
            return context.break_down(ILLEGAL_ADDRESS);
        }
        context.device.count(ORDERS);
        next = next.wrapping_add(1);
        let is_held = || context.device.behaviour.resident.load(Relaxed) == 4;
        while reports && is_held() && context.check().is_ok() {
            thread::sleep(Duration::from_micros(20));
        }
        if reports {
            word(0).store(next, SeqCst);
        }
        last = Instant::now();
    }
    if land(&mut unfenced, true).is_err() {
        return context.break_down(ILLEGAL_ADDRESS);
    }
    long(8).store(u64::from(next) << 32 | u64::from(number), SeqCst);
}

/// What a fence makes visible: to the device, or to the host too. Nothing else tells in which order
/// it comes: the last first.
fn land(orders: &mut Vec<[u64; 4]>, on_host: bool) -> Outcome {
    for at in (0..orders.len()).rev() {
        if on_host || place(orders[at][0] as usize, 1)?.on_device() {
            execute(orders.remove(at))?;
        }
    }
    Ok(())
}

fn execute([to, from, flags, high]: [u64; 4]) -> Outcome {
    let (unit, count) = (1 << (flags >> 32 & 7), flags as u32 as usize);
    // Allocations may meet within, but not within a word.
    let found = |addr: usize, len: usize| {
        place(addr, len)
            .and_then(|place| if place.known() { Ok(place) } else { Err(INVALID_VALUE) })
    };
    let (to, from_addr) = (to as usize, from as usize);
    if flags & 1 << 40 != 0 {
        let value = from | high << 32;
        // SAFETY: the place was found for the word, whose first bytes are the lowest.
        unsafe { move_bytes(&raw const value as usize, found(to, unit)?.alias, unit) };
        return Ok(());
    }
    let word = unit.min(8);
    // The last part first: lanes are in no order. A word is copied whole.
    for at in (0..unit * count).step_by(word).rev() {
        let (from, to) = (found(from_addr + at, word)?, found(to + at, word)?);
        // SAFETY: both places were found for this length.
        unsafe { move_bytes(from.alias, to.alias, word) };
    }
    Ok(())
}
