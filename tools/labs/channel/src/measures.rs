//! Measures: how many descriptors a second arrive, and how soon the CPU sees one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use channel_producer::{Form, NO_FENCE};
use nvshmem_transport_libfabric::channel::ring::Ring;
use nvshmem_transport_libfabric::channel::ring::descriptor::Descriptor;

use crate::bed::{Bed, HeapAt};
use crate::machines::machine::{Machine, MachineError};

/// Slots of each ring.
const SLOTS_LOG2: u32 = 12;

/// Taken before the room is published.
const BATCH: u64 = 64;

/// How long a measure may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A push rate to measure.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Threads that push.
    pub threads: u32,
    /// Rings that they push into; a block uses one.
    pub rings: u32,
    /// CPU threads that take, each from its own rings.
    pub consumers: u32,
    /// Whether each push has the system-scope fence that it needs behind data.
    pub fence: bool,
    /// Descriptors of all threads together.
    pub total: u64,
}

/// Descriptors a second, from the first that is taken to the last, all of them checked: none is
/// missing, and each thread's are in order.
///
/// # Errors
/// When the kernel fails, or something is missing or out of order.
pub fn rate(machine: &dyn Machine, rate: &Rate) -> Result<f64, MachineError> {
    let named = |text: String| MachineError(format!("{rate:?}: {text}"));
    // One warp a block, so that few threads use many rings.
    let per_block = rate.threads.min(machine.warp());
    let blocks = rate.threads.div_ceil(per_block);
    let rounds = rate.total / u64::from(rate.threads);
    let mut bed = Bed::new(machine, rate.rings, SLOTS_LOG2, 0, HeapAt::Nowhere(1 << 40))?;
    let args = bed.args(Form::Thread, rounds, 1, if rate.fence { 0 } else { NO_FENCE });
    let expected = u64::from(blocks * per_block) * rounds;

    let mut shares: Vec<Vec<Ring>> = (0..rate.consumers).map(|_| Vec::new()).collect();
    for (index, ring) in bed.rings.drain(..).enumerate() {
        shares[index % rate.consumers as usize].push(ring);
    }
    let taken = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let since = Instant::now();
    // SAFETY: the bed is kept until the kernel has ended, or for ever.
    let mut running = unsafe { machine.launch("push", args, blocks, per_block) }?;
    let spans: Vec<Result<(Instant, Instant), String>> = std::thread::scope(|scope| {
        let consumers: Vec<_> = shares
            .iter_mut()
            .map(|rings| {
                let (taken, failed) = (&taken, &failed);
                scope.spawn(move || {
                    let result = consume(rings, (rate.threads, rounds), expected, taken, failed);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    result
                })
            })
            .collect();
        consumers
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(String::from("a consumer has panicked"))))
            .collect()
    });
    let spans: Result<Vec<_>, _> = spans.into_iter().collect();
    let ended = loop {
        match running.is_done() {
            Ok(true) => break Ok(()),
            Ok(false) if since.elapsed() < DEADLINE && spans.is_ok() => std::thread::yield_now(),
            Ok(false) => break Err(String::from("the kernel does not end")),
            Err(error) => break Err(error.to_string()),
        }
    };
    let (spans, ()) = match (spans, ended) {
        (Ok(spans), Ok(ended)) => (spans, ended),
        (Err(text), _) | (_, Err(text)) => {
            std::mem::forget(bed);
            return Err(named(text));
        }
    };
    for thread in 0..u64::from(blocks * per_block) {
        if bed.status(thread) != 0 || bed.out(thread) != rounds {
            return Err(named(format!("thread {thread} pushed {}", bed.out(thread))));
        }
    }
    let first = spans.iter().map(|(first, _)| *first).min().unwrap_or(since);
    let last = spans.iter().map(|(_, last)| *last).max().unwrap_or(since);
    Ok((expected - 1) as f64 / last.duration_since(first).as_secs_f64().max(1e-9))
}

