//! The rate of descriptors over shm beside that of the engine called directly, in turns in the same
//! proxy thread. Both PEs are channels of one process.
//!
//! A round of the channel begins with full rings, filled while the proxy thread is kept from them:
//! kernels take no CPU time, and there is no core for another thread. It ends when the last slot is
//! published as done. A round of the engine issues the same puts by the engine's shortest way, with
//! a turn after every batch, until all are delivered.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::Producer;
use engine::ids::Pe;
use engine::port::Direction;
use engine::request::{LocalSide, Request};
use nvshmem_bench::{Rounds, Schedule, ratios};
use nvshmem_sim::BoxError;
use nvshmem_transport_libfabric::bootstrap::{TcpBootstrap, TcpOptions};
use nvshmem_transport_libfabric::channel::{Channel, Options as ChannelOptions, ProxyView};

use crate::Options;
use crate::report::Report;

/// Puts of a repeat, of 8 bytes each: what the rings have room for.
const PUTS: u64 = 16 << 10;
const BYTES: usize = 8;
const RINGS: u64 = 4;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let mut all = Vec::new();
    for _ in 0..options.jobs {
        let mut process = crate::part(Vec::new(), &serde_json::to_string(&options.schedule())?)?;
        let ended = process
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")
            .stderr(std::process::Stdio::inherit())
            .output()?;
        if !ended.status.success() {
            return Err(format!("the channel's process: {}", ended.status).into());
        }
        let rounds: Rounds = serde_json::from_slice(&ended.stdout)?;
        all.extend(ratios(&rounds[1], &rounds[0]));
    }
    report.ratio(String::from("channel_rate_over_direct_shm"), &all)
}

pub(crate) fn process(part: &str) -> Result<(), BoxError> {
    let schedule: Schedule = serde_json::from_str(part)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let center = TcpOptions { address, me: 0, n_pes: 2, job: 1, patience: PATIENCE };
    let ray = TcpOptions { me: 1, ..center.clone() };
    let (over, ends) = mpsc::channel::<()>();
    let peer = thread::spawn(move || -> Result<(), BoxError> {
        let (channel, _) = open(TcpBootstrap::join(ray)?)?;
        // Its proxy thread serves the other PE until that is done.
        let _ = ends.recv();
        Ok(channel.stop()?)
    });
    let (channel, heap) = open(TcpBootstrap::center(center, listener, &|_| true)?)?;
    let rounds = schedule.run(2, PUTS, |side, repeats| {
        let round = if side == 0 { through } else { direct };
        (0..repeats).map(|_| round(&channel, heap)).sum::<Result<Duration, BoxError>>()
    })?;
    drop(over);
    channel.stop()?;
    peer.join().map_err(|_| "the peer has panicked")??;
    println!("{}", serde_json::to_string(&rounds)?);
    Ok(())
}

fn open(bootstrap: TcpBootstrap) -> Result<(Channel, usize), BoxError> {
    let mut options = ChannelOptions::from_env()?;
    (options.rings, options.slots) = (RINGS as u32, PUTS / RINGS);
    let channel = Channel::new(Box::new(bootstrap), &options)?;
    let heap = channel.allocate_symmetric(1 << 20)? as usize;
    channel.barrier()?;
    Ok((channel, heap))
}

fn through(channel: &Channel, heap: usize) -> Result<Duration, BoxError> {
    let (go, gone) = mpsc::channel::<()>();
    let (start, started) = mpsc::channel();
    let (hold, held) = mpsc::channel();
    channel.send_to_proxy(move |_| {
        let _ = hold.send(());
        let _ = gone.recv();
        let _ = start.send(Instant::now());
    })?;
    held.recv()?;
    let rings = 0..RINGS as usize;
    let wanted: Vec<u64> = rings.map(|ring| channel.done(ring) + PUTS / RINGS).collect();
    let filled = fill(channel, heap);
    let _ = go.send(());
    filled?;
    while wanted.iter().enumerate().any(|(ring, wanted)| channel.done(ring) != *wanted) {
        if let Some(error) = channel.error() {
            return Err(error.into());
        }
        // Seldom: each look takes a core from one of the two threads that move data. Every 20
        // microseconds they cost a quarter of the rate.
        thread::sleep(Duration::from_micros(300));
    }
    Ok(Instant::now() - started.recv()?)
}

fn fill(channel: &Channel, heap: usize) -> Result<(), BoxError> {
    // SAFETY: the context lives as long as the channel, and the heap is registered.
    let producer = unsafe { Producer::new(channel.context()) };
    for ring in 0..RINGS {
        channel_producer::set_block(ring as u32);
        for put in 0..PUTS / RINGS {
            let at = heap + (put as usize % 1024) * 64;
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
        issue(view, heap).map(|()| begin.elapsed())
    })?;
    Ok(took?)
}

#[inline(never)]
fn issue(view: &mut ProxyView<'_>, heap: usize) -> Result<(), String> {
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
