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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::MEM;
use crate::copy::probe::{self, Probe};
use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::memory::heap::DeviceHeap;
use crate::memory::pinned_memory::PinnedMemory;
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
}

/// Time limit for a copy that progresses beside a kernel, or, on a slow device or busy CPU, a
/// multiple of its time without one. In time slices it takes 2 ms and more.
const MAX_CONCURRENT: Duration = Duration::from_micros(500);
const MAX_SLOWDOWN: u32 = 4;

/// Chooses the context for the device of `program`, within tenths of a second, and logs the choice.
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
    // If rows are fast enough, the time of plain copies is for the log alone.
    let measured = Measured { rows, plain: Duration::MAX, limit };
    let enough = if measured.verdict() == Verdict::Rows { Duration::MAX } else { limit };
    let plain = probe.plain(enough).map_err(text)?;
    drop(kernel);
    Ok(Measured { plain, ..measured })
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