/// Takes from these rings until all consumers together have `expected`. Returns when the first one
/// and the last one were there.
fn consume(
    rings: &mut [Ring],
    (threads, rounds): (u32, u64),
    expected: u64,
    taken: &AtomicU64,
    failed: &AtomicBool,
) -> Result<(Instant, Instant), String> {
    let mut next = vec![0u64; threads as usize];
    let began = Instant::now();
    let (mut first, mut last) = (None, began);
    let mut looks = 0u64;
    loop {
        let mut found = 0;
        for ring in rings.iter_mut() {
            for _ in 0..BATCH {
                let Some(descriptor) = ring.take() else { break };
                let descriptor = descriptor.map_err(|error| error.to_string())?;
                let Descriptor::Put { dst, src, bytes: 1, .. } = descriptor else {
                    return Err(format!("{descriptor:?} was not put in"));
                };
                let expected = next.get_mut(dst.offset() as usize);
                match expected {
                    Some(expected) if *expected == src.offset() => *expected += 1,
                    _ => return Err(format!("{descriptor:?} where {expected:?} is next")),
                }
                found += 1;
            }
            ring.publish_tail();
            ring.publish_done(ring.taken());
        }
        if found > 0 {
            last = Instant::now();
            first.get_or_insert(last);
            taken.fetch_add(found, Ordering::Relaxed);
            looks = 0;
            continue;
        }
        if taken.load(Ordering::Relaxed) >= expected {
            break;
        }
        looks += 1;
        if looks % 1024 == 0 {
            if began.elapsed() > DEADLINE || failed.load(Ordering::Relaxed) {
                return Err(format!("{} of {expected} arrived", taken.load(Ordering::Relaxed)));
            }
            std::thread::yield_now();
        }
    }
    if let Some(thread) = next.iter().position(|next| *next != 0 && *next != rounds) {
        return Err(format!("thread {thread}: {} of {rounds} arrived", next[thread]));
    }
    Ok((first.unwrap_or(last), last))
}

/// How long things take, in nanoseconds of the GPU's clock.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// From a push to its echo: the CPU sees the descriptor, and the GPU the word that the CPU then
    /// sets. Half of all are below.
    pub echo: f64,
    /// The same, of which one in a hundred is above.
    pub echo_p99: f64,
    /// The least.
    pub echo_least: f64,
    /// One look of the GPU at a word in the CPU's memory, in the mean.
    pub look: f64,
    /// The push itself, in the mean: addresses are looked up, slots reserved, stores issued.
    pub push: f64,
}

impl Latency {
    /// From the stores to the CPU's seeing them, if the way of the echo takes one look, its mean:
    /// half of a look goes by until one begins that meets the word, and half until it is back.
    pub fn seen(&self) -> f64 {
        self.echo - self.push - self.look
    }
}

/// Measures echoes, on a GPU.
///
/// # Errors
/// When the kernel fails.
pub fn latency(machine: &dyn Machine, rounds: u64, fence: bool) -> Result<Latency, MachineError> {
    let named = |text: &str| MachineError(format!("echo: {text}"));
    let mut bed = Bed::new(machine, 1, SLOTS_LOG2, 0, HeapAt::Host)?;
    let args = bed.args(Form::Thread, rounds, 1, if fence { 0 } else { NO_FENCE });
    // SAFETY: the heap's first word, which the CPU and kernels use atomically.
    let echo = unsafe { AtomicU64::from_ptr(bed.heap(0) as *mut u64) };
    // SAFETY: the bed is kept until the kernel has ended, or for ever.
    let mut running = unsafe { machine.launch("echo", args, 1, 1) }?;
    let since = Instant::now();
    let mut seen = 0;
    let mut looks = 0u64;
    while seen < rounds {
        if let Some(descriptor) = bed.rings[0].take() {
            seen += 1;
            echo.store(seen, Ordering::Release);
            descriptor.map_err(|error| named(&error.to_string()))?;
            if seen % BATCH == 0 {
                bed.rings[0].publish_tail();
            }
            continue;
        }
        looks += 1;
        if looks % (1 << 20) == 0 && since.elapsed() > DEADLINE {
            std::mem::forget(bed);
            return Err(named("the kernel does not get on"));
        }
    }
    bed.rings[0].publish_tail();
    while !running.is_done()? {
        if since.elapsed() > DEADLINE {
            std::mem::forget(bed);
            return Err(named("the kernel does not end"));
        }
    }
    if bed.status(0) != 0 {
        return Err(named(&format!("error {}: {:?}", bed.status(0), bed.error())));
    }
    let cycles_per_ns = bed.out(1) as f64 / 1000.0;
    if cycles_per_ns <= 0.0 {
        return Err(named("the GPU's clocks do not run"));
    }
    // The first ones load code and translations.
    let skipped = rounds / 10;
    let mut cycles: Vec<u64> = (skipped..rounds).map(|round| bed.out(2 + round)).collect();
    cycles.sort_unstable();
    let at = |part: f64| cycles[((cycles.len() - 1) as f64 * part) as usize] as f64 / cycles_per_ns;
    Ok(Latency {
        echo: at(0.5),
        echo_p99: at(0.99),
        echo_least: at(0.0),
        look: bed.out(0) as f64 / cycles_per_ns,
        push: bed.out(2 + rounds) as f64 / cycles_per_ns,
    })
}
