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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, JobReport, Layout, Pattern, Told};
use test_support::full;
use test_support::seeds::draw;

use crate::fabric::{Fabric, trial};
use crate::strangers::kinds::{Kind, Stranger, shuffled};
use crate::strangers::packets::Protocol;

const PES: u32 = 2;
const FABRICS: [Fabric; 3] = [Fabric::Tcp2, Fabric::Rxm2, Fabric::Rxm];
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// As it is by default.
    Recovers,
    /// Targets count segments.
    Counts,
}

#[derive(Default)]
struct Attack {
    sent: Vec<&'static str>,
    /// After this kind the job went on no longer.
    ended: Option<(&'static str, String)>,
}

fn run(fabric: Fabric, mode: Mode, kinds: &[Kind], seed: u64) -> Result<Attack, BoxError> {
    let protocol = match fabric {
        Fabric::Tcp2 => Protocol::Tcp,
        _ => Protocol::Rxm,
    };
    let until = std::env::temp_dir().join(format!("strangers-{}-{seed}", std::process::id()));
    let _ = fs::remove_file(&until);
    let mut job = fabric
        .job("strangers", PES, 2, Layout::V7)
        .heap(16 << 20, 1 << 20)
        .param("until", until.display())
        .param("user_threads", u8::from(protocol == Protocol::Tcp))
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 20)
        .env("NVSHMEM_LIBFABRIC_YIELD", "always");
    if mode == Mode::Counts {
        job = job.debug("signals", "counted");
    }
    let rounds = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicU64::new(0));
    let attack = Arc::new(Mutex::new(Attack::default()));
    let (mut processes, mut thread) = (BTreeSet::new(), None);
    let report = job.run_with(&mut |_, process, told| {
        let Told::Value("round", round) = told else { return };
        processes.insert(process);
        rounds.fetch_max(round.parse().unwrap_or(0), Ordering::Relaxed);
        if processes.len() as u32 == PES && thread.is_none() {
            let watch = Watch { rounds: Arc::clone(&rounds), over: Arc::clone(&over) };
            let (kinds, processes) = (kinds.to_vec(), processes.clone());
            let (attack, until) = (Arc::clone(&attack), until.clone());
            thread = Some(thread::spawn(move || {
                let ports = processes.iter().flat_map(|process| ports(*process)).collect();
                let mut stranger = Stranger::new(protocol, ports, seed);
                if protocol == Protocol::Rxm {
                    stranger.leave_out_silent();
                }
                watch.send_all(&mut stranger, &kinds, &attack);
                // Whatever has become of the job, it is to end.
                let _ = fs::write(&until, b"");
                stranger
            }));
        }
    });
    over.store(1, Ordering::Relaxed);
    if let Some(thread) = thread {
        thread.join().map_err(|_| "the stranger has failed")?;
    }
    let _ = fs::remove_file(&until);
    let report = report?;
    let mut attack = std::mem::take(&mut *attack.lock().expect("nobody panics with it"));
    judge(&mut attack, &report);
    Ok(attack)
}

struct Watch {
    rounds: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
}

impl Watch {
    fn send_all(&self, stranger: &mut Stranger, kinds: &[Kind], attack: &Mutex<Attack>) {
        for kind in kinds {
            let before = self.rounds.load(Ordering::Relaxed);
            let said = stranger.send(*kind);
            let goes_on = self.goes_on(before + 2);
            let mut attack = attack.lock().expect("nobody panics with it");
            attack.sent.push(kind.0);
            // What was not sent has shown nothing.
            if !goes_on || said.is_err() {
                attack.ended = Some((kind.0, format!("goes on: {goes_on}, sent: {said:?}")));
                return;
            }
        }
    }

