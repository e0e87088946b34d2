//! A soak: jobs of eight PEs, each on a host of its own with four rails of TCP, that go on for long
//! while rails die and come back, links become slow and processes are stopped. Every byte and every
//! word is compared, and what each process has of the system must not grow.
//!
//! Two jobs, one after the other. In the first, heaps are memory of the host and rails fail. In the
//! second, every other heap is on a device that the fabric does not reach, and user threads take
//! part: neither has a promise where rails fail (`docs/decisions/0020-failover.md`), so links are
//! slow there, and processes stopped.
//!
//! Some seconds of each are tests. `make soak` has as many minutes as it is told, and
//! `docs/reliability.md` its figures.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{
    BoxError, Error, Job, JobReport, JobSettings, Layout, MemoryKind, Outcome, Told,
};
use test_support::built::fake_cuda_dir;
use test_support::full;
use test_support::held::Held;
use test_support::needs::trial;
use test_support::network::{Change, End, Link, Network};
use test_support::random::Random;
use test_support::seeds::draw;

use super::storm::{FIRST, Step, Storm, WRONG};
use super::{inside, needs};
use crate::fabric::job;

const RAILS: usize = 4;
/// Rates of links: as they are, when they are slow, and when nothing comes through.
const RATE: &str = "400mbit";
const SLOW: &str = "40mbit";
const STALLED: &str = "1kbit";
/// How much more memory a process may have in the last quarter than in the second: what allocators
/// keep of peaks.
const GROWTH_KIB: u64 = 4096;
/// After so long memory has had its peaks.
const PEAKS: Duration = Duration::from_secs(30);
/// What tcp of libfabric 2.x keeps of each rail that is opened again, until the end: a domain
/// inside, with a pool.
const KEPT_DESCRIPTORS: u64 = 3;
const KEPT_KIB: u64 = 17_200;
/// What else may be opened and closed at any time.
const SOME_DESCRIPTORS: u64 = 8;
/// How often a PE is looked at, at least. Others than PE 0 may have one look fewer by its end.
const LOOKS: u32 = 9;
/// What a PE says when it has.
const OPENED_AGAIN: &str = "was closed and opened again";

/// The traffic: what differs from one soak to another is its seed, and whether user threads take
/// part.
const STORM: Storm = Storm { seed: 0, users: false, area: 512 << 10, longest: 18 };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Rails die and come back.
    Rails,
    /// Memory of devices and user threads.
    Devices,
}

#[derive(Clone, Copy, Debug)]
struct Soak {
    kind: Kind,
    n_pes: u32,
    time: Duration,
    /// Time between two looks at what processes have.
    sampled: Duration,
    /// Milliseconds between two faults.
    pause: (u64, u64),
    /// `NVSHMEM_LIBFABRIC_RAIL_TIMEOUT`, where rails are monitored.
    patience: u64,
    seed: u32,
    /// It is long enough for rails to be opened again, to be sure.
    whole: bool,
}

/// What a process has, at some time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    pe: u32,
    round: u64,
    operations: u64,
    kib: u64,
    mappings: u64,
    descriptors: u64,
    threads: u64,
    shared: u64,
}

impl Sample {
    fn now(pe: u32, round: u64, operations: u64) -> Self {
        let Held { kilobytes: kib, descriptors, threads, shared, mappings } = Held::now();
        let [descriptors, threads] = [descriptors, threads].map(|number| number as u64);
        let [shared, mappings] = [shared, mappings].map(|number| number as u64);
        Self { pe, round, operations, kib, mappings, descriptors, threads, shared }
    }

    /// As a PE tells it.
    fn text(&self) -> String {
        let Self { round, operations, kib, mappings, descriptors, threads, shared, .. } = self;
        format!("{round} {operations} {kib} {mappings} {descriptors} {threads} {shared}")
    }

    fn parse(pe: u32, text: &str) -> Option<Self> {
        let numbers = text.split(' ').map(|number| number.parse().ok());
        let numbers = numbers.collect::<Option<Vec<u64>>>()?;
        let [round, operations, kib, mappings, descriptors, threads, shared] = numbers[..] else {
            return None;
        };
        Some(Self { pe, round, operations, kib, mappings, descriptors, threads, shared })
    }
}

