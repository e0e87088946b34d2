//! Faults of processes and of networks, in every phase of a job: processes that are killed or
//! stopped, and hosts that are cut off. Each PE is on a host of its own, joined to the others by
//! two rails.
//!
//! Three of them always run. `make reliability` has every fault in every phase, and prints what was
//! promised and what was seen: `docs/reliability.md` has the table.

mod scenario;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout, Outcome, PeReport, PrivateDir, Told};
use test_jobs::Stopped;
use test_support::needs::{Need, libfabric2, trial};
use test_support::network::{self, Network};
use test_support::seeds::draw;

use crate::fabric::job;

pub(crate) use scenario::scenario;

const PES: u32 = 3;
const RAILS: usize = 2;
const VICTIM: u32 = 1;
const QUIETED: &str = "quieted";
/// The parameter that names a file: PEs that come to the phase of the fault wait for it. It is
/// there as soon as the fault is, so that whoever waits for the victim has begun after that.
const STRUCK: &str = "struck";
const DEADLINE: u64 = 3;
/// TCP's retransmission after a short fault may take three seconds.
const LONG_DEADLINE: u64 = 20;
/// What ends before the deadline, and what does not.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    Kill,
    StopShort,
    StopLong,
    CutShort,
    CutLong,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Bootstrap,
    Connect,
    Registration,
    Traffic,
    Quiet,
    Finalize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Promise {
    /// They come to the end of the job, with every byte.
    Finish,
    /// All end by themselves with an error: who waits for a PE that it cannot reach, with one that
    /// names that.
    Name,
    /// They end by themselves with the error of NVSHMEM's bootstrap, which knows of the PE before
    /// the plugin does.
    Fail,
    /// They finish, if the network is back before it is used; else as [`Promise::Name`].
    NameOrFinish,
    /// They finish, or end by that error: the PE was waited for no longer, or it was.
    End,
}

impl Fault {
    const ALL: [Self; 5] =
        [Self::Kill, Self::StopShort, Self::StopLong, Self::CutShort, Self::CutLong];

    fn promise(self, phase: Phase) -> Promise {
        use Phase::{Bootstrap, Connect, Finalize, Quiet, Registration, Traffic};
        match (self, phase) {
            (Self::StopShort | Self::CutShort, _) => Promise::Finish,
            (Self::Kill, Bootstrap | Connect | Registration) => Promise::Fail,
            (Self::Kill, Finalize) => Promise::End,
            // Nobody waits for the PE but NVSHMEM's bootstrap, which waits as long as it likes.
            (Self::StopLong, Bootstrap | Connect | Registration | Finalize) => Promise::Finish,
            // Nothing crosses the network any more.
            (Self::CutLong, Finalize) => Promise::Finish,
            // The network is cut still when traffic begins, unless the machine is busy with other
            // things.
            (Self::CutLong, Bootstrap | Connect | Registration) => Promise::NameOrFinish,
            (Self::Kill | Self::StopLong | Self::CutLong, Traffic | Quiet) => Promise::Name,
        }
    }
}

impl Phase {
    const ALL: [Self; 6] = [
        Self::Bootstrap,
        Self::Connect,
        Self::Registration,
        Self::Traffic,
        Self::Quiet,
        Self::Finalize,
    ];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Whether the victim is in it with what it has just told. The plugin connects by collectives
    /// that come after the host's first one; which of them it is is drawn.
    fn is_here(self, told: Told<'_>, reached: &mut Option<String>, draw: u64) -> bool {
        if let Told::Value("phase", phase) = told {
            *reached = Some(phase.to_owned());
        }
        match (self, told) {
            (Self::Bootstrap, Told::Joins(number)) => number == 0,
            (Self::Connect, Told::Joins(number)) => number == 1 + draw % 3,
            // A chunk of the heap was registered, and its handle is exchanged.
            (Self::Registration, Told::Joins(_)) => reached.as_deref() == Some(&self.name()),
            (_, Told::Value("phase", phase)) => phase == self.name() && self != Self::Registration,
            _ => false,
        }
    }
}

#[derive(Clone, Default, Debug)]
struct Seen {
    wrong: u64,
    canaries: u64,
    hangs: u64,
    /// Why it is not as promised.
    broken: Option<String>,
}

fn inside(mut job: JobSettings, network: &Network) -> JobSettings {
    for (pe, host) in (0..job.n_pes).zip(network.hosts()) {
        job.prefix_of_pe.insert(pe, host.prefix().into_iter().map(OsString::from).collect());
    }
    job
}

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    phase: Phase,
    seed: u32,
}

