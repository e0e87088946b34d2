//! A kernel that stays on the device until it is told to end, as kernels of NVSHMEM's users do
//! while they wait for one another.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::memory::driver::{NON_BLOCKING, Status};
use crate::memory::gpu::Gpu;

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

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const MAPPED: c_uint = 3;

type LoadModule = unsafe extern "C" fn(*mut usize, *const c_void) -> Status;
type GetFunction = unsafe extern "C" fn(*mut usize, usize, *const c_char) -> Status;
type Launch = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
type FakeSpin = unsafe extern "C" fn(usize) -> usize;
type FakeRelease = unsafe extern "C" fn(usize) -> Status;

/// A kernel that spins, on a stream of its own that waits for no other. It is ended when this is
/// dropped; [`Spinner::stop`] also tells whether it had been running until then.
///
/// Memory is not given back, and [`crate::Host::finalize`] does not return, while a kernel runs:
/// the driver waits for it.
#[derive(Debug)]
pub struct Spinner {
    gpu: &'static Gpu,
    stream: usize,
    end: End,
}

#[derive(Debug)]
enum End {
    /// The words that the kernel looks at.
    Words(*mut u8),
    /// The stand-in's handle of something that keeps the stream busy.
    Fake(usize),
    /// It was told.
    Told,
}

impl Spinner {
    /// Starts it, and waits until it runs.
    pub(crate) fn start(gpu: &'static Gpu, deadline: Duration) -> Result<Spinner> {
        gpu.bound(|gpu_now| {
            let mut stream = 0;
            // SAFETY: a place for the handle.
            unsafe { gpu_now.driver.create_stream(&raw mut stream, NON_BLOCKING) }?;
            // SAFETY: the type of this function of the stand-in.
            let fake = unsafe { gpu_now.driver.optional::<FakeSpin>("fake_cuda_spin") };
            let end = match fake {
                // SAFETY: a stream of this driver.
                Some(spin) => End::Fake(unsafe { spin(stream) }),
                None => End::Words(launch(gpu_now, stream, deadline)?),
            };
            Ok(Spinner { gpu, stream, end })
        })
    }

    /// Whether it is a kernel of a real device.
    pub fn is_kernel(&self) -> bool {
        matches!(self.end, End::Words(_))
    }

    /// Ends it.
    ///
    /// # Errors
    /// It had ended before, or the device fails.
    pub fn stop(mut self) -> Result<()> {
        let was_idle = self.gpu.bound(|gpu| gpu.driver.is_idle(self.stream))?;
        self.tell()?;
        // SAFETY: a stream of this driver.
        self.gpu.bound(|gpu| unsafe { gpu.driver.synchronize(self.stream) })?;
        if was_idle {
            return Err(Error::Device("the kernel had ended before it was told to".into()));
        }
        Ok(())
    }

    fn tell(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.end, End::Told) {
            End::Words(words) => {
                word(words, END).store(1, Ordering::Release);
                Ok(())
            }
            End::Fake(gate) => {
                // SAFETY: the type of this function of the stand-in.
                let release = unsafe { self.gpu.driver.optional::<FakeRelease>(RELEASE) };
                let release = release.ok_or_else(|| Error::Device(format!("no {RELEASE}")))?;
                // SAFETY: the handle is the stand-in's, and is released once.
                self.gpu.driver.check(RELEASE, unsafe { release(gate) })
            }
            End::Told => Ok(()),
        }
    }
}

const RELEASE: &str = "fake_cuda_release";

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Err(error) = self.tell() {
            eprintln!("nvshmem-sim: ending a kernel: {error}");
        }
    }
}

/// Puts the kernel on a stream. The words stay until the process ends, as does the module.
fn launch(gpu: &Gpu, stream: usize, deadline: Duration) -> Result<*mut u8> {
    let driver = &gpu.driver;
    let needed = |name: &str| Error::Device(format!("libcuda.so.1 has no {name}"));
    // SAFETY: these are the types of the driver's documentation.
    let (load, find, launch) = unsafe {
        (
            driver.optional::<LoadModule>("cuModuleLoadData"),
            driver.optional::<GetFunction>("cuModuleGetFunction"),
            driver.optional::<Launch>("cuLaunchKernel"),
        )
    };
    let load = load.ok_or_else(|| needed("cuModuleLoadData"))?;
    let find = find.ok_or_else(|| needed("cuModuleGetFunction"))?;
    let launch = launch.ok_or_else(|| needed("cuLaunchKernel"))?;
    let (mut words, mut module, mut kernel) = (std::ptr::null_mut::<c_void>(), 0, 0);
    // SAFETY: places for what is returned; the text ends with a zero. The words are larger than
    // what the kernel touches, are the device's by the same address, and are never freed. The
    // argument array outlives the call, which copies it.
    unsafe {
        driver.alloc_host(&raw mut words, WORDS, MAPPED)?;
        words.cast::<u8>().write_bytes(0, WORDS);
        driver.check("cuModuleLoadData", load(&raw mut module, PTX.as_ptr().cast()))?;
        driver.check("cuModuleGetFunction", find(&raw mut kernel, module, c"spin".as_ptr()))?;
        let mut argument = words;
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        let status = launch(
            kernel,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        );
        driver.check("cuLaunchKernel", status)?;
    }
    let words = words.cast::<u8>();
    let started = Instant::now();
    while word(words, 0).load(Ordering::Acquire) == 0 {
        if started.elapsed() > deadline {
            word(words, END).store(1, Ordering::Release);
            return Err(Error::Timeout(format!("a kernel did not start within {deadline:?}")));
        }
        std::thread::yield_now();
    }
    Ok(words)
}

fn word<'a>(words: *mut u8, at: usize) -> &'a AtomicU32 {
    // SAFETY: both offsets are inside memory that is never freed, aligned, and zeroed when made.
    unsafe { AtomicU32::from_ptr(words.add(at).cast()) }
}
