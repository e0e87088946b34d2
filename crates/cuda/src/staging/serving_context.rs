//! The context that memory of a device is staged in: one of our own where that works, so that
//! nothing a program calls in its contexts holds up what its kernels wait for.
//!
//! While a kernel runs, some calls of CUDA wait until their context is idle, and no other call on
//! that context returns meanwhile: freeing memory, loading or unloading a module (so the first
//! launch of a kernel that is loaded lazily), unregistering host memory, setting limits. A kernel
//! that waits for staged data would wait for ever beside such a call of its program, if the data
//! were copied in the same context.
//!
//! Contexts of a device share its compute engine by turns, without the multi-process service.
//! Whether copies of one go on beside a kernel of another is measured, by a kernel waiting for the
//! host.

use std::ffi::CStr;
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::probe::{self, Probe};
use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::driver::module::Module;
use crate::driver::stream::Stream;
use crate::memory::heap::DeviceHeap;
use crate::memory::pinned_memory::PinnedMemory;

/// Which context to stage in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StagingContext {
    /// One of our own where copies of it go on beside kernels, else the program's.
    #[default]
    Auto,
    /// One of our own.
    Own,
    /// The program's.
    Program,
}

/// The context chosen for a device.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) context: Arc<Context>,
    /// Whether short copies to the device are cut into rows.
    pub(crate) rows: bool,
}

/// Up to this a copy goes on beside a kernel, or up to so many times what it takes without one: the
/// device may be slow, and the processor busy. By turns it takes 2 ms and more.
const BESIDE: Duration = Duration::from_micros(500);
const TIMES: u32 = 4;

/// Chooses for the device of a context of the program, within tenths of a second, and logs it.
pub(crate) fn choose(program: &Arc<Context>, wanted: StagingContext) -> Serving {
    let device = program.device();
    let programs = |reason: fmt::Arguments<'_>| {
        log::info!(
            target: MEM,
            "memory of device {device} is staged in {program}, whose calls may hold up copies: {reason}"
        );
        Serving { context: Arc::clone(program), rows: false }
    };
    if wanted == StagingContext::Program {
        return programs(format_args!("NVSHMEM_LIBFABRIC_STAGING_CONTEXT says so"));
    }
    let own = match Context::own(program.driver(), device) {
        Ok(own) => own,
        Err(error) => return programs(format_args!("no context of the transport's own: {error}")),
    };
    let (measured, said) = match measured(&own, program) {
        Ok(measured) => (Some(measured), measured.to_string()),
        Err(reason) => (None, format!("copies beside a kernel were not measured: {reason}")),
    };
    let rows = match (wanted, measured.map(|measured| measured.verdict())) {
        (_, None | Some(Verdict::Rows)) => true,
        (_, Some(Verdict::Plain)) => false,
        (StagingContext::Own, Some(Verdict::Neither)) => true,
        (_, Some(Verdict::Neither)) => return programs(format_args!("{said}")),
    };
    log::info!(
        target: MEM,
        "memory of device {device} is staged in a context of the transport's own, which no call of the program holds up; short \
         copies to the device go {}: {said}",
        if rows { "in rows" } else { "as they are" },
    );
    Serving { context: own, rows }
}

/// As [`measure`], once for each device.
fn measured(own: &Arc<Context>, program: &Arc<Context>) -> Result<Measured, String> {
    type Known = (Arc<Context>, Result<Measured, String>);
    static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    // Held meanwhile: two measurements of one device would disturb one another.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, measured)) = known.iter().find(|(of, _)| of.has_device_of(own)) {
        return measured.clone();
    }
    let measured = measure(own, program);
    known.push((Arc::clone(own), measured.clone()));
    measured
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    rows: Option<Duration>,
    plain: Duration,
    /// The most that passes for going on.
    most: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Rows,
    Plain,
    Neither,
}

impl Measured {
    fn verdict(self) -> Verdict {
        match self.rows {
            Some(rows) if rows <= self.most => Verdict::Rows,
            _ if self.plain <= self.most => Verdict::Plain,
            _ => Verdict::Neither,
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, plain, .. } = self;
        match rows {
            Some(rows) => {
                write!(f, "in rows one takes {rows:?} beside a kernel of another context, ")?
            }
            None => f.write_str("the driver takes no rows, ")?,
        }
        write!(f, "as it is {plain:?}")
    }
}

