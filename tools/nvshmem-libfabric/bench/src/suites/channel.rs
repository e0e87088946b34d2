//! The rate of descriptors to a peer process over shm, beside that of the engine called directly,
//! in turns in the same proxy thread.
//!
//! A round of the channel's begins with full rings, which the proxy thread has been kept from:
//! kernels that produce take no time of a CPU, and here there is no core for another thread. It
//! ends when the last slot is published as done. A round of the other's begins and ends in the
//! proxy thread: the same puts by the engine's shortest way, with a turn after every batch, until
//! all are delivered.

use std::fmt;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::Producer;
use engine::ids::Pe;
use engine::port::Direction;
use engine::request::{LocalSide, Request};
use launcher::{Limits, Place, Stream};
use nvshmem_sim::BoxError;
use nvshmem_transport_libfabric::bootstrap::{TcpBootstrap, TcpOptions};
use nvshmem_transport_libfabric::channel::measure::ProxyView;
use nvshmem_transport_libfabric::channel::{Channel, Options as ChannelOptions};

use crate::harness::pace::Effort;
use crate::harness::pace::Pace;
use crate::harness::report::Report;
use crate::times::case::{Case, Figure, Side, Unit};
use crate::times::rounds::{Rounds, Schedule, Took};

/// Which part of a measurement a process is.
pub(crate) const PART: &str = "NVSHMEM_BENCH_CHANNEL";

/// Puts of a repeat, of 8 bytes each: what the rings have room for.
const PUTS: u64 = 16 << 10;
const BYTES: usize = 8;
const RINGS: u64 = 4;

/// How long the proxy may take for a repeat on any machine that is not stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a job may take beyond its rounds. Once a PE has failed, the other waits in vain.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(600), grace: Duration::ZERO };

const SIDES: [Side; 2] = [Side::Channel, Side::Direct];

const EFFORT: Effort = Effort { jobs: 3, rounds: 12 };

/// The one row.
#[derive(Clone, Copy, Debug)]
struct Puts8;

impl Case for Puts8 {
    fn sides(&self) -> Vec<Side> {
        SIDES.into()
    }

    fn unit(&self) -> Unit {
        Unit::Rate
    }

    fn figures(&self, provider: &str) -> Vec<Figure> {
        let name = format!("channel_rate_over_direct_{provider}");
        vec![Figure::rate_over(name, Side::Channel, Side::Direct)]
    }
}

impl fmt::Display for Puts8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("put_8B")
    }
}

/// One PE: `part` is the number of rounds and the least time of one.
pub(crate) fn process(part: &str) -> Result<(), BoxError> {
    let numbers: Vec<u64> = part.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [rounds, least] = numbers[..] else {
        return Err("two numbers are meant".into());
    };
    let place = Place::of_process().ok_or("it is no PE of a job")?;
    let Place { me, n_pes, address } = place.clone();
    let options = TcpOptions { address, me, n_pes, job: 1, patience: Duration::from_secs(60) };
    let bootstrap = match me {
        0 => TcpBootstrap::center(options, place.listener()?)?,
        _ => TcpBootstrap::join(options)?,
    };
    let mut options = ChannelOptions::from_env()?;
    (options.rings, options.slots) = (RINGS as u32, PUTS / RINGS);
    let channel = Channel::new(Box::new(bootstrap), &options)?;
    let heap = channel.allocate_symmetric(1 << 20)? as usize;
    channel.barrier()?;
    if me == 0 {
        let least = Duration::from_micros(least);
        let schedule = Schedule { rounds: rounds as u32, least };
        let took = schedule.run(&SIDES, PUTS, |side, repeats| {
            let mut counted = Duration::ZERO;
            for _ in 0..repeats {
                counted += match side {
                    Side::Channel => through(&channel, heap),
                    _ => direct(&channel, heap),
                }
                .map_err(|error| error.to_string())?;
            }
            Ok(Took::from(counted))
        })?;
        println!("{}", took.encode()?);
    }
    // The other PE waits here, longer than it waits for anything else.
    wait_for_peer(&channel, heap, me)?;
    channel.stop()?;
    Ok(())
}