/// A PE of a soak.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let time = Duration::from_secs(job.param("seconds")?);
    let sampled = Duration::from_millis(job.param("sampled")?);
    let storm = Storm { seed: job.param("seed")?, users: job.param("users")?, ..STORM };
    let host = job.init()?;
    let job = &*job;
    let (mut started, mut samples) = (Instant::now(), 0);
    let stormed = storm.run(job, &host, &mut |step| {
        match step {
            Step::Begins(0) => {
                started = Instant::now();
                job.report("phase", "traffic")?;
            }
            Step::Ended(round, operations) if started.elapsed() >= sampled * samples => {
                job.report("held", Sample::now(job.pe(), round, operations).text())?;
                samples += 1;
            }
            Step::Begins(_) | Step::HalfWay(_) | Step::Ended(..) => {}
        }
        Ok(started.elapsed() >= time && samples >= LOOKS)
    })?;
    job.report("operations", stormed.operations)?;
    let error = stormed.rounds.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
    job.report("hangs", u64::from(matches!(error, Some(Error::Timeout(_)))))?;
    job.report("rounds", stormed.report(job)?)?;
    host.finalize()?;
    Ok(())
}

/// What has come of it.
#[derive(Clone, Default, Debug)]
struct Seen {
    operations: u64,
    faults: u64,
    wrong: u64,
    hangs: u64,
    /// Rails that were opened again.
    reopened: u64,
    /// Beside what is kept of these.
    growth_kib: u64,
    broken: Option<String>,
}

impl Soak {
    fn run(self, library: &std::path::Path) -> Result<Seen, BoxError> {
        let network = Arc::new(Network::new(self.n_pes as usize, RAILS, RATE)?);
        let (begin, begun) = channel();
        let (end, ended) = channel();
        let (faulty, injected) = (Arc::clone(&network), self);
        let faults = thread::spawn(move || injected.faults(&faulty, &begun, &ended));
        let mut samples: Vec<Sample> = Vec::new();
        let mut end: Option<Sender<()>> = Some(end);
        let report = self.job(&network, library).run_with(&mut |pe, process, told| match told {
            Told::Value("phase", "traffic") => {
                // It may have ended early, with an error that is told below.
                let _ = begin.send(process);
            }
            Told::Value("held", text) => {
                samples.extend(Sample::parse(pe, text));
                self.print(&samples);
            }
            // A PE is over.
            Told::Value("rounds" | "hangs", _) => drop(end.take()),
            _ => {}
        });
        drop((begin, end));
        let faults = faults.join().map_err(|_| "what makes faults has panicked")?;
        let report = report?;
        let mut seen = self.judge(&report, &samples);
        match faults {
            Ok(faults) => seen.faults = faults,
            Err(error) => {
                seen.broken.get_or_insert_with(|| format!("faults: {error}"));
            }
        }
        if let Some(missing) = self.missing(&seen, &samples) {
            seen.broken.get_or_insert_with(|| format!("{self:?}: {missing}\n{report}"));
        }
        Ok(seen)
    }

    /// What it takes for a soak to have shown something, and did not take place.
    fn missing(self, seen: &Seen, samples: &[Sample]) -> Option<String> {
        if seen.operations == 0 {
            return Some(String::from("no operation was done"));
        }
        if seen.faults == 0 {
            return Some(String::from("there was no fault"));
        }
        if self.whole && self.kind == Kind::Rails && seen.reopened == 0 {
            return Some(String::from("no rail was opened again"));
        }
        (0..self.n_pes).find_map(|pe| {
            let own: Vec<&Sample> = samples.iter().filter(|sample| sample.pe == pe).collect();
            let few = quarters(&own).is_none();
            few.then(|| format!("PE {pe} was looked at {} times, too few to compare", own.len()))
        })
    }

    /// A line for each time that all PEs were looked at.
    fn print(&self, samples: &[Sample]) {
        let n = self.n_pes as usize;
        if samples.len() % n != 0 {
            return;
        }
        let last = &samples[samples.len() - n..];
        let most = |of: fn(&Sample) -> u64| last.iter().map(of).max().unwrap_or(0);
        let operations: u64 = last.iter().map(|sample| sample.operations).sum();
        println!(
            "SOAK {:?} {:4} {:7} rounds {operations:10} operations, at most {:8} KiB {:5} mappings \
             {:4} descriptors {:3} threads {:2} in /dev/shm",
            self.kind,
            samples.len() / n,
            most(|sample| sample.round),
            most(|sample| sample.kib),
            most(|sample| sample.mappings),
            most(|sample| sample.descriptors),
            most(|sample| sample.threads),
            most(|sample| sample.shared),
        );
    }