/// A kernel that sets the second word when it starts, and ends when the first one is set.
const KERNEL: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry nvshmem_libfabric_wait(.param .u64 words)
{
    .reg .pred %zero;
    .reg .u32 %seen, %one;
    .reg .u64 %at;
    ld.param.u64 %at, [words];
    mov.u32 %one, 1;
    st.volatile.u32 [%at+4], %one;
again:
    ld.volatile.u32 %seen, [%at];
    setp.eq.u32 %zero, %seen, 0;
    @%zero bra again;
    ret;
}
";

const PATIENCE: Duration = Duration::from_millis(500);

struct Words {
    memory: Arc<PinnedMemory>,
}

impl Words {
    fn word(&self, index: usize) -> &AtomicU32 {
        let addr = self.memory.addr() + index * size_of::<u32>();
        // SAFETY: page-locked memory of a page, which lives as long; uses of words are atomic.
        unsafe { AtomicU32::from_ptr(addr as *mut u32) }
    }
}

struct Ends<'a>(&'a Words, &'a Stream);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.word(0).store(1, Ordering::Release);
        let start = Instant::now();
        while matches!(self.1.is_idle(), Ok(false)) && start.elapsed() < PATIENCE {
            thread::yield_now();
        }
    }
}

/// Copies of the program's context beside a kernel of ours: it is the same the other way round, and
/// this way nothing is loaded into the program's context.
fn measure(own: &Arc<Context>, program: &Arc<Context>) -> Result<Measured, String> {
    let text = |error: CudaError| error.to_string();
    let words = Words { memory: PinnedMemory::new(own, probe::BYTES).map_err(text)? };
    let target = Arc::new(DeviceHeap::unzeroed(own, probe::BYTES).map_err(text)?);
    let mut probe = Probe::new(program, &words.memory, &target).map_err(text)?;
    // SAFETY: PTX with its end, for which the driver has a compiler.
    let module = unsafe { Module::load(own, KERNEL.to_bytes_with_nul()) }.map_err(text)?;
    let kernel = module.kernel(c"nvshmem_libfabric_wait").map_err(text)?;
    let stream = Stream::new(own).map_err(text)?;
    let alone = probe.plain(BESIDE / TIMES).map_err(text)?;
    let most = BESIDE.max(alone.saturating_mul(TIMES));
    words.word(0).store(0, Ordering::Relaxed);
    words.word(1).store(0, Ordering::Release);
    let argument = words.memory.addr() as u64;
    // SAFETY: the kernel takes an address of page-locked memory, which is kept until it has ended.
    unsafe { kernel.launch(&stream, 1, 1, argument) }.map_err(text)?;
    let ends = Ends(&words, &stream);
    let start = Instant::now();
    while words.word(1).load(Ordering::Acquire) == 0 {
        if start.elapsed() > PATIENCE {
            return Err(format!("a kernel did not start in {PATIENCE:?}"));
        }
        hint::spin_loop();
        thread::yield_now();
    }
    let rows = probe.rows(most).ok();
    // What plain copies take is of interest where rows do not do.
    let enough = if rows.is_some_and(|rows| rows <= most) { Duration::MAX } else { most };
    let plain = probe.plain(enough).map_err(text)?;
    drop(ends);
    Ok(Measured { rows, plain, most })
}

#[cfg(test)]
mod tests {
    use super::{Duration, Measured, Verdict};

    #[test]
    fn concurrent_context_is_chosen() {
        let micros = Duration::from_micros;
        let verdict = |rows: Option<u64>, plain| {
            let (rows, plain, most) = (rows.map(micros), micros(plain), micros(500));
            Measured { rows, plain, most }.verdict()
        };
        assert_eq!(verdict(Some(10), 2378), Verdict::Rows);
        assert_eq!(verdict(Some(10), 8), Verdict::Rows);
        assert_eq!(verdict(None, 8), Verdict::Plain);
        assert_eq!(verdict(Some(2400), 8), Verdict::Plain);
        assert_eq!(verdict(Some(2400), 2378), Verdict::Neither);
        assert_eq!(verdict(None, 2378), Verdict::Neither);
        assert_eq!(verdict(Some(500), 2378), Verdict::Rows, "no longer than what passes");
        assert_eq!(verdict(Some(501), 500), Verdict::Plain);
        assert_eq!(verdict(None, 501), Verdict::Neither);
    }
}
