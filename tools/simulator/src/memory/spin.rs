//! A kernel that stays on the device until it is told to end, as kernels of NVSHMEM's users do
//! while they wait for one another.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda::{Module, PinnedMemory, Stream};

use crate::error::{Result, error};
use crate::memory::gpu::{Gpu, device};

/// One thread that says in the second word that it runs, and then looks at the first one until that
/// is not zero. It is the kernel that the stand-in knows, by this name.
const PTX: &CStr = c".version 6.0
.target sm_60
.address_size 64
.visible .entry nvshmem_libfabric_wait(.param .u64 words)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %rd;
    ld.param.u64 %rd, [words];
    mov.u32 %r0, 1;
    st.volatile.u32 [%rd+4], %r0;
again:
    ld.volatile.u32 %r1, [%rd];
    setp.eq.u32 %p, %r1, 0;
    @%p bra again;
    ret;
}
";

/// Bytes of the words' memory.
const WORDS: usize = 4096;

/// A kernel that spins, on a stream of its own that waits for no other. It is ended when this is
/// dropped.
///
/// Memory is not given back, and [`crate::Host::finalize`] does not return, while a kernel runs:
/// the driver waits for it.
#[derive(Debug)]
pub(crate) struct Spinner {
    /// The words that the kernel looks at, which stay until the process ends.
    words: [&'static AtomicU32; 2],
    stream: Stream,
}

impl Spinner {
    pub(crate) fn start(gpu: &'static Gpu, deadline: Duration) -> Result<Spinner> {
        let memory = PinnedMemory::new(&gpu.context, WORDS).map_err(device)?;
        let at = memory.addr() as *mut u32;
        std::mem::forget(memory);
        // SAFETY: two words of memory that is never freed, aligned, and nobody else's until now.
        let words = [0, 1].map(|index| unsafe { AtomicU32::from_ptr(at.add(index)) });
        words.iter().for_each(|word| word.store(0, Ordering::Release));
        // SAFETY: PTX with its end, which is how the driver finds its length.
        let module = unsafe { Module::load(&gpu.context, PTX.to_bytes_with_nul()) };
        let kernel = module.and_then(|it| it.kernel(c"nvshmem_libfabric_wait")).map_err(device)?;
        let stream = Stream::new(&gpu.context).map_err(device)?;
        // SAFETY: the kernel takes an address; the words are what it touches, the device's by the
        // same address, and never freed.
        unsafe { kernel.launch(&stream, 1, 1, at as usize) }.map_err(device)?;
        std::mem::forget(kernel);
        let (spinner, started) = (Spinner { words, stream }, Instant::now());
        while spinner.words[1].load(Ordering::Acquire) == 0 {
            if started.elapsed() > deadline {
                return Err(error!("a kernel did not start within {deadline:?}"));
            }
            std::thread::yield_now();
        }
        Ok(spinner)
    }

    /// Ends it. An error when it had ended before, or the device fails.
    pub(crate) fn stop(self) -> Result<()> {
        match self.stream.is_idle().map_err(device)? {
            true => Err(error!("device: the kernel had ended before it was told to")),
            false => Ok(()),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.words[0].store(1, Ordering::Release);
    }
}
