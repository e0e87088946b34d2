//! Choice of the context in which memory of a device is staged: one of the transport's own if that
//! works, so that no call of the program in its contexts delays copies for which its kernels wait.
//!
//! Some calls of CUDA wait until their context is idle, and block all other calls on that context
//! meanwhile: freeing memory, loading or unloading a module (so the first launch of a lazily loaded
//! kernel), unregistering host memory, setting limits. If the program makes such a call while its
//! kernel waits for staged data, copies in the same context would never start.
//!
//! Without the multi-process service the contexts of a device share its compute engine in time
//! slices. Whether copies of one progress beside a kernel of another is measured, with a kernel
//! that waits for the host.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::MEM;
use crate::copy::engine::CopyEngine;
use crate::copy::probe::{self, Probe};
use crate::copy::request::{Direction, Transfer};
use crate::copy::resident::ResidentKernel;
use crate::driver::context::Context;
use crate::driver::error::{CudaError, code};
use crate::driver::stream::wait_for;
use crate::memory::heap::DeviceHeap;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::Memory;
use crate::staging::waiting_kernel::WaitingKernel;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StagingContext {
    /// The transport's own if its copies progress beside kernels, else the program's.
    #[default]
    Auto,
    /// The transport's own.
    Own,
    /// The program's.
    Program,
}

#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) context: Arc<Context>,
    pub(crate) rows: bool,
    pub(crate) resident: Option<Arc<ResidentKernel>>,
}

/// Time limit for a copy that progresses beside a kernel, or, on a slow device or busy CPU, a
/// multiple of its time without one. In time slices it takes 2 ms and more.
const MAX_CONCURRENT: Duration = Duration::from_micros(500);
const MAX_SLOWDOWN: u32 = 4;

/// Chooses the context for the device of `program`, within tenths of a second, and logs the choice.
pub(crate) fn choose(
    program: &Arc<Context>,
    wanted: StagingContext,
    resident: Option<Duration>,
) -> Serving {
    let device = program.device();
    let programs = |reason: fmt::Arguments<'_>| {
        log::info!(
            target: MEM,
            "memory of device {device} is staged in {program}, whose calls may hold up copies: {reason}"
        );
        Serving { context: Arc::clone(program), rows: false, resident: None }
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
    let resident = match (resident, measured) {
        (None, _) => Err(String::from("NVSHMEM_LIBFABRIC_DEBUG=resident=0 says so")),
        (Some(patience), Some(Measured { plain, limit, .. })) if plain <= limit.max(patience) => {
            start_resident(&own, program, patience)
        }
        _ => Err(String::from("kernels of two contexts run in turns")),
    };
    match &resident {
        Ok((_, took)) => log::info!(
            target: MEM,
            "a resident kernel copies short bytes of device {device} and stores words: {took:?} for 8 bytes"
        ),
        Err(reason) => {
            log::info!(target: MEM, "no resident kernel serves device {device}: {reason}")
        }
    }
    Serving { context: own, rows, resident: resident.ok().map(|(resident, _)| resident) }
}

