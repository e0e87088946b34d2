//! Faults of processes and of networks, in every phase of a job: processes that are killed or
//! stopped, and hosts that are cut off. Each PE is on a host of its own, joined to the others by
//! two rails.
//!
//! Four of them always run. `make reliability` has every fault in every phase:
//! `docs/reliability.md` has the table of what is promised.

mod scenario;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libtest_mimic::Trial;
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
/// What PEs count in the end: places with bytes that nobody has sent, and canaries that are gone.
const WRONG: &str = "wrong places";
const CANARIES: &str = "canaries broken";
/// The parameter that names a file: PEs that come to the phase of the fault wait for it. It is
/// there as soon as the fault is, so that whoever waits for the victim has begun after that.
const STRUCK: &str = "struck";
const DEADLINE: u64 = 3;
/// TCP's retransmission after a short fault may take three seconds.
const LONG_DEADLINE: u64 = 20;
/// What ends before the deadline, and what does not.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(6);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Kill,
    StopShort,
    StopLong,
    CutShort,
    CutLong,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
            (Self::Connect, Told::Joins(number)) => number == 1 + draw % 5,
            // A chunk of the heap was registered, and its handle is exchanged.
            (Self::Registration, Told::Joins(_)) => reached.as_deref() == Some(&self.name()),
            (_, Told::Value("phase", phase)) => phase == self.name() && self != Self::Registration,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    phase: Phase,
    seed: u32,
}

impl Case {
    fn run(self, library: &Path) -> Result<(), BoxError> {
        let network = Arc::new(Network::new(PES as usize, RAILS)?);
        let directory = PrivateDir::new("nvshmem-fault")?;
        let gate = directory.path().join(STRUCK);
        let job = self.job(&network, library).param(STRUCK, gate.display());
        let (mut reached, mut struck) = (None, None);
        let report = job.run_with(&mut |pe, process, told| {
            let here = self.phase.is_here(told, &mut reached, self.seed.into());
            if pe == VICTIM && struck.is_none() && here {
                let begun = self.strike(&network, process as i32);
                // Also where it has failed, for the others to go on.
                let opened = fs::write(&gate, b"");
                struck = Some(begun.and_then(|healer| Ok(opened.map(|()| healer)?)));
            }
        })?;
        let Some(healer) = struck else {
            return Err(format!("PE {VICTIM} never came to {:?}:\n{report}", self.phase).into());
        };
        healer?.join().map_err(|_| "what ends the fault has failed")?;
        let broken = self.broken(&report);
        match broken.is_empty() {
            true => Ok(()),
            false => Err(format!("{self:?}: {}\n{report}", broken.join("; ")).into()),
        }
    }

    fn job(self, network: &Network, library: &Path) -> JobSettings {
        let devices: Vec<String> = (0..RAILS).map(|rail| format!("rail{rail}")).collect();
        let is_short = matches!(self.fault, Fault::StopShort | Fault::CutShort);
        let mut job = job("faults", PES, Layout::V7)
            .param("gated", self.phase.name())
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
        for (pe, host) in (0..).zip(&network.hosts) {
            job.prefix_of_pe.insert(pe, host.prefix());
        }
        job
    }

    /// Begins the fault. The thread ends it.
    fn strike(self, network: &Arc<Network>, process: i32) -> Result<JoinHandle<()>, BoxError> {
        let links = |network: &Network, up| {
            (0..RAILS).try_for_each(|rail| network.set_link(VICTIM as usize, rail, up))
        };
        let end: Box<dyn FnOnce() + Send> = match self.fault {
            Fault::Kill => {
                // SAFETY: a call that touches no memory; the process is a child of this one.
                if unsafe { libc::kill(process, libc::SIGKILL) } != 0 {
                    return Err(std::io::Error::last_os_error().into());
                }
                Box::new(|| {})
            }
            Fault::StopShort | Fault::StopLong => {
                let stopped = Stopped::new(process);
                Box::new(move || drop(stopped))
            }
            Fault::CutShort | Fault::CutLong => {
                links(network, false)?;
                let network = Arc::clone(network);
                Box::new(move || links(&network, true).expect("a link that goes down comes up"))
            }
        };
        let time = match self.fault {
            Fault::Kill => Duration::ZERO,
            Fault::StopShort | Fault::CutShort => SHORT,
            Fault::StopLong | Fault::CutLong => LONG,
        };
        Ok(thread::spawn(move || {
            thread::sleep(time);
            end();
        }))
    }

