//! The copy engines: a thread for each stream.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::context::{Context, Stream};
use crate::state::device::{BEGUN, Device, TURNS};
use crate::state::pages::Place;
use crate::state::settings::variable;
use crate::state::table::lock;

pub(crate) fn start(stream: Arc<Stream>) {
    let run = move || while step(&stream) {};
    thread::Builder::new()
        .name(String::from("fake-cuda"))
        .spawn(run)
        .expect("a thread for a stream of the fake CUDA driver");
}

fn step(stream: &Stream) -> bool {
    let item = {
        let mut queue = lock(&stream.queue);
        loop {
            if let Some(item) = queue.work.pop_front() {
                break item;
            }
            if queue.closed {
                return false;
            }
            queue = stream.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    };
    for (other, number) in &item.after {
        other.wait_for(*number);
    }
    // What keeps memory alive is let go with it, before anybody learns that it is done.
    (item.work)(stream.context);
    lock(&stream.queue).done += 1;
    stream.changed.notify_all();
    true
}

pub(crate) fn store(context: &Context, to: &Place, value: u64, width: usize) {
    if context.check().is_err() {
        return;
    }
    let _engine = copy_engine(context.device, to.on_device());
    // SAFETY: the place was found for the width, and is aligned to it.
    unsafe {
        match width {
            4 => AtomicU32::from_ptr(to.alias as *mut u32).store(value as u32, SeqCst),
            _ => AtomicU64::from_ptr(to.alias as *mut u64).store(value, SeqCst),
        }
    }
}

pub(crate) fn fill(context: &Context, to: &Place, value: u8, len: usize) {
    if context.check().is_ok() {
        take_turns(to.owner().unwrap_or(context));
        thread::sleep(context.device.behaviour.duration(len));
        // SAFETY: the place was found for this length.
        unsafe { ptr::write_bytes(to.alias as *mut u8, value, len) };
    }
}

pub(crate) fn run_kernel(context: &Context, body: impl FnOnce()) {
    context.kernels.fetch_add(1, SeqCst);
    body();
    context.kernels.fetch_sub(1, SeqCst);
}

fn begins(context: &Context) -> bool {
    if context.check().is_err() {
        return false;
    }
    context.device.count(BEGUN);
    context.device.behaviour.fail_copy.count().map_err(|code| context.break_down(code)).is_ok()
}

/// Copies. What is shorter than `engine_from` and goes to the device is done by a kernel, as is
/// what stays on it.
pub(crate) fn copy(context: &Context, from: &Place, to: &Place, len: usize, engine_from: usize) {
    let start = Instant::now();
    if !begins(context) {
        return;
    }
    let by_kernels = to.on_device() && (from.on_device() || len < engine_from);
    let _engine = (!by_kernels).then(|| copy_engine(context.device, to.on_device()));
    if by_kernels {
        take_turns(to.owner().unwrap_or(context));
    }
    let least = context.device.behaviour.duration(len);
    let late = late_bytes(context.device, len, to.on_device(), least.is_zero());
    // A word of the device is read once, and comes in two parts.
    let word = halved_word(from.alias, len, &late);
    let (first, last) = word.map_or((late.start, late.end), |at| (at, at + 8));
    // SAFETY: both places were found for this length when the copy was enqueued, and hold
    // their pages. Memory of the program's own is its promise, as for any driver.
    let read = unsafe {
        move_bytes(from.alias + last, to.alias + last, len - last);
        move_bytes(from.alias, to.alias, first);
        let read = word.map(|at| {
            AtomicU64::from_ptr((from.alias + at) as *mut u64).load(SeqCst).to_le_bytes()
        });
        if let Some(read) = &read {
            let early = if late.start == first { 4 } else { 0 };
            let from = read.as_ptr() as usize + early;
            move_bytes(from, to.alias + first + early, 4);
        }
        read
    };
    match least.checked_sub(start.elapsed()) {
        Some(rest) if !rest.is_zero() => thread::sleep(rest),
        _ => thread::yield_now(),
    }
    // SAFETY: as above.
    unsafe {
        match &read {
            Some(read) => {
                let from = read.as_ptr() as usize + (late.start - first);
                move_bytes(from, to.alias + late.start, 4);
            }
            None => move_bytes(from.alias + first, to.alias + first, last - first),
        }
    }
}

pub(crate) fn copy_rows(
    context: &Context,
    (from, from_pitch): (&Place, usize),
    (to, to_pitch): (&Place, usize),
    len: usize,
    count: usize,
) {
    let start = Instant::now();
    if !begins(context) {
        return;
    }
    if to.on_device() && variable("FAKE_CUDA_ROWS", 1) == 0 {
        take_turns(to.owner().unwrap_or(context));
    }
    let _engine = copy_engine(context.device, to.on_device());
    let least = context.device.behaviour.duration(len * count);
    // The last row first.
    for row in (0..count).rev() {
        if row == 0 {
            if let Some(rest) = least.checked_sub(start.elapsed()) {
                thread::sleep(rest);
            }
        }
        let (from, to) = (from.alias + row * from_pitch, to.alias + row * to_pitch);
        // SAFETY: both places were found for all rows.
        unsafe { move_bytes(from, to, len) };
    }
}

/// Waits for the copy engine of a direction, which the copy has until it is done. That of a GPU
/// goes round among the streams of all contexts, so a short copy beside a long one takes about 500
/// µs.
fn copy_engine(device: &Device, to_device: bool) -> MutexGuard<'_, ()> {
    lock(&device.engines[usize::from(to_device)])
}

