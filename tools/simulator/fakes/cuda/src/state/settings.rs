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

    pub(crate) fn count(&self) -> Outcome {
        if self.countdown.load(Relaxed) > 0 && self.countdown.fetch_sub(1, Relaxed) == 1 {
            return Err(self.code.load(Relaxed));
        }
        Ok(())
    }
}

pub(crate) fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| variable("FAKE_CUDA_VERSION", 13_000))
}

#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) copy_ns: AtomicU64,
    /// Copies refused when they are enqueued.
    pub(crate) fail_submit: Failure,
    pub(crate) fail_copy: Failure,
    pub(crate) pinned_limit: AtomicU64,
    pub(crate) memory_limit: AtomicU64,
    pub(crate) stream_ops: AtomicU32,
    pub(crate) fail_launch: Failure,
    /// What becomes of the resident kernel: 0 it runs, 1 there is no room for it on the device,
    /// 2 it executes nothing, 3 it ends at once, 4 it holds its reports back.
    pub(crate) resident: AtomicU32,
}

impl Behaviour {
    pub(crate) fn new() -> Self {
        let behaviour = Self::default();
        behaviour.reset();
        behaviour
    }

    pub(crate) fn reset(&self) {
        self.copy_ns.store(variable("FAKE_CUDA_COPY_NS", 0), Relaxed);
        self.fail_submit.set(0, SUCCESS);
        self.fail_copy.set(0, SUCCESS);
        self.pinned_limit.store(variable("FAKE_CUDA_PINNED_LIMIT", u64::MAX), Relaxed);
        self.memory_limit.store(u64::MAX, Relaxed);
        self.fail_launch.set(0, SUCCESS);
        self.resident.store(0, Relaxed);
        self.stream_ops.store(variable("FAKE_CUDA_STREAM_OPS", 1), Relaxed);
    }

    pub(crate) fn duration(&self, bytes: usize) -> Duration {
        let ps = variable("FAKE_CUDA_BYTE_PS", 0_u64).saturating_mul(bytes as u64);
        Duration::from_nanos(self.copy_ns.load(Relaxed).saturating_add(ps / 1000))
    }
}
