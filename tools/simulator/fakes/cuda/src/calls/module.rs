//! Kernels: there is nothing that could run them, but one is known by its name and done by the CPU.
//! It waits for a word of the host, as the transport has it do to measure copies beside a kernel.
//! Every other one is refused, after the call has waited as a driver's does: see
//! [`crate::state::context`].

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

use super::device::loads_eagerly;
use super::stream::{allowed, of_handle};
use crate::state::context::{current, enqueue};
use crate::state::memory::place;
use crate::state::settings::variable;
use crate::state::status::{INVALID_VALUE, In, NOT_SUPPORTED, Out, Outcome};
use crate::state::table::Table;
use crate::state::worker::{run_kernel, wait_for_word};

const WAITS: &CStr = c"nvshmem_libfabric_wait";

static MODULES: Table<()> = Table::new();

/// What a call does alone in the context that is bound, behind all of its work.
fn alone(call: impl FnOnce() -> Outcome) -> Outcome {
    let context = current()?;
    allowed()?;
    context.alone(call)
}

fn is_known(image: &In<c_char>) -> bool {
    const PTX: &[u8] = b".version";
    if variable("FAKE_CUDA_KERNELS", 1) == 0 {
        return false;
    }
    // Every image has that many bytes.
    let Ok(start) = image.list(PTX.len()) else { return false };
    if !start.iter().zip(PTX).all(|(one, other)| *one as u8 == *other) {
        return false;
    }
    // SAFETY: PTX ends with a zero.
    let text = unsafe { CStr::from_ptr(start.as_ptr()) }.to_bytes();
    text.windows(WAITS.count_bytes()).any(|name| name == WAITS.to_bytes())
}

calls! {
    fn cuModuleLoadData(into: Out<usize>, image: In<c_char>) {
        let known = is_known(&image);
        let load = || into.put(MODULES.insert(Arc::default()));
        alone(|| if known { load() } else { Err(NOT_SUPPORTED) })
    }

    fn cuModuleUnload(module: usize) {
        alone(|| MODULES.remove(module).map(drop).map_err(|_| NOT_SUPPORTED))
    }

    fn cuModuleGetFunction(into: Out<usize>, module: usize, name: In<c_char>) {
        MODULES.get(module).map_err(|_| NOT_SUPPORTED)?;
        // SAFETY: a string, as C promises.
        if unsafe { CStr::from_ptr(name.get()?) } != WAITS {
            return Err(INVALID_VALUE);
        }
        into.put(module)
    }

    /// None was launched before, so each is loaded by this call, unless kernels are loaded eagerly.
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
        arguments: In<In<usize>>,
        _extra: In<In<c_void>>,
    ) {
        let stream = of_handle(stream)?;
        // The known kernel has one argument, an address.
        let words = MODULES.get(kernel).map_err(|_| NOT_SUPPORTED);
        let words = words.and_then(|_| place(*arguments.get()?.get()?, 8));
        let launch = || {
            let words = words?;
            enqueue(&stream, move |context| run_kernel(context, || wait_for_word(words.alias)));
            Ok(())
        };
        if loads_eagerly() { launch() } else { alone(launch) }
    }
}
