//! Seeds of random tests: fresh ones each run, and for ever those that once failed.
//!
//! A run says which seed its fresh ones come from. `NVSHMEM_TEST_SEED` runs a single one; the
//! message of a failure gives it. `NVSHMEM_TEST_SEEDS` runs so many fresh ones.

use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::panic::{RefUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Runs `case` with each of the seeds in `kept`, which once failed, and with `fresh` new ones.
/// Seeds are 32-bit numbers other than 0.
pub fn for_seeds(name: &str, kept: &[u32], fresh: u32, case: impl Fn(u64) + RefUnwindSafe) {
    let single = single();
    let count = number("NVSHMEM_TEST_SEEDS", std::env::var("NVSHMEM_TEST_SEEDS").ok());
    let seeds = match single {
        Some(seed) => vec![seed],
        None => {
            let first = draw();
            let count = count.unwrap_or(fresh);
            // Past the test harness, which keeps what a passing test prints to itself.
            let _ = writeln!(std::io::stderr(), "{name}: {count} seeds from {first} on");
            let fresh = std::iter::successors(Some(first), |seed| Some(after(*seed)));
            kept.iter().copied().chain(fresh.take(count as usize)).collect()
        }
    };
    let running = watch(name);
    for seed in seeds {
        running.store(seed, Ordering::Relaxed);
        if let Err(panic) = catch_unwind(|| case(u64::from(seed))) {
            let how = format!("NVSHMEM_TEST_SEED={seed} brings it back");
            let _ = writeln!(std::io::stderr(), "{name} failed with seed {seed}; {how}");
            resume_unwind(panic);
        }
    }
}

/// Tells of a case that does not end, so that whoever stops the run knows its seed: what the caller
/// has put into the number, for as long as it keeps that.
fn watch(name: &str) -> Arc<AtomicU32> {
    let seed = Arc::new(AtomicU32::new(0));
    let (name, watched) = (name.to_owned(), Arc::downgrade(&seed));
    std::thread::spawn(move || {
        let mut before = 0;
        loop {
            std::thread::sleep(LONG);
            let Some(seed) = watched.upgrade() else { return };
            let seed = seed.load(Ordering::Relaxed);
            if seed == before {
                let how = format!("NVSHMEM_TEST_SEED={seed} brings it back");
                let _ = writeln!(std::io::stderr(), "{name} goes on with seed {seed}; {how}");
            }
            before = seed;
        }
    });
    seed
}

/// How many cases a campaign has, in a run that is one: `NVSHMEM_TEST_CAMPAIGN`, which
/// scripts/reliability.sh sets.
pub fn campaign() -> Option<u32> {
    number("NVSHMEM_TEST_CAMPAIGN", std::env::var("NVSHMEM_TEST_CAMPAIGN").ok())
}

/// A seed that no run before had, as far as chance goes.
pub fn draw() -> u32 {
    // The standard library draws the keys of its hash tables from the system.
    let random = std::hash::RandomState::new().build_hasher().finish();
    (random as u32).max(1)
}

fn after(seed: u32) -> u32 {
    seed.wrapping_add(1).max(1)
}

pub fn single() -> Option<u32> {
    number("NVSHMEM_TEST_SEED", std::env::var("NVSHMEM_TEST_SEED").ok())
}

fn number(variable: &str, value: Option<String>) -> Option<u32> {
    let text = value.filter(|text| !text.is_empty())?;
    match text.parse() {
        Ok(number) if number > 0 => Some(number),
        _ => panic!("{variable} is '{text}', and has to be a number from 1 to {}", u32::MAX),
    }
}
