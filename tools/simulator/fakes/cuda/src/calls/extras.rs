//! What no driver has: for tests in the process that uses the devices. Devices are named by number,
//! so that tests of one process which take a device each do not meet.
//!
//! All return a `CUresult`, unless said otherwise.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::stream::of_handle;
use crate::state::context::{Context, Gate, MADE, Work, enqueue, of_device as contexts_of};
use crate::state::device::{INITS, device};
use crate::state::memory::find;
use crate::state::pages::{Kind, round_up};
use crate::state::status::{Status, answer};
use crate::state::table::Table;

static GATES: Table<Gate> = Table::new();

/// Every copy takes at least so many nanoseconds.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_latency(number: c_int, copy_ns: u64) -> Status {
    answer(device(number).map(|device| device.behaviour.copy_ns.store(copy_ns, Relaxed)))
}

/// After `after` more copies have been accepted, one is refused with `code`.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_fail_submit(number: c_int, after: u32, code: Status) -> Status {
    answer(device(number).map(|device| device.behaviour.fail_submit.set(after, code)))
}

/// After `after` more copies have been executed, one fails with `code`, and its context with it.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_fail_copy(number: c_int, after: u32, code: Status) -> Status {
    answer(device(number).map(|device| device.behaviour.fail_copy.set(after, code)))
}

/// The device is gone: every call on its contexts answers `code`.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_lose(number: c_int, code: Status) -> Status {
    answer(device(number).map(|device| {
        contexts_of(device).iter().for_each(|context| context.break_down(code));
    }))
}

/// How many bytes of page-locked and of device memory there are.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_limits(number: c_int, pinned: u64, memory: u64) -> Status {
    answer(device(number).map(|device| {
        device.behaviour.pinned_limit.store(pinned, Relaxed);
        device.behaviour.memory_limit.store(memory, Relaxed);
    }))
}

/// Whether the device takes 64-bit stream memory operations.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_offer(number: c_int, stream_ops: u32) -> Status {
    answer(device(number).map(|device| device.behaviour.stream_ops.store(stream_ops, Relaxed)))
}

/// Takes back everything that the functions above have set. A context that has failed stays so.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_reset(number: c_int) -> Status {
    answer(device(number).map(|device| device.behaviour.reset()))
}

/// Puts a kernel on a stream that spins until [`fake_cuda_release`]. Returns what to release, or 0.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_spin(stream: usize) -> usize {
    let Ok(stream) = of_handle(stream) else { return 0 };
    let gate = Arc::new(Gate::default());
    enqueue(&stream, Work::Spin(Arc::clone(&gate)));
    GATES.insert(gate)
}

/// Ends a spinning kernel.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_release(gate: usize) -> Status {
    answer(GATES.remove(gate).map(|gate| gate.open()))
}

/// Where the CPU can reach device memory: what a mapping of the GPU's memory through PCIe gives on
/// real hardware. Null when the range is not device memory of one allocation. Not a `CUresult`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn fake_cuda_window(address: usize, len: usize) -> usize {
    match find(address) {
        Some(mapping)
            if matches!(mapping.kind, Kind::Device | Kind::VmmDevice)
                && address - mapping.base + len <= round_up(mapping.len).unwrap_or(0) =>
        {
            mapping.alias + (address - mapping.base)
        }
        _ => 0,
    }
}

/// What was counted: 0 calls of `cuInit`, 1 contexts made, 2 copies that a device accepted, 3 bytes
/// of page-locked memory in use, 4 of device memory, 5 calls that store words, 6 calls that ask
/// whether a stream or an event is done, 7 copies and fills that waited for a turn of the device,
/// since a kernel of another context was on it, 11 calls that give copies, words and events to
/// streams, 13 dma-bufs that were asked for with the mapping through PCIe, 14 copies that have
/// begun, 15 copies that waited for a copy engine. Of this moment: 8 contexts that a call has to
/// itself while it waits for them to be idle, 9 other calls on such contexts, 10 bytes of stack of
/// a thread, of the context that has fewest, 12 kernels that run. Not a `CUresult`.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_count(number: c_int, what: u32) -> u64 {
    let of_device = |read: fn(&crate::state::device::Device) -> u64| device(number).map_or(0, read);
    let of_contexts = |read: fn(&Context) -> u64| {
        device(number).map_or(0, |device| contexts_of(device).into_iter().map(read).sum())
    };
    match what {
        0 => INITS.load(Relaxed),
        1 => MADE.load(Relaxed),
        2 => of_device(|device| device.copies.load(Relaxed)),
        3 => of_device(|device| device.pinned.load(Relaxed)),
        4 => of_device(|device| device.memory.load(Relaxed)),
        5 => of_device(|device| device.writes.load(Relaxed)),
        6 => of_device(|device| device.asked.load(Relaxed)),
        7 => of_device(|device| device.turns.load(Relaxed)),
        8 => of_contexts(|context| context.is_taken().into()),
        10 => device(number).map_or(0, |device| {
            let stacks = contexts_of(device).into_iter().map(|context| context.stack.load(Relaxed));
            stacks.min().unwrap_or(0)
        }),
        11 => of_device(|device| device.calls.load(Relaxed)),
        12 => of_contexts(|context| context.kernels.load(SeqCst) as u64),
        13 => of_device(|device| device.exported.load(Relaxed)),
        14 => of_device(|device| device.begun.load(Relaxed)),
        15 => of_device(|device| device.queued.load(Relaxed)),
        9 => of_contexts(|context| context.held_up.load(SeqCst).into()),
        _ => 0,
    }
}
