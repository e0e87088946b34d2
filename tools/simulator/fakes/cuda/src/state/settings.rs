//! Faults and delays of a device, as the environment or a test asks.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::state::status::{Outcome, SUCCESS, Status};

/// The environment's value of a variable.
///
/// # Panics
/// When it cannot be read as what it should be: a test that runs with a setting other than it
/// believes proves nothing.
pub(crate) fn variable<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => match text.parse() {
            Ok(value) => value,
            Err(_) => panic!("{name}: cannot read {text:?}"),
        },
    }
}

/// A failure that comes once, after some copies have gone well.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    /// Copies until it comes, that one included. Zero or less: it does not come.
    countdown: AtomicI64,
    code: AtomicU32,
}

impl Failure {
    /// Lets copy number `after` + 1 fail, counted from now. `SUCCESS` takes it back.
    pub(crate) fn set(&self, after: u32, code: Status) {
        self.code.store(code, Relaxed);
        let countdown = if code == SUCCESS { 0 } else { i64::from(after) + 1 };
        self.countdown.store(countdown, Relaxed);
    }

    fn from_environment(name: &str) -> Self {
        let failure = Self::default();
        if let Ok(text) = std::env::var(name) {
            let parts = text.split_once(':');
            match parts.and_then(|(n, code)| Some((n.parse().ok()?, code.parse().ok()?))) {
                Some((after, code)) => failure.set(after, code),
                None => panic!("{name}: {text:?} is not N:CODE"),
            }
        }
        failure
    }

    pub(crate) fn count(&self) -> Outcome {
        if self.countdown.load(Relaxed) > 0 && self.countdown.fetch_sub(1, Relaxed) == 1 {
            return Err(self.code.load(Relaxed));
        }
        Ok(())
    }
}

/// The driver's version.
pub(crate) fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| variable("FAKE_CUDA_VERSION", 13_000))
}

/// How a device behaves.
#[derive(Debug)]
pub(crate) struct Behaviour {
    /// What each copy takes at least, in nanoseconds.
    pub(crate) copy_ns: AtomicU64,
    /// What each byte adds, in picoseconds.
    pub(crate) byte_ps: AtomicU64,
    /// Copies refused when they are enqueued.
    pub(crate) fail_submit: Failure,
    pub(crate) fail_copy: Failure,
    pub(crate) pinned_limit: AtomicU64,
    pub(crate) memory_limit: AtomicU64,
    /// Whether 64-bit stream memory operations and dma-buf export are offered.
    pub(crate) stream_ops: AtomicU32,
    pub(crate) dma_buf: AtomicU32,
    /// What becomes of words of the host that a stream is to set: 0 refused, 1 set, 2 taken and
    /// never set.
    pub(crate) host_writes: AtomicU32,
    pub(crate) together: AtomicU32,
    pub(crate) vmm: AtomicU32,
    /// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`.
    pub(crate) writes_ordering: AtomicU32,
}

impl Behaviour {
    pub(crate) fn from_environment() -> Self {
        Self {
            copy_ns: variable("FAKE_CUDA_COPY_NS", 0).into(),
            byte_ps: variable("FAKE_CUDA_BYTE_PS", 0).into(),
            fail_submit: Failure::from_environment("FAKE_CUDA_FAIL_SUBMIT"),
            fail_copy: Failure::from_environment("FAKE_CUDA_FAIL_COPY"),
            pinned_limit: variable("FAKE_CUDA_PINNED_LIMIT", u64::MAX).into(),
            memory_limit: variable("FAKE_CUDA_MEMORY_LIMIT", u64::MAX).into(),
            stream_ops: variable("FAKE_CUDA_STREAM_OPS", 1).into(),
            dma_buf: variable("FAKE_CUDA_DMA_BUF", 2).into(),
            host_writes: variable("FAKE_CUDA_HOST_WRITES", 1).into(),
            together: variable("FAKE_CUDA_TOGETHER", 1).into(),
            vmm: variable("FAKE_CUDA_VMM", 1).into(),
            writes_ordering: variable("FAKE_CUDA_WRITES_ORDERING", 100).into(),
        }
    }

    pub(crate) fn reset(&self) {
        let fresh = Self::from_environment();
        self.copy_ns.store(fresh.copy_ns.into_inner(), Relaxed);
        self.byte_ps.store(fresh.byte_ps.into_inner(), Relaxed);
        self.fail_submit.set(0, SUCCESS);
        self.fail_copy.set(0, SUCCESS);
        self.pinned_limit.store(fresh.pinned_limit.into_inner(), Relaxed);
        self.memory_limit.store(fresh.memory_limit.into_inner(), Relaxed);
        self.stream_ops.store(fresh.stream_ops.into_inner(), Relaxed);
        self.dma_buf.store(fresh.dma_buf.into_inner(), Relaxed);
        self.host_writes.store(fresh.host_writes.into_inner(), Relaxed);
        self.together.store(fresh.together.into_inner(), Relaxed);
        self.vmm.store(fresh.vmm.into_inner(), Relaxed);
        self.writes_ordering.store(fresh.writes_ordering.into_inner(), Relaxed);
    }

    pub(crate) fn duration(&self, bytes: usize) -> Duration {
        let ps = self.byte_ps.load(Relaxed).saturating_mul(bytes as u64);
        Duration::from_nanos(self.copy_ns.load(Relaxed).saturating_add(ps / 1000))
    }
}