    fn goes_on(&self, round: u64) -> bool {
        let start = Instant::now();
        while self.rounds.load(Ordering::Relaxed) < round {
            if self.over.load(Ordering::Relaxed) != 0 || start.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

/// A job that has ended with an error, or with another byte than it should have, was ended by the
/// last kind.
fn judge(attack: &mut Attack, report: &JobReport) {
    if report.succeeded() && attack.ended.is_none() {
        return;
    }
    let last = attack.sent.last().copied().unwrap_or("no packet");
    let (kind, why) = attack.ended.take().unwrap_or((last, String::new()));
    attack.ended = Some((kind, format!("{why}\n{report}")));
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
    let modes = [
        (Fabric::Tcp2, Mode::Recovers),
        (Fabric::Tcp2, Mode::Counts),
        (Fabric::Rxm, Mode::Recovers),
        (Fabric::Rxm2, Mode::Counts),
    ];
    modes
        .map(|(fabric, mode)| {
            let name = format!("strangers::{mode:?}_{}", fabric.name()).to_lowercase();
            trial(name, Some(fabric), move || {
                let seed = draw().into();
                println!("{fabric:?} {mode:?}: seed {seed}");
                let mut kinds = shuffled(seed);
                // Each takes half a second over rxm: a third of them in a run.
                if fabric != Fabric::Tcp2 && !full() {
                    kinds.truncate(kinds.len().div_ceil(3));
                }
                let attack = run(fabric, mode, &kinds, seed)?;
                match attack.ended {
                    None => Ok(()),
                    Some((kind, why)) => Err(Failed::from(format!("{kind}: {why}"))),
                }
            })
        })
        .into()
}

pub(crate) fn campaign(times: u32) -> ExitCode {
    let (mut packets, mut ended) = (0, 0);
    for _ in 0..times {
        for fabric in FABRICS {
            for mode in [Mode::Recovers, Mode::Counts] {
                let seed = draw().into();
                let attack = match run(fabric, mode, &shuffled(seed), seed) {
                    Ok(attack) => attack,
                    Err(error) => {
                        println!("BROKEN {fabric:?} {mode:?}, seed {seed}: {error}");
                        return ExitCode::FAILURE;
                    }
                };
                packets += attack.sent.len();
                if let Some((kind, why)) = attack.ended {
                    println!("BROKEN {kind} ended {fabric:?} {mode:?}, seed {seed}: {why}");
                    ended += 1;
                }
            }
        }
    }
    println!("MEASURE strangers_packets {packets} kinds, each in a job");
    println!("MEASURE strangers_ended_jobs {ended} jobs");
    if ended == 0 && packets != 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

const SIZES: [u64; 4] = [40, 3000, 70_000, 400_000];

/// Two PEs that send one another puts with signal and sums until there is the file, and look at
/// every byte.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let until: std::path::PathBuf = job.param::<String>("until")?.into();
    let user_threads = job.param::<u8>("user_threads")? != 0;
    let (me, other) = (job.pe(), 1 - job.pe());
    let host = job.init()?;
    let inbox = host.alloc(SIZES.iter().sum(), 4096)?;
    let outbox = host.alloc(SIZES.iter().sum(), 4096)?;
    // One for each size, a sum, and whether this is the last round.
    let words = host.alloc(64, 64)?;
    let word = |at: u64| words.plus(8 * at);
    host.barrier()?;
    for round in 1_u64.. {
        job.report("round", round)?;
        // Both have to end in the same one.
        let is_last = me == 0 && until.exists();
        let mut at = 0;
        for (number, len) in (0..).zip(SIZES) {
            let from = outbox.plus(at);
            host.local(from, len)?.fill(Pattern::of(&[me.into(), number, round]), 0)?;
            let signal = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round);
            host.proxy().put_signal(other, inbox.plus(at), from, len, word(number), signal)?;
            at += len;
        }
        host.proxy().amo(other, word(4), Amo::new(c::NVT_AMO_ADD, 8, 1))?;
        host.proxy().p(other, word(5), u64::from(is_last) + 1, 8)?;
        host.proxy().quiet()?;
        if user_threads {
            // So that their rails are looked at as well.
            host.user().put(other, word(6), words.plus(56), 8)?;
            host.user().quiet()?;
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
