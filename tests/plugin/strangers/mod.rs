//! Strangers: processes of no job that reach the rails of one, and send what they like. The job
//! goes on, with every byte.
//!
//! The test is the stranger. It finds the ports of the PEs as anybody on their host does, and after
//! each kind of packet waits until the job has gone through two more rounds. `make reliability` has
//! every kind on every fabric, and counts.

mod kinds;
mod packets;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, Layout, Pattern, PrivateDir, Told};
use test_support::full;
use test_support::seeds::draw;

use crate::fabric::{Fabric, job_on, trial};
use crate::strangers::kinds::{Kind, Stranger, shuffled};
use crate::strangers::packets::Protocol;

const PES: u32 = 2;
const FABRICS: [Fabric; 3] = [Fabric::Tcp2, Fabric::Rxm2, Fabric::Rxm];
const PATIENCE: Duration = Duration::from_secs(300);

/// How targets learn of a put that has a signal: as it is by default, or by counting its segments.
const SIGNALS: [&str; 2] = ["auto", "counted"];

/// Sends each kind to a job until one has ended it; returns how many were sent, and which has.
fn attack(
    fabric: Fabric,
    signals: &str,
    kinds: &[Kind],
    seed: u64,
) -> Result<(usize, Option<String>), BoxError> {
    let protocol = if fabric == Fabric::Tcp2 { Protocol::Tcp } else { Protocol::Rxm };
    let directory = PrivateDir::new("nvshmem-strangers")?;
    let until = directory.path().join("until");
    let job = job_on(fabric, "strangers", PES, 2, Layout::V7)
        .heap(16 << 20, 1 << 20)
        .param("until", until.display())
        .param("user_threads", u8::from(protocol == Protocol::Tcp))
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 20)
        .env("NVSHMEM_LIBFABRIC_YIELD", "always")
        .debug("signals", signals);
    let (round, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (begun, processes) = channel();
    thread::scope(|scope| {
        let (rounds, over, mut known) = (&round, &over, BTreeSet::new());
        let job = scope.spawn(move || {
            let report = job.run_with(&mut |_, process, told| {
                let Told::Value("round", round) = told else { return };
                rounds.fetch_max(round.parse().unwrap_or(0), Ordering::Relaxed);
                if known.insert(process) {
                    let _ = begun.send(process);
                }
            });
            over.store(true, Ordering::Relaxed);
            report
        });
        let ports = processes.iter().take(PES as usize).flat_map(ports).collect();
        let mut stranger = Stranger::new(protocol, ports, seed);
        if protocol == Protocol::Rxm {
            stranger.leave_out_silent();
        }
        let (mut sent, mut ended) = (0_usize, None);
        for kind in kinds {
            let before = rounds.load(Ordering::Relaxed);
            let said = stranger.send(*kind);
            let goes_on = goes_on(rounds, before + 2, over);
            sent += 1;
            // What was not sent has shown nothing.
            if !goes_on || said.is_err() {
                ended = Some(format!("{}: goes on: {goes_on}, sent: {said:?}", kind.0));
                break;
            }
        }
        // Whatever has become of the job, it is to end; the stranger's connections stay until then.
        fs::write(&until, b"")?;
        let report = job.join().map_err(|_| "the job has panicked")??;
        // An error, or another byte than there should be, comes of the last kind.
        if !report.succeeded() || ended.is_some() {
            let last = kinds.get(sent.saturating_sub(1)).map_or("no packet", |kind| kind.0);
            ended = Some(format!("{}\n{report}", ended.unwrap_or_else(|| last.to_owned())));
        }
        Ok((sent, ended))
    })
}

fn goes_on(rounds: &AtomicU64, round: u64, over: &AtomicBool) -> bool {
    let start = Instant::now();
    while rounds.load(Ordering::Relaxed) < round {
        if over.load(Ordering::Relaxed) || start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

fn ports(process: u32) -> Vec<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let inodes: BTreeSet<String> = links
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let listening = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ("0A", true) = (*fields.get(3)?, inodes.contains(*fields.get(9)?)) else {
            return None;
        };
        let (address, port) = fields.get(1)?.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?.to_le_bytes();
        Some(SocketAddr::from((address, u16::from_str_radix(port, 16).ok()?)))
    };
    table.lines().filter_map(listening).collect()
}

