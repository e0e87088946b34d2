//! The copy engines: a thread for each stream, and the calls that give it copies.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::capture::allowed;
use crate::context::Context;
use crate::memory::{Kind, Place, place};
use crate::status::{INVALID_VALUE, Outcome, Status, answer};
use crate::stream::{Event, Stream, enqueue, of_handle};
use crate::table::lock;

/// Something that a stream does.
#[derive(Debug)]
pub(crate) enum Work {
    Copy {
        from: Place,
        to: Place,
        len: usize,
    },
    /// `cuStreamWriteValue*`: a word of `width` bytes.
    Write {
        to: Place,
        value: u64,
        width: usize,
    },
    /// Reaches a record of an event.
    Record(Arc<Event>, u64),
    /// A kernel that spins until it is told to end.
    Spin(Arc<Gate>),
}

/// What ends a spinning kernel.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *lock(&self.open) = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut open = lock(&self.open);
        while !*open {
            open = self.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

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
            // SAFETY: both places were found for this length when the copy was enqueued, and hold
            // their pages. Memory of the program's own is its promise, as for any driver.
            unsafe { move_bytes(from.alias, to.alias, *len) };
            let least = context.device.behaviour.duration(*len);
            if let Some(rest) = least.checked_sub(start.elapsed()) {
                thread::sleep(rest);
            }
        }
        // SAFETY: the place was found for the width, and is aligned to it.
        Work::Write { to, value, width } if context.check().is_ok() => unsafe {
            match width {
                4 => AtomicU32::from_ptr(to.alias as *mut u32).store(*value as u32, SeqCst),
                _ => AtomicU64::from_ptr(to.alias as *mut u64).store(*value, SeqCst),
            }
        },
        Work::Record(event, number) => {
            let mut state = lock(&event.state);
            state.1 = state.1.max(*number);
            event.changed.notify_all();
        }
        Work::Spin(gate) => gate.pass(),
        Work::Copy { .. } | Work::Write { .. } => {}
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

/// Which sides of a copy the call says are on the device.
#[derive(Clone, Copy)]
struct Sides {
    from_device: bool,
    to_device: bool,
}

const UP: Sides = Sides { from_device: false, to_device: true };
const DOWN: Sides = Sides { from_device: true, to_device: false };
const ACROSS: Sides = Sides { from_device: true, to_device: true };
const ANY: Sides = Sides { from_device: false, to_device: false };

fn copy(from: usize, to: usize, len: usize, sides: Sides, stream: usize, wait: bool) -> Outcome {
    let stream = of_handle(stream)?;
    if wait {
        allowed()?;
    }
    if len == 0 {
        return Ok(());
    }
    let (from, to) = (place(from, len)?, place(to, len)?);
    if (sides.from_device && !from.known()) || (sides.to_device && !to.known()) {
        return Err(INVALID_VALUE);
    }
    let device = stream.context.device;
    device.behaviour.fail_submit.count()?;
    device.copies.fetch_add(1, Relaxed);
    let locked = from.known() && to.known();
    let number = enqueue(&stream, Work::Copy { from, to, len });
    if wait || !locked {
        stream.wait_for(number);
        stream.context.check()?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    len: usize,
    on: usize,
) -> Status {
    answer(copy(from as usize, to, len, UP, on, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, len: usize, on: usize) -> Status {
    answer(copy(from, to as usize, len, DOWN, on, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, len: usize, on: usize) -> Status {
    answer(copy(from, to, len, ACROSS, on, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: usize, from: usize, len: usize, on: usize) -> Status {
    answer(copy(from, to, len, ANY, on, false))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, len: usize) -> Status {
    answer(copy(from as usize, to, len, UP, 0, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, len: usize) -> Status {
    answer(copy(from, to as usize, len, DOWN, 0, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, len: usize) -> Status {
    answer(copy(from, to, len, ACROSS, 0, true))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: usize, from: usize, len: usize) -> Status {
    answer(copy(from, to, len, ANY, 0, true))
}

fn write(stream: usize, to: usize, value: u64, width: usize) -> Outcome {
    let stream = of_handle(stream)?;
    let offered = stream.context.device.behaviour.stream_ops.load(Relaxed) != 0;
    if width == 8 && !offered {
        return Err(crate::status::NOT_SUPPORTED);
    }
    let to = place(to, width)?;
    // A real driver (13.0, on an H200) refuses managed memory here, of which CUDA's documentation says
    // nothing.
    if matches!(to.kind, None | Some(Kind::Managed)) || to.alias % width != 0 {
        return Err(INVALID_VALUE);
    }
    enqueue(&stream, Work::Write { to, value, width });
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(on: usize, to: usize, value: u32, _flags: u32) -> Status {
    answer(write(on, to, value.into(), 4))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64_v2(on: usize, to: usize, value: u64, _flags: u32) -> Status {
    answer(write(on, to, value, 8))
}