    fn job(self, network: &Network, library: &std::path::Path) -> JobSettings {
        let devices: Vec<String> = (0..RAILS).map(|rail| format!("rail{rail}")).collect();
        let is_rails = self.kind == Kind::Rails;
        let chunk = 4 << 20;
        let mut job = job("soak", self.n_pes, Layout::V7)
            .pes_per_node(1)
            .heap(STORM.heap(self.n_pes), chunk)
            .deadline(self.time + Duration::from_secs(300))
            .step_deadline(Duration::from_secs(150))
            .grace(Duration::from_secs(60))
            .param("seed", self.seed)
            .param("seconds", self.time.as_secs())
            .param("sampled", self.sampled.as_millis())
            .param("users", !is_rails)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
            .env("NVSHMEM_LIBFABRIC_LIBRARY", library.display())
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 120)
            .env("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", if is_rails { self.patience } else { 0 })
            .env("NVSHMEM_LIBFABRIC_RAIL_COOLING", 2)
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","));
        if !is_rails {
            job = job.cuda_driver(fake_cuda_dir());
            for pe in (1..self.n_pes).step_by(2) {
                job = job.memory_of_pe(pe, MemoryKind::Device);
            }
        }
        inside(job, network)
    }

    /// Faults of links and processes, one after the other, from when all PEs have begun until the
    /// job ends. Gives how many.
    fn faults(
        self,
        network: &Network,
        begun: &Receiver<u32>,
        ended: &Receiver<()>,
    ) -> Result<u64, String> {
        let mut processes = Vec::new();
        while processes.len() < self.n_pes as usize {
            match begun.recv() {
                Ok(process) => processes.push(process),
                // It has failed before.
                Err(_) => return Ok(0),
            }
        }
        let mut random = Random::of(&[self.seed.into(), u64::from(self.n_pes)]);
        let mut count = 0;
        let between =
            |random: &mut Random, from, to| Duration::from_millis(from + random.below(to - from));
        loop {
            let time = between(&mut random, self.pause.0, self.pause.1);
            if is_over(ended, time) {
                return Ok(count);
            }
            count += 1;
            let changes = self.draw(&mut random);
            if changes.is_empty() {
                let process = processes[random.below(processes.len() as u64) as usize];
                let time = between(&mut random, 100, 1200);
                super::signal(process, libc::SIGSTOP).map_err(|e| e.to_string())?;
                let is_over = is_over(ended, time);
                super::signal(process, libc::SIGCONT).map_err(|e| e.to_string())?;
                if is_over {
                    return Ok(count);
                }
                continue;
            }
            for (link, end, change) in &changes {
                network.change(*link, *end, *change).map_err(|error| error.to_string())?;
            }
            // Some are over before they are noticed.
            let longest = (self.patience * 1000 + 3000).min(self.pause.1);
            let is_over = is_over(ended, between(&mut random, 500, longest));
            for (link, end, change) in changes {
                let healed = match change {
                    Change::Down => Change::Up,
                    _ => Change::Rate(RATE),
                };
                network.change(link, end, healed).map_err(|error| error.to_string())?;
            }
            if is_over {
                return Ok(count);
            }
        }
    }

    /// What happens to links at a time; nothing: to a process.
    fn draw(self, random: &mut Random) -> Vec<(Link, End, Change)> {
        let mut below = |bound: u32| random.below(bound) as usize;
        let (host, rail) = (below(self.n_pes), below(RAILS as u32));
        let end = if below(2) == 0 { End::Nic } else { End::Far };
        let (link, rate) = (Link { host, rail }, Change::Rate);
        if self.kind == Kind::Devices {
            return if below(2) == 0 { Vec::new() } else { vec![(link, end, rate(SLOW))] };
        }
        match below(8) {
            0 => Vec::new(),
            1 => vec![(link, end, rate(SLOW))],
            2 | 3 => vec![(link, end, rate(STALLED))],
            // Two of one host; and one each of two.
            4 => {
                let other = Link { host, rail: (rail + 1 + below(3)) % RAILS };
                vec![(link, end, Change::Down), (other, end, Change::Down)]
            }
            5 => {
                let other = Link { host: (host + 1) % self.n_pes as usize, rail: below(4) };
                vec![(link, end, Change::Down), (other, end, Change::Down)]
            }
            _ => vec![(link, end, Change::Down)],
        }
    }

    fn judge(self, report: &JobReport, samples: &[Sample]) -> Seen {
        let number = |name: &str| {
            let values = report.pes.iter().filter_map(|pe| pe.value(name)?.parse::<u64>().ok());
            values.sum::<u64>()
        };
        let mut seen = Seen {
            operations: number("operations"),
            wrong: number(WRONG),
            hangs: number("hangs"),
            ..Seen::default()
        };
        let mut broken = Vec::new();
        for pe in &report.pes {
            if matches!(pe.outcome, Outcome::Stopped(_) | Outcome::TimedOut(_)) {
                seen.hangs += 1;
            }
            if pe.outcome != Outcome::Finished {
                broken.push(format!("PE {} {}", pe.pe, pe.outcome));
            }
            if let Some(first) = pe.value(FIRST) {
                broken.push(format!("PE {}: {first}", pe.pe));
            }
            let says = pe.output.iter().filter(|(_, line)| line.contains(OPENED_AGAIN));
            let reopened = says.count() as u64;
            seen.reopened += reopened;
            let own: Vec<&Sample> = samples.iter().filter(|sample| sample.pe == pe.pe).collect();
            let Some((early, late)) = quarters(&own) else { continue };
            let most = |part: &[&Sample], of: fn(&Sample) -> u64| {
                part.iter().map(|sample| of(sample)).max().unwrap_or(0)
            };
            let grown = |of| most(late, of).saturating_sub(most(early, of));
            let descriptors = grown(|sample| sample.descriptors);
            let kept = reopened.min(descriptors / KEPT_DESCRIPTORS);
            let kib = grown(|sample| sample.kib).saturating_sub(kept * KEPT_KIB);
            // Around the first fault a process was seen to open as many descriptors as its rails
            // have connections to other PEs, once, and no more later. A short soak may see that
            // in its last quarter only.
            let connections = match self.time < PEAKS {
                true => u64::from(self.n_pes - 1) * RAILS as u64,
                false => 0,
            };
            seen.growth_kib = seen.growth_kib.max(kib);
            let all = [
                (
                    "descriptors",
                    descriptors,
                    reopened * KEPT_DESCRIPTORS + connections + SOME_DESCRIPTORS,
                ),
                ("threads", grown(|sample| sample.threads), 0),
                ("files in /dev/shm", grown(|sample| sample.shared), 0),
                ("mappings", grown(|sample| sample.mappings), 32),
                ("KiB", kib, GROWTH_KIB),
            ];
            for (what, grown, most) in all {
                let has_peaks = self.time < PEAKS && matches!(what, "mappings" | "KiB");
                if grown > most && !has_peaks {
                    broken.push(format!("PE {} has {grown} {what} more than before", pe.pe));
                }
            }
        }
        if !broken.is_empty() {
            let cause = report.cause.as_deref().unwrap_or("no PE failed");
            let text = format!("{self:?}: {cause}; {}", broken.join("; "));
            seen.broken = Some(format!("{text}\n{report}"));
        }
        seen
    }
}