pub(crate) fn trials() -> Vec<Trial> {
    let [auto, counted] = SIGNALS;
    [(Fabric::Tcp2, auto), (Fabric::Tcp2, counted), (Fabric::Rxm, auto), (Fabric::Rxm2, counted)]
        .map(|(fabric, signals)| {
            let name = format!("strangers::{signals}_{}", fabric.name());
            trial(name, Some(fabric), move || {
                let seed = draw().into();
                println!("{fabric:?} {signals}: seed {seed}");
                let mut kinds = shuffled(seed);
                // Each takes half a second over rxm: a third of them in a run.
                if fabric != Fabric::Tcp2 && !full() {
                    kinds.truncate(kinds.len().div_ceil(3));
                }
                let (_, ended) = attack(fabric, signals, &kinds, seed)?;
                ended.map_or(Ok(()), |why| Err(Failed::from(why)))
            })
        })
        .into()
}

pub(crate) fn campaign(times: u32) -> ExitCode {
    let (mut packets, mut broken) = (0, 0);
    let each = FABRICS.into_iter().flat_map(|fabric| SIGNALS.map(|signals| (fabric, signals)));
    for (fabric, signals) in (0..times).flat_map(|_| each.clone()) {
        let seed = draw().into();
        let (sent, ended) = attack(fabric, signals, &shuffled(seed), seed)
            .unwrap_or_else(|error| (0, Some(error.to_string())));
        packets += sent;
        if let Some(why) = ended {
            println!("BROKEN {fabric:?} {signals}, seed {seed}: {why}");
            broken += 1;
        }
    }
    println!("MEASURE strangers_packets {packets} kinds, each in a job");
    println!("MEASURE strangers_ended_jobs {broken} jobs");
    if broken == 0 && packets != 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const SIZES: [u64; 4] = [40, 3000, 70_000, 400_000];

/// Two PEs that send one another puts with signal and sums until there is the file, and look at
/// every byte.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let until: std::path::PathBuf = job.param::<String>("until")?.into();
    let user_threads = job.param::<u8>("user_threads")? != 0;
    let (me, other) = (job.pe, 1 - job.pe);
    let host = job.init()?;
    let inbox = host.alloc(SIZES.iter().sum(), 4096)?;
    let outbox = host.alloc(SIZES.iter().sum(), 4096)?;
    // One for each size, a sum, and whether this is the last round.
    let words = host.alloc(64, 64)?;
    let word = |at: u64| words.plus(8 * at);
    host.barrier()?;
    for round in 1_u64.. {
        job.report("round", round)?;
        // Both PEs have to end in the same round.
        let is_last = me == 0 && until.exists();
        let mut at = 0;
        for (number, len) in (0..).zip(SIZES) {
            let from = outbox.plus(at);
            host.local(from, len)?.fill(Pattern::of(&[me.into(), number, round]), 0)?;
            let signal = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round);
            host.proxy.put_signal(other, inbox.plus(at), from, len, word(number), signal)?;
            at += len;
        }
        host.proxy.amo(other, word(4), Amo::new(c::NVT_AMO_ADD, 8, 1))?;
        host.proxy.p(other, word(5), u64::from(is_last) + 1, 8)?;
        host.proxy.quiet()?;
        if user_threads {
            host.user.put(other, word(6), words.plus(56), 8)?;
            host.user.quiet()?;
        }
        let mut at = 0;
        for (number, len) in (0..).zip(SIZES) {
            host.wait_until(|| Ok(host.local(word(number), 8)?.load_acquire()? == round))?;
            let expected = Pattern::of(&[other.into(), number, round]);
            host.local(inbox.plus(at), len)?.verify(expected, 0)?;
            at += len;
        }
        host.barrier()?;
        let sum = host.local(word(4), 8)?.load_acquire()?;
        if sum != round {
            return Err(format!("{sum} additions in round {round}").into());
        }
        let told = host.local(word(5), 8)?.load_acquire()?;
        host.barrier()?;
        if is_last || me == 1 && told == 2 {
            break;
        }
    }
    host.finalize()?;
    Ok(())
}