    fn broken(self, report: &JobReport) -> Vec<String> {
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
                Outcome::Finished | Outcome::Failed(_) => {}
                other => broken.push(format!("PE {} {other}", pe.pe)),
            }
            for counted in [WRONG, CANARIES] {
                if let Some(count) = pe.value(counted).filter(|count| *count != "0") {
                    broken.push(format!("PE {} has {count} {counted}", pe.pe));
                }
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
        broken
    }

    fn silent(self, report: &JobReport) -> Vec<String> {
        let is_cut = matches!(self.fault, Fault::CutShort | Fault::CutLong);
        let names = |pe: &PeReport, far: &[u32]| {
            let reached = |line: &str| far.iter().any(|pe| line.contains(&format!("PE {pe}")));
            pe.output.iter().any(|line| line.contains("ERROR") && reached(line))
        };
        let (victim, others): (Vec<_>, Vec<_>) = report.pes.iter().partition(|pe| pe.pe == VICTIM);
        // In the barrier behind its last quiet a PE is ended by NVSHMEM's bootstrap.
        let waits = |pe: &&&PeReport| pe.value(QUIETED).is_none();
        // One that has ended because of the victim may be missed sooner than the victim itself.
        let ended = others.iter().filter(|pe| names(pe, &[VICTIM])).map(|pe| pe.pe);
        let missed: Vec<_> = ended.chain([VICTIM]).collect();
        let silent = others.iter().filter(waits).filter(|pe| !names(pe, &missed));
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

const CASES: usize = Fault::ALL.len() * Phase::ALL.len();

const ALWAYS: [(Fault, Phase); 4] = [
    (Fault::StopLong, Phase::Connect),
    (Fault::Kill, Phase::Traffic),
    (Fault::StopLong, Phase::Quiet),
    (Fault::CutShort, Phase::Traffic),
];

pub(crate) fn trials() -> Vec<Trial> {
    let of_case = |(fault, phase): (Fault, Phase)| {
        let name = format!("faults::{fault:?}_in_{phase:?}").to_lowercase();
        trial(name, needs(), move |library| Ok(Case { fault, phase, seed: draw() }.run(&library)?))
    };
    ALWAYS.map(of_case).into()
}

fn needs() -> Need<PathBuf> {
    let library = libfabric2()?;
    network::possible().map(|()| library)
}

/// Every fault in every phase, so many times, two jobs at a time. Ends with figures.
pub(crate) fn campaign(times: u32) -> ExitCode {
    let library = match needs() {
        Ok(library) => library,
        Err(reason) => {
            println!("there can be no faults of processes and networks: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let first = draw();
    // Those that take long and those that do not lie beside each other.
    let cases = (0..times).map(|at| first.wrapping_add(at)).flat_map(|seed| {
        let in_phase = move |phase| Fault::ALL.map(|fault| Case { fault, phase, seed });
        Phase::ALL.into_iter().flat_map(in_phase)
    });
    let (cases, broken) = (Mutex::new(cases), AtomicUsize::new(0));
    let run = || loop {
        let Some(case) = cases.lock().expect("nobody panics with it").next() else { return };
        match case.run(&library) {
            Ok(()) => println!("{case:?}: {:?}, as promised", case.fault.promise(case.phase)),
            Err(why) => {
                broken.fetch_add(1, Ordering::Relaxed);
                println!("BROKEN {why}");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(run);
        scope.spawn(run);
    });
    let (count, broken) = (times as usize * CASES, broken.into_inner());
    println!(
        "MEASURE process_faults {count} faults\nMEASURE process_faults_broken {broken} faults"
    );
    if broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