/// The second quarter and the last one. None of so few that a quarter is nothing.
fn quarters<'a, 'b>(all: &'a [&'b Sample]) -> Option<(&'a [&'b Sample], &'a [&'b Sample])> {
    let quarter = all.len() / 4;
    (quarter >= 2).then(|| (&all[quarter..2 * quarter], &all[all.len() - quarter..]))
}

/// Waits so long, or until it is over.
fn is_over(ended: &Receiver<()>, time: Duration) -> bool {
    ended.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

/// Some seconds of each kind, with fewer PEs outside of the full tier.
pub(crate) fn trials() -> Vec<Trial> {
    let of_kind = |kind| {
        let name = format!("soak::{kind:?}").to_lowercase();
        trial(name, needs(), move |library| {
            let (n_pes, seconds) = if full() { (8, 40) } else { (4, 8) };
            let time = Duration::from_secs(seconds);
            let sampled = time / 16;
            let (pause, seed) = ((500, 3000), draw());
            let soak = Soak { kind, n_pes, time, sampled, pause, patience: 2, seed, whole: false };
            soak.run(&library)?.broken.map_or(Ok(()), |why| Err(Failed::from(why)))
        })
    };
    let mut trials: Vec<Trial> = [Kind::Rails, Kind::Devices].map(of_kind).into();
    trials.push(Trial::test("soak::what_did_not_take_place_is_told", what_did_not_take_place));
    trials
}

/// Each thing that a whole soak has to have, left out.
fn what_did_not_take_place() -> Result<(), Failed> {
    let time = Duration::from_secs(600);
    let soak = |kind| Soak {
        kind,
        n_pes: 2,
        time,
        sampled: time / 10,
        pause: (1, 2),
        patience: 5,
        seed: 1,
        whole: true,
    };
    let held = Sample {
        pe: 0,
        round: 1,
        operations: 1,
        kib: 1,
        mappings: 1,
        descriptors: 1,
        threads: 1,
        shared: 0,
    };
    let samples: Vec<Sample> = (0..16).map(|at| Sample { pe: at % 2, ..held }).collect();
    let good = Seen { operations: 9, faults: 9, reopened: 9, ..Seen::default() };
    let expect = |soak: Soak, seen: Seen, samples: &[Sample], part: Option<&str>| {
        let told = soak.missing(&seen, samples);
        let is_so = match (&told, part) {
            (Some(told), Some(part)) => told.contains(part),
            (told, part) => told.is_none() && part.is_none(),
        };
        if is_so { Ok(()) } else { Err(Failed::from(format!("{told:?} instead of {part:?}"))) }
    };
    let rails = soak(Kind::Rails);
    let none = Seen { operations: 0, ..good.clone() };
    let calm = Seen { faults: 0, ..good.clone() };
    let intact = Seen { reopened: 0, ..good.clone() };
    let short = Soak { whole: false, ..rails };
    expect(rails, good.clone(), &samples, None)?;
    for soak in [rails, short] {
        expect(soak, none.clone(), &samples, Some("no operation"))?;
        expect(soak, calm.clone(), &samples, Some("no fault"))?;
        expect(soak, good.clone(), &samples[..14], Some("PE 0 was looked at 7 times"))?;
    }
    expect(rails, intact.clone(), &samples, Some("no rail"))?;
    expect(short, intact.clone(), &samples, None)?;
    expect(soak(Kind::Devices), intact, &samples, None)?;
    expect(rails, good.clone(), &samples[..15], Some("PE 1 was looked at 7 times"))?;
    expect(rails, good, &[], Some("PE 0 was looked at 0 times"))
}

/// So many minutes: two thirds of them with rails that die, and the rest with memory of devices.
/// Ends with figures.
pub(crate) fn campaign(minutes: u32) -> ExitCode {
    let library = match needs() {
        Ok(library) => library,
        Err(reason) => {
            println!("there can be no soak: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let started = Instant::now();
    let (mut all, mut broken) = (Seen::default(), 0);
    let whole = Duration::from_secs(60 * u64::from(minutes));
    for (kind, time) in [(Kind::Rails, whole * 2 / 3), (Kind::Devices, whole / 3)] {
        let sampled = Duration::from_secs(60).min(time / 16);
        let (pause, seed) = ((4000, 16_000), draw());
        // As it is unless it is set: a machine that is busy with other things is no network that
        // fails.
        let soak = Soak { kind, n_pes: 8, time, sampled, pause, patience: 5, seed, whole: true };
        println!("soak: {soak:?}");
        let seen = soak.run(&library).unwrap_or_else(|error| Seen {
            broken: Some(format!("{soak:?}: {error}")),
            ..Seen::default()
        });
        if let Some(why) = &seen.broken {
            println!("BROKEN {why}");
            broken += 1;
        }
        all.operations += seen.operations;
        all.faults += seen.faults;
        all.wrong += seen.wrong;
        all.hangs += seen.hangs;
        all.reopened += seen.reopened;
        all.growth_kib = all.growth_kib.max(seen.growth_kib);
    }
    println!("MEASURE soak_minutes {:.1} minutes", started.elapsed().as_secs_f64() / 60.0);
    println!("MEASURE soak_operations {} operations", all.operations);
    println!("MEASURE soak_faults {} faults", all.faults);
    println!("MEASURE soak_wrong {} bytes", all.wrong);
    println!("MEASURE soak_hangs {} PEs", all.hangs);
    println!("MEASURE soak_rails_reopened {} rails", all.reopened);
    println!("MEASURE soak_growth_kib {} KiB", all.growth_kib);
    if broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