impl Case {
    fn run(self, library: &std::path::Path) -> Result<Seen, BoxError> {
        let network = Arc::new(Network::new(PES as usize, RAILS, "1gbit")?);
        let gate = PrivateDir::new("nvshmem-fault")?;
        let gate = gate.path().join(STRUCK);
        let (mut reached, mut struck) = (None, false);
        let (mut failed, mut healer) = (None, None);
        let job = self.job(&network, library).param(STRUCK, gate.display());
        let job = job.param("gated", self.phase.name());
        let report = job.run_with(&mut |pe, process, told| {
            let here = self.phase.is_here(told, &mut reached, self.seed.into());
            if pe != VICTIM || struck || !here {
                return;
            }
            struck = true;
            match self.strike(&network, process) {
                Ok(ends) => healer = ends,
                Err(error) => failed = Some(error),
            }
            if let Err(error) = fs::write(&gate, b"") {
                failed = Some(error.into());
            }
        })?;
        if let Some(healer) = healer {
            healer.join().map_err(|_| "what ends the fault has failed")?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if !struck {
            return Err(format!("PE {VICTIM} never came to {:?}:\n{report}", self.phase).into());
        }
        Ok(self.judge(&report))
    }

    fn job(self, network: &Network, library: &std::path::Path) -> JobSettings {
        let devices: Vec<String> = (0..RAILS).map(|rail| format!("rail{rail}")).collect();
        let is_short = matches!(self.fault, Fault::StopShort | Fault::CutShort);
        let job = job("faults", PES, Layout::V7)
            .pes_per_node(1)
            .heap(64 << 20, 8 << 20)
            // Half of the jobs have threads move what is long.
            .debug("bulk_connections", self.seed % 2)
            .heap_grows()
            .deadline(Duration::from_secs(600))
            .step_deadline(Duration::from_secs(500))
            // Whoever is not over by then hangs.
            .grace(Duration::from_secs(120))
            .param("seed", self.seed)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
            .env("NVSHMEM_LIBFABRIC_LIBRARY", library.display())
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            .env(
                "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS",
                if is_short { LONG_DEADLINE } else { DEADLINE },
            )
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","));
        inside(job, network)
    }

    fn strike(
        self,
        network: &Arc<Network>,
        process: u32,
    ) -> Result<Option<thread::JoinHandle<()>>, BoxError> {
        let time = match self.fault {
            Fault::Kill => {
                // SAFETY: a call that touches no memory; the process is a child of this one.
                return match unsafe { libc::kill(process as i32, libc::SIGKILL) } {
                    0 => Ok(None),
                    _ => Err(std::io::Error::last_os_error().into()),
                };
            }
            Fault::StopShort | Fault::CutShort => SHORT,
            Fault::StopLong | Fault::CutLong => LONG,
        };
        if matches!(self.fault, Fault::StopShort | Fault::StopLong) {
            let stopped = Stopped::new(process as i32);
            return Ok(Some(thread::spawn(move || {
                thread::sleep(time);
                drop(stopped);
            })));
        }
        let host = VICTIM as usize;
        let links = move |network: &Network, up| {
            (0..RAILS).try_for_each(|rail| network.set_link(host, rail, up))
        };
        links(network, false)?;
        let network = Arc::clone(network);
        Ok(Some(thread::spawn(move || {
            thread::sleep(time);
            links(&network, true).expect("a link that goes down comes up");
        })))
    }

    fn judge(self, report: &JobReport) -> Seen {
        let number = |name: &str| {
            let values = report.pes.iter().filter_map(|pe| pe.value(name)?.parse::<u64>().ok());
            values.sum::<u64>()
        };
        let mut seen =
            Seen { wrong: number("wrong"), canaries: number("canaries"), ..Seen::default() };
        let promise = match self.fault.promise(self.phase) {
            Promise::NameOrFinish if report.succeeded() => Promise::Finish,
            Promise::NameOrFinish => Promise::Name,
            other => other,
        };
        let mut broken = Vec::new();
        for pe in &report.pes {
            let is_victim = pe.pe == VICTIM;
            match &pe.outcome {
                Outcome::Signal(libc::SIGKILL) if is_victim && self.fault == Fault::Kill => {
                    continue;
                }
                Outcome::Stopped(_) | Outcome::TimedOut(_) => {
                    seen.hangs += 1;
                    broken.push(format!("PE {} {}", pe.pe, pe.outcome));
                }
                Outcome::Finished | Outcome::Failed(_) => {}
                other => broken.push(format!("PE {} {other}", pe.pe)),
            }
            if let Some(why) = pe.value("not torn down") {
                broken.push(format!("PE {} is not taken down: {why}", pe.pe));
            }
            let finished = pe.outcome == Outcome::Finished;
            match promise {
                Promise::Finish if !finished => broken.push(format!("PE {} {}", pe.pe, pe.outcome)),
                Promise::Fail if finished => broken.push(format!("PE {} finished", pe.pe)),
                Promise::Name if !is_victim && finished => {
                    broken.push(format!("PE {} finished", pe.pe));
                }
                _ => {}
            }
        }
        if promise == Promise::Name {
            broken.extend(self.silent(report));
        }
        if !broken.is_empty() || seen.wrong + seen.canaries > 0 {
            let (wrong, canaries) = (seen.wrong, seen.canaries);
            let found = format!("{wrong} wrong, {canaries} canaries; {}", broken.join("; "));
            seen.broken = Some(format!("{self:?}: {found}\n{report}"));
        }
        seen
    }

    fn silent(self, report: &JobReport) -> Vec<String> {
        let is_cut = matches!(self.fault, Fault::CutShort | Fault::CutLong);
        let names = |pe: &PeReport, far: &[u32]| {
            let reached = |line: &str| far.iter().any(|pe| line.contains(&format!("PE {pe}")));
            pe.output.iter().any(|(_, line)| line.contains("ERROR") && reached(line))
        };
        let (victim, others): (Vec<_>, Vec<_>) = report.pes.iter().partition(|pe| pe.pe == VICTIM);
        // In the barrier behind its last quiet a PE is ended by NVSHMEM's bootstrap.
        let waits = |pe: &&&PeReport| pe.value(QUIETED).is_none();
        let silent = others.iter().filter(waits).filter(|pe| !names(pe, &[VICTIM]));
        let mut broken: Vec<_> =
            silent.map(|pe| format!("PE {} does not name PE {VICTIM}", pe.pe)).collect();
        // Of hosts that are cut off from one another either may be the first that ends.
        let is_named = others.iter().any(|pe| names(pe, &[VICTIM]))
            || is_cut && victim.iter().any(|pe| names(pe, &[0, 2]));
        if !is_named {
            broken.push(String::from("nobody is named"));
        }
        broken
    }
}