/// Returns the result of [`measure`], called once for each device.
fn measured(own: &Arc<Context>, program: &Arc<Context>) -> Result<Measured, String> {
    type Known = (Arc<Context>, Result<Measured, String>);
    static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    // Locked meanwhile: two measurements of one device would disturb each other.
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
    limit: Duration,
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
            Some(rows) if rows <= self.limit => Verdict::Rows,
            _ if self.plain <= self.limit => Verdict::Plain,
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

const PATIENCE: Duration = Duration::from_millis(500);

/// Measures copies of the program's context beside a kernel of ours. The reverse takes as long, but
/// would load a module into the program's context.
fn measure(own: &Arc<Context>, program: &Arc<Context>) -> Result<Measured, String> {
    let text = |error: CudaError| error.to_string();
    let memory = PinnedMemory::new(own, probe::BYTES).map_err(text)?;
    let target = Arc::new(DeviceHeap::unzeroed(own, probe::BYTES).map_err(text)?);
    let mut probe = Probe::new(program, &memory, &target).map_err(text)?;
    let alone = probe.plain(Duration::ZERO).map_err(text)?;
    let limit = MAX_CONCURRENT.max(alone.saturating_mul(MAX_SLOWDOWN));
    let kernel = WaitingKernel::start(own, Arc::clone(&memory), PATIENCE)?;
    let rows = probe.rows(limit).ok();
    let measured = Measured { rows, plain: Duration::MAX, limit };
    let plain = if measured.verdict() == Verdict::Rows {
        // A kernel of the driver executes it: the slowest tells whether kernels run in turns, as
        // one may come just when it is its turn.
        (0..SAMPLES)
            .try_fold(Duration::ZERO, |slowest, _| Ok(slowest.max(probe.plain(Duration::MAX)?)))
    } else {
        probe.plain(limit)
    };
    drop(kernel);
    Ok(Measured { plain: plain.map_err(text)?, ..measured })
}

const SAMPLES: usize = 4;

/// Starts a resident kernel, unless it copies wrong bytes or takes too long. Returns it and the
/// time of a copy of 8 bytes to the device and another one back, halved.
fn start_resident(
    own: &Arc<Context>,
    program: &Arc<Context>,
    patience: Duration,
) -> Result<(Arc<ResidentKernel>, Duration), String> {
    const ROUNDS: u64 = 32;
    let text = |error: CudaError| error.to_string();
    let resident = Arc::new(ResidentKernel::new(own, patience)?);
    let memory = PinnedMemory::new(own, probe::BYTES).map_err(text)?;
    // Of the program's context, as the memory that it will serve.
    let heap = Arc::new(DeviceHeap::unzeroed(program, probe::BYTES).map_err(text)?);
    let range = match Memory::examine(own.driver(), heap.addr(), probe::BYTES) {
        Ok(Memory::Device(range)) => range,
        other => return Err(format!("{other:?} is no memory of a device")),
    };
    let mut engine = CopyEngine::new(own).map_err(text)?;
    engine.set_resident(Some(&resident));
    // SAFETY: aligned words of page-locked memory, which lives as long; uses of them are atomic.
    let word = |at: usize| unsafe { AtomicU64::from_ptr((memory.addr() + at) as *mut u64) };
    let mut fastest = Duration::MAX;
    for round in 1..=ROUNDS {
        word(0).store(round, Ordering::Release);
        let start = Instant::now();
        for (direction, offset) in [(Direction::ToDevice, 0), (Direction::FromDevice, 8)] {
            let (range, addr, memory, len) = (&range, range.addr(), &memory, 8);
            let transfer = Transfer { direction, range, addr, memory, offset, len };
            engine.start(&transfer).map_err(|error| error.to_string())?;
            if !engine.is_at_resident() {
                return Err(String::from("it does not take a copy"));
            }
            let mut done = None;
            wait_for(PATIENCE, || {
                done = engine.poll();
                done.is_some()
            });
            done.unwrap_or_else(|| {
                // The kernel may still write to it.
                std::mem::forget(Arc::clone(&heap));
                Err(own.driver().error("cuLaunchKernel", code::TIMEOUT, own.to_string()))
            })
            .map_err(text)?;
        }
        fastest = fastest.min(start.elapsed() / 2);
        if word(8).load(Ordering::Acquire) != round {
            return Err(String::from("it copies wrong bytes"));
        }
    }
    if fastest > patience {
        return Err(format!("a copy takes {fastest:?}"));
    }
    Ok((resident, fastest))
}

#[cfg(test)]
mod tests {
    use super::{Duration, Measured, Verdict};

    #[test]
    fn concurrent_context_is_chosen() {
        let micros = Duration::from_micros;
        let verdict = |rows: Option<u64>, plain| {
            let (rows, plain, limit) = (rows.map(micros), micros(plain), micros(500));
            Measured { rows, plain, limit }.verdict()
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