pub(crate) fn wait_for_word(words: usize) {
    // SAFETY: two words of page-locked memory, which the program uses by atomic accesses; it keeps
    // them until the kernel has ended.
    let word = |index: usize| unsafe { AtomicU32::from_ptr((words + 4 * index) as *mut u32) };
    word(1).store(1, SeqCst);
    while word(0).load(SeqCst) == 0 {
        // No processor of the machine is busy with a kernel.
        thread::sleep(Duration::from_micros(20));
    }
}

fn take_turns(context: &Context) {
    const TURN: Duration = Duration::from_micros(2_380);
    if variable("FAKE_CUDA_MPS", 0) == 0 && context.is_beside_a_kernel() {
        context.device.count(TURNS);
        thread::sleep(TURN);
    }
}

/// Bytes of a copy that come when the others have: its first half, or a word of 4 bytes at either
/// of its ends, so that half of a word of 8 bytes is there. Memory of a device has words of 8 bytes
/// whole, as on an H200. The other bytes of a copy that takes no time come only a moment before.
fn late_bytes(device: &Device, len: usize, on_device: bool, fast: bool) -> Range<usize> {
    let half = if fast { len } else { len.div_ceil(16) * 8 };
    let half = 0..half.min(len);
    if on_device || len < 8 {
        return half;
    }
    match device.carried_out.fetch_add(1, Relaxed) % 4 {
        0 => 0..4,
        1 => 4..8,
        2 => len - 4..len,
        _ => half,
    }
}

/// Where in a copy the word of 8 bytes is, aligned at its source, of which one half is late. None
/// where it is not all copied.
fn halved_word(from: usize, len: usize, late: &Range<usize>) -> Option<usize> {
    if late.len() != 4 {
        return None;
    }
    let at = ((from + late.start) / 8 * 8).checked_sub(from)?;
    let is_half = late.start == at || late.start == at + 4;
    (is_half && at + 8 <= len).then_some(at)
}

/// Copies. A word that is aligned on both sides is copied whole.
///
/// # Safety
/// Both ranges are mapped, and nobody relies on their content meanwhile but word by word.
pub(crate) unsafe fn move_bytes(from: usize, to: usize, len: usize) {
    macro_rules! word {
        ($word:ty, $bits:ty) => {
            // SAFETY: mapped by the caller's promise, and aligned as the match has found.
            unsafe {
                let value = <$word>::from_ptr(from as *mut $bits).load(SeqCst);
                <$word>::from_ptr(to as *mut $bits).store(value, SeqCst);
            }
        };
    }
    match len {
        2 if (from | to) % 2 == 0 => word!(AtomicU16, u16),
        4 if (from | to) % 4 == 0 => word!(AtomicU32, u32),
        8 if (from | to) % 8 == 0 => word!(AtomicU64, u64),
        // SAFETY: the caller's promise. The ranges may overlap.
        _ => unsafe { ptr::copy(from as *const u8, to as *mut u8, len) },
    }
}