/// PE 1 waits until PE 0 sets a word.
fn wait_for_peer(channel: &Channel, heap: usize, me: u32) -> Result<(), BoxError> {
    let end = heap + (1 << 19);
    // SAFETY: a word of the heap, which lives as long as the channel.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(end as *mut u64) };
    if me == 0 {
        // SAFETY: the context lives, and the heap is registered.
        let producer = unsafe { Producer::new(channel.context()) };
        let status = producer.signal(end as *mut u64, 1, 0, 1);
        if status != 0 || producer.quiet() != 0 {
            return Err(format!("the last signal failed with {status}").into());
        }
        return Ok(());
    }
    while word.load(std::sync::atomic::Ordering::Acquire) == 0 {
        if let Some(error) = channel.error() {
            return Err(error.into());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Fills the rings, lets the proxy thread go, and times it.
fn through(channel: &Channel, heap: usize) -> Result<Duration, BoxError> {
    let (go, gone) = mpsc::channel::<()>();
    let (start, started) = mpsc::channel();
    let (hold, held) = mpsc::channel();
    thread::scope(|scope| -> Result<Duration, BoxError> {
        let holder = scope.spawn(move || {
            channel.on_proxy(move |_| {
                let _ = hold.send(());
                let _ = gone.recv();
                let _ = start.send(Instant::now());
            })
        });
        let done: Vec<u64> = (0..RINGS as usize).map(|ring| channel.done(ring)).collect();
        held.recv()?;
        let filled = fill(channel, heap);
        let _ = go.send(());
        filled?;
        let end = Instant::now() + PATIENCE;
        let all =
            || (0..RINGS as usize).all(|ring| channel.done(ring) == done[ring] + PUTS / RINGS);
        while !all() {
            if Instant::now() > end {
                return Err("the rings are not drained".into());
            }
            // Seldom: a round takes tens of milliseconds, and each look takes a core from one of
            // the two threads that move data. Every 20 microseconds they cost a quarter of the
            // rate.
            thread::sleep(Duration::from_micros(300));
        }
        let end = Instant::now();
        holder.join().map_err(|_| "the holder panicked")??;
        Ok(end - started.recv()?)
    })
}

fn fill(channel: &Channel, heap: usize) -> Result<(), BoxError> {
    // SAFETY: the context lives, and the heap is registered.
    let producer = unsafe { Producer::new(channel.context()) };
    for ring in 0..RINGS {
        channel_producer::set_block(ring as u32);
        for put in 0..PUTS / RINGS {
            let at = (heap as u64 + (put % 1024) * 64) as usize;
            let status = producer.put_nbi(at as *mut u8, (at + 8) as *const u8, BYTES, 1);
            if status != 0 {
                return Err(format!("a push failed with {status}").into());
            }
        }
    }
    Ok(())
}

fn direct(channel: &Channel, heap: usize) -> Result<Duration, BoxError> {
    let took = channel.on_proxy(move |view| {
        let begin = Instant::now();
        puts(view, heap).map(|()| begin.elapsed())
    })?;
    Ok(took?)
}

#[inline(never)]
fn puts(view: &mut ProxyView<'_>, heap: usize) -> Result<(), String> {
    let (base, handle) = view.remote(0, 1).ok_or("the heap is no region")?;
    let lane = &mut *view.lane;
    for put in 0..PUTS {
        let offset = (put % 1024) * 64;
        let request = Request {
            direction: Direction::Write,
            pe: Pe(1),
            remote_handle: &handle,
            remote_addr: base + offset,
            local: LocalSide::Memory(heap + offset as usize + 8),
            len: BYTES,
        };
        lane.start(&request).map_err(|error| error.to_string())?;
        if put % 32 == 31 {
            lane.progress().map_err(|error| error.to_string())?;
        }
    }
    lane.quiet(Pe(1)).map_err(|error| error.to_string())
}

/// Measures, and keeps the figure.
///
/// # Errors
/// A job that failed.
pub(crate) fn measure(pace: &Pace, report: &mut Report) -> Result<(), BoxError> {
    let Effort { jobs, rounds } = pace.effort(EFFORT);
    let jobs = (0..jobs).map(|_| job(rounds, pace.round())).collect::<Result<Vec<_>, _>>()?;
    println!("\n8-byte puts to a peer process over shm, from {RINGS} rings and directly");
    report.measured("shm", &Puts8, &jobs, pace.samples)
}

fn job(rounds: u32, least: Duration) -> Result<Rounds, BoxError> {
    let limits = Limits { deadline: LIMITS.deadline + 4 * least * rounds, ..LIMITS };
    let ended = launcher::run_job(2, limits, |me, command| {
        command
            .env(PART, format!("{rounds} {}", least.as_micros()))
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")
            .env("NVSHMEM_LIBFABRIC_DEBUG", "bootstrap_seconds=60");
        if me == 0 {
            command.stdout(Stdio::piped());
        }
        Ok(())
    })?;
    if ended.iter().any(|pe| !pe.end.is_success()) {
        return Err(format!("PE 0 {}, PE 1 {}", ended[0].end, ended[1].end).into());
    }
    let said = ended[0].text(Stream::Out);
    Rounds::decode(&said).map_err(|e| format!("{e}: {said}").into())
}