const ALWAYS: [(Fault, Phase); 3] = [
    (Fault::Kill, Phase::Traffic),
    (Fault::StopLong, Phase::Quiet),
    (Fault::CutShort, Phase::Traffic),
];

pub(crate) fn trials() -> Vec<Trial> {
    let of_case = |(fault, phase): (Fault, Phase)| {
        let name = format!("faults::{fault:?}_in_{phase:?}").to_lowercase();
        trial(name, needs(), move |library| {
            let seen = Case { fault, phase, seed: draw() }.run(&library)?;
            seen.broken.map_or(Ok(()), |why| Err(Failed::from(why)))
        })
    };
    ALWAYS.map(of_case).into()
}

fn needs() -> Need<std::path::PathBuf> {
    let library = libfabric2()?;
    network::possible().map(|()| library)
}

/// Every fault in every phase, so many times, two jobs at a time. Prints the table, and ends with
/// figures.
pub(crate) fn campaign(times: u32) -> ExitCode {
    let library = match needs() {
        Ok(library) => library,
        Err(reason) => {
            println!("there can be no faults of processes and networks: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let first = draw();
    println!("faults: seeds from {first} on");
    // Those that take long and those that do not lie beside each other.
    let mut cases = Vec::new();
    for at in 0..times {
        for (phase, fault) in Phase::ALL.iter().flat_map(|p| Fault::ALL.map(|f| (*p, f))) {
            cases.push(Case { fault, phase, seed: first.wrapping_add(at) });
        }
    }
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = case.run(&library).unwrap_or_else(|error| Seen {
                        broken: Some(format!("{case:?}: {error}")),
                        ..Seen::default()
                    });
                    if let Some(why) = &seen.broken {
                        println!("BROKEN {why}");
                    }
                    let mut rows = rows.lock().expect("nobody panics with it");
                    rows.entry((case.fault, case.phase)).or_insert_with(Vec::new).push(seen);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics with it");
    println!("| fault | phase | times | promised of the others | seen |\n|---|---|---|---|---|");
    for ((fault, phase), seen) in &rows {
        let promised = match fault.promise(*phase) {
            Promise::Finish => "the job goes on, with every byte",
            Promise::Name => "an error that names the PE",
            Promise::Fail => "the error of NVSHMEM's bootstrap",
            Promise::NameOrFinish => {
                "the job goes on if the network is back in time, else an error that names the PE"
            }
            Promise::End => "the job goes on, or the error of NVSHMEM's bootstrap",
        };
        let broken = seen.iter().filter(|seen| seen.broken.is_some()).count();
        let as_promised = match broken {
            0 => String::from("as promised"),
            _ => format!("{broken} times not"),
        };
        println!("| {fault:?} | {phase:?} | {} | {promised} | {as_promised} |", seen.len());
    }
    let all = || rows.values().flatten();
    println!("MEASURE process_faults {} faults", all().count());
    println!(
        "MEASURE process_faults_broken {} faults",
        all().filter(|s| s.broken.is_some()).count()
    );
    println!("MEASURE process_lost_or_wrong {} bytes", all().map(|s| s.wrong).sum::<u64>());
    println!("MEASURE process_canaries_broken {} canaries", all().map(|s| s.canaries).sum::<u64>());
    println!("MEASURE process_hangs {} PEs", all().map(|s| s.hangs).sum::<u64>());
    if all().any(|seen| seen.broken.is_some()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
