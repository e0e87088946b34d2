//! What no driver has: for tests in the process that uses the devices. Devices are named by number,
//! so that tests of one process which take a device each do not meet.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::{Sender, channel};

use super::stream::of_handle;
use crate::state::context::{Context, MADE, enqueue, of_device as contexts_of};
use crate::state::device::{INITS, device};
use crate::state::memory::find;
use crate::state::pages::{Kind, round_up};
use crate::state::status::Status;
use crate::state::table::Table;
use crate::state::worker::run_kernel;

/// What ends kernels that spin, by being dropped.
static GATES: Table<Sender<()>> = Table::new();

calls! {
    fn fake_cuda_latency(number: c_int, copy_ns: u64) {
        device(number)?.behaviour.copy_ns.store(copy_ns, Relaxed);
        Ok(())
    }

    /// After `after` more copies have been accepted, one is refused with `code`.
    fn fake_cuda_fail_submit(number: c_int, after: u32, code: Status) {
        device(number)?.behaviour.fail_submit.set(after, code);
        Ok(())
    }

    /// After `after` more copies have been executed, one fails with `code`, and its context with
    /// it.
    fn fake_cuda_fail_copy(number: c_int, after: u32, code: Status) {
        device(number)?.behaviour.fail_copy.set(after, code);
        Ok(())
    }

    /// The device is gone: every call on its contexts answers `code`.
    fn fake_cuda_lose(number: c_int, code: Status) {
        contexts_of(device(number)?).iter().for_each(|context| context.break_down(code));
        Ok(())
    }

    /// After `after` more launches of kernels, one is refused with `code`.
    fn fake_cuda_fail_launch(number: c_int, after: u32, code: Status) {
        device(number)?.behaviour.fail_launch.set(after, code);
        Ok(())
    }

    /// What becomes of the resident kernel: see [`Behaviour`](crate::state::settings::Behaviour).
    fn fake_cuda_resident(number: c_int, how: u32) {
        device(number)?.behaviour.resident.store(how, Relaxed);
        Ok(())
    }

    fn fake_cuda_limits(number: c_int, pinned: u64, memory: u64) {
        let behaviour = &device(number)?.behaviour;
        behaviour.pinned_limit.store(pinned, Relaxed);
        behaviour.memory_limit.store(memory, Relaxed);
        Ok(())
    }

    fn fake_cuda_offer(number: c_int, stream_ops: u32) {
        device(number)?.behaviour.stream_ops.store(stream_ops, Relaxed);
        Ok(())
    }

    /// Takes back everything that the functions above have set. A context that has failed stays so.
    fn fake_cuda_reset(number: c_int) {
        device(number)?.behaviour.reset();
        Ok(())
    }

    fn fake_cuda_release(gate: usize) {
        GATES.remove(gate).map(drop)
    }
}

/// Puts a kernel on a stream that spins until [`fake_cuda_release`]. Returns what to release, or 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_spin(stream: usize) -> usize {
    let Ok(stream) = of_handle(stream) else { return 0 };
    let (gate, ended) = channel();
    enqueue(&stream, move |context| {
        run_kernel(context, || {
            let _ = ended.recv();
        });
    });
    GATES.insert(Arc::new(gate))
}

/// Where the CPU can reach device memory: what a mapping of the GPU's memory through PCIe gives on
/// real hardware. Null when the range is not device memory of one allocation.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_window(address: usize, len: usize) -> usize {
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

/// What was counted: 0 calls of `cuInit`, 1 contexts made, and of a device what
/// [its counts](crate::state::device) are. Of this moment: 8 contexts that a call has to itself
/// while it waits for them to be idle, 10 bytes of stack of a
/// thread, of the context that has fewest, 12 kernels that run.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_count(number: c_int, what: u32) -> u64 {
    let Ok(device) = device(number) else {
        return if what == 0 { INITS.load(Relaxed) } else { 0 };
    };
    let contexts = contexts_of(device);
    let sum = |read: fn(&Context) -> u64| contexts.iter().map(|context| read(context)).sum();
    match what {
        0 => INITS.load(Relaxed),
        1 => MADE.load(Relaxed),
        8 => sum(|context| context.is_taken().into()),
        10 => contexts.iter().map(|of| of.stack.load(Relaxed)).min().unwrap_or(0),
        12 => sum(|context| context.kernels.load(SeqCst).into()),
        _ => device.counts.get(what as usize).map_or(0, |count| count.load(Relaxed)),
    }
}
