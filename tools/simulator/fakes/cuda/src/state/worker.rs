//! The copy engines: a thread for each stream.

use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Instant;

use crate::state::context::{Context, Stream, Work};
use crate::state::table::lock;

/// Starts the thread of a stream.
pub(crate) fn start(stream: Arc<Stream>) {
    let run = move || while step(&stream) {};
    thread::Builder::new()
        .name(String::from("fake-cuda"))
        .spawn(run)
        .expect("a thread for a stream of the fake CUDA driver");
}

/// Does the next item. False when there will be none.
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
    run(stream.context, &item.work);
    // What keeps memory alive is let go before anybody learns that the item is done.
    drop(item);
    lock(&stream.queue).done += 1;
    stream.changed.notify_all();
    true
}

fn run(context: &Context, work: &Work) {
    match work {
        Work::Copy { from, to, len } if context.check().is_ok() => {
            let start = Instant::now();
            if let Err(code) = context.device.behaviour.fail_copy.count() {
                context.break_down(code);
                return;
            }
            let least = context.device.behaviour.duration(*len);
            // Whole words of 8 bytes, so that a word alone comes in one piece.
            let late = if least.is_zero() { *len } else { len.div_ceil(16) * 8 };
            let late = late.min(*len);
            // SAFETY: both places were found for this length when the copy was enqueued, and hold
            // their pages. Memory of the program's own is its promise, as for any driver.
            unsafe { move_bytes(from.alias + late, to.alias + late, *len - late) };
            if let Some(rest) = least.checked_sub(start.elapsed()) {
                thread::sleep(rest);
            }
            // SAFETY: as above.
            unsafe { move_bytes(from.alias, to.alias, late) };
        }
        // SAFETY: the place was found for the width, and is aligned to it.
        Work::Write { to, value, width } if context.check().is_ok() => unsafe {
            match width {
                4 => AtomicU32::from_ptr(to.alias as *mut u32).store(*value as u32, SeqCst),
                _ => AtomicU64::from_ptr(to.alias as *mut u64).store(*value, SeqCst),
            }
        },
        // SAFETY: the place was found for this length.
        Work::Fill { to, value, len } if context.check().is_ok() => unsafe {
            ptr::write_bytes(to.alias as *mut u8, *value, *len);
        },
        Work::Record(event, number) => {
            let mut state = lock(&event.state);
            state.1 = state.1.max(*number);
            event.changed.notify_all();
        }
        Work::Spin(gate) => gate.pass(),
        Work::Copy { .. } | Work::Write { .. } | Work::Fill { .. } => {}
    }
}

/// Copies. A word that is aligned on both sides is copied whole.
///
/// # Safety
/// Both ranges are mapped, and nobody relies on their content meanwhile but word by word.
unsafe fn move_bytes(from: usize, to: usize, len: usize) {
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
