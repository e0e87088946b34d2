//! A kernel that stays on the device until it is told to end, as kernels of NVSHMEM's users do
//! while they wait for one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cuda::{Module, PinnedMemory, Stream};

use crate::error::{Result, error};
use crate::memory::gpu::{Gpu, call, device};

/// One thread that says in the first word that it runs, and then looks at the word 64 bytes further
/// until that is not zero.
const PTX: &[u8] = b".version 6.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u64 words)
{
    .reg .pred %p;
    .reg .b32 %r<2>;
    .reg .b64 %rd;
    ld.param.u64 %rd, [words];
    mov.u32 %r0, 1;
    st.volatile.u32 [%rd], %r0;
again:
    ld.volatile.u32 %r1, [%rd+64];
    setp.eq.u32 %p, %r1, 0;
    @%p bra again;
    ret;
}
\0";

/// Bytes of the words' memory, and where the second word is.
const WORDS: usize = 4096;
const END: usize = 64;

/// A kernel that spins, on a stream of its own that waits for no other. It is ended when this is
/// dropped; [`Spinner::stop`] also tells whether it had been running until then.
///
/// Memory is not given back, and [`crate::Host::finalize`] does not return, while a kernel runs:
/// the driver waits for it.
#[derive(Debug)]
pub struct Spinner {
    gpu: &'static Gpu,
    end: Option<End>,
}

#[derive(Debug)]
enum End {
    /// The words that the kernel looks at, which stay until the process ends.
    Words(usize, Stream),
    /// The stand-in's handle of something that keeps a stream busy.
    Fake(usize),
}

impl Spinner {
    pub(crate) fn start(gpu: &'static Gpu, deadline: Duration) -> Result<Spinner> {
        type FakeSpin = unsafe extern "C" fn(usize) -> usize;
        // SAFETY: the type of this function of the stand-in.
        let end = match unsafe { gpu.calls.required::<FakeSpin>("fake_cuda_spin") } {
            Ok(spin) => {
                let stream = gpu.new_stream()?;
                // SAFETY: a stream of this driver.
                End::Fake(unsafe { spin(stream) })
            }
            Err(_) => {
                let stream = Stream::new(&gpu.context).map_err(device)?;
                End::Words(launch(gpu, &stream, deadline)?, stream)
            }
        };
        Ok(Spinner { gpu, end: Some(end) })
    }

    /// Ends it. An error when it had ended before, or the device fails.
    pub fn stop(mut self) -> Result<()> {
        if let Some(End::Words(_, stream)) = &self.end {
            if stream.is_idle().map_err(device)? {
                return Err(error!("device: the kernel had ended before it was told to"));
            }
        }
        self.tell()
    }

    fn tell(&mut self) -> Result<()> {
        match self.end.take() {
            Some(End::Words(words, _)) => word(words, END).store(1, Ordering::Release),
            Some(End::Fake(gate)) => {
                // SAFETY: the handle is the stand-in's, and is released once.
                unsafe { call!(self.gpu.calls, fake_cuda_release(gate => usize))? };
            }
            None => {}
        }
        Ok(())
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Err(error) = self.tell() {
            eprintln!("nvshmem-sim: ending a kernel: {error}");
        }
    }
}

fn launch(gpu: &Gpu, stream: &Stream, deadline: Duration) -> Result<usize> {
    let memory = PinnedMemory::new(&gpu.context, WORDS).map_err(device)?;
    let words = memory.addr();
    std::mem::forget(Arc::clone(&memory));
    // SAFETY: memory of this length, which nobody else knows.
    unsafe { (words as *mut u8).write_bytes(0, WORDS) };
    // SAFETY: the text ends with a zero, which is how the driver finds its length.
    let module = unsafe { Module::load(&gpu.context, PTX) }.map_err(device)?;
    let kernel = module.kernel(c"spin").map_err(device)?;
    // SAFETY: the kernel takes an address; the words are larger than what it touches, the device's
    // by the same address, and never freed.
    unsafe { kernel.launch(stream, 1, 1, words) }.map_err(device)?;
    std::mem::forget(kernel);
    let started = Instant::now();
    while word(words, 0).load(Ordering::Acquire) == 0 {
        if started.elapsed() > deadline {
            word(words, END).store(1, Ordering::Release);
            return Err(error!("a kernel did not start within {deadline:?}"));
        }
        std::thread::yield_now();
    }
    Ok(words)
}

fn word<'a>(words: usize, at: usize) -> &'a AtomicU32 {
    // SAFETY: both offsets are inside memory that is never freed, aligned, and zeroed when made.
    unsafe { AtomicU32::from_ptr((words + at) as *mut u32) }
}
