//! Kernels: there is nothing that could run them, but two are known by their names and done by the
//! CPU. One waits for a word of the host, as the transport has it do to measure copies beside a
//! kernel, the other is [`resident`]. Every other one is refused, after the call has waited as a
//! driver's does: see [`crate::state::context`].

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::device::loads_eagerly;
use super::stream::{allowed, of_handle};
use crate::state::context::{current, enqueue};
use crate::state::memory::place;
use crate::state::resident::{self, Arguments};
use crate::state::settings::variable;
use crate::state::status::{INVALID_VALUE, In, NOT_SUPPORTED, Out, Outcome};
use crate::state::table::Table;
use crate::state::worker::{run_kernel, wait_for_word};

const WAITS: &CStr = c"nvshmem_libfabric_wait";

static MODULES: Table<Module> = Table::new();

struct Module {
    /// The name of its only kernel.
    kernel: &'static CStr,
    was_launched: AtomicBool,
}

/// What a call does alone in the context that is bound, behind all of its work.
fn alone(call: impl FnOnce() -> Outcome) -> Outcome {
    let context = current()?;
    allowed()?;
    context.alone(call)
}

fn known(image: &In<c_char>) -> Option<&'static CStr> {
    const PTX: &[u8] = b".version";
    if variable("FAKE_CUDA_KERNELS", 1) == 0 {
        return None;
    }
    // Every image has that many bytes.
    let start = image.list(PTX.len()).ok()?;
    if !start.iter().zip(PTX).all(|(one, other)| *one as u8 == *other) {
        return None;
    }
    // SAFETY: PTX ends with a zero.
    let text = unsafe { CStr::from_ptr(start.as_ptr()) }.to_bytes();
    let has = |name: &CStr| text.windows(name.count_bytes()).any(|part| part == name.to_bytes());
    [WAITS, resident::NAME].into_iter().find(|name| has(name))
}

calls! {
    fn cuModuleLoadData(into: Out<usize>, image: In<c_char>) {
        let kernel = known(&image);
        alone(|| {
            let (kernel, was_launched) = (kernel.ok_or(NOT_SUPPORTED)?, AtomicBool::new(false));
            into.put(MODULES.insert(Arc::new(Module { kernel, was_launched })))
        })
    }

    fn cuModuleUnload(module: usize) {
        alone(|| MODULES.remove(module).map(drop).map_err(|_| NOT_SUPPORTED))
    }

    fn cuModuleGetFunction(into: Out<usize>, module: usize, name: In<c_char>) {
        let kernel = MODULES.get(module).map_err(|_| NOT_SUPPORTED)?.kernel;
        // SAFETY: a string, as C promises.
        if unsafe { CStr::from_ptr(name.get()?) } != kernel {
            return Err(INVALID_VALUE);
        }
        into.put(module)
    }

    /// The first launch of a kernel loads it, unless kernels are loaded eagerly.
    fn cuLaunchKernel(
        kernel: usize,
        _blocks_x: c_uint,
        _blocks_y: c_uint,
        _blocks_z: c_uint,
        _threads_x: c_uint,
        _threads_y: c_uint,
        _threads_z: c_uint,
        _shared: c_uint,
        stream: usize,
        arguments: In<In<u64>>,
        _extra: In<In<c_void>>,
    ) {
        let stream = of_handle(stream)?;
        let module = MODULES.get(kernel).map_err(|_| NOT_SUPPORTED)?;
        stream.context.device.behaviour.fail_launch.count()?;
        let is_first = !module.was_launched.swap(true, SeqCst);
        let arguments = arguments.get()?;
        let launch = || {
            if module.kernel == WAITS {
                // Its argument is an address.
                let words = place(*arguments.get()? as usize, 8)?;
                enqueue(&stream, move |context| run_kernel(context, || wait_for_word(words.alias)));
                return Ok(());
            }
            let arguments = Arguments::of(arguments.list(3)?);
            enqueue(&stream, move |context| resident::run(context, arguments));
            Ok(())
        };
        if !is_first || loads_eagerly() { launch() } else { alone(launch) }
    }
}
