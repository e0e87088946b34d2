//! A job: this test program once for each PE, as processes of their own.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use launcher::{End, Ended, Limits, Meeting, Place, reaches_other_processes};
use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{PrivateDir, is_setting};
use test_support::built::{cxi_lab, efa_lab_dir, fake_cuda_dir, nccl_plugin};
use test_support::needs::{self, Need, libfabric2};
use test_support::seeds;

use crate::mock::library::{LIBRARY, SYMBOL, Version};
use crate::mock::log;
use crate::mock::memory::MEMORY;

/// The scenario that a process of a job is told.
const SCENARIO: &str = "NCCL_TEST_SCENARIO";
/// Its first seed, and how many.
const SEED: &str = "NCCL_TEST_SEED";
const SEEDS: &str = "NCCL_TEST_SEEDS";

/// No job takes as long on any machine that is not stuck, unless it is asked for many seeds.
const DEADLINE: Duration = Duration::from_secs(150);
const LONG: Duration = Duration::from_secs(3600);

/// When one process has failed, the others are not waited for longer.
const GRACE: Duration = Duration::from_secs(10);

/// How a PE ends that has found something wrong.
pub(crate) const FAILED: i32 = 101;

/// What a PE does.
pub(crate) type Scenario = fn(&Place);

/// The seed that runs, for who asks why it has failed.
static NOW: AtomicU32 = AtomicU32::new(0);

/// In a process of a job: runs its scenario, and ends.
pub(crate) fn pe_entry(scenarios: &[(&str, Scenario)]) {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let place = Place::of_process().expect("a process of a job is told its place");
    let scenario = scenarios.iter().find(|(known, _)| *known == name);
    let (_, scenario) = scenario.expect("a scenario of this program");
    let me = place.me;
    std::panic::set_hook(Box::new(move |panic| {
        let lines = log::lines();
        let last = lines.iter().rev().take(20).rev();
        let last: String =
            last.map(|line| format!("\n  level {}: {}", line.level, line.text)).collect();
        let seed = NOW.load(Ordering::Relaxed);
        eprintln!(
            "PE {me}, {name}: {panic}\n  NVSHMEM_TEST_SEED={seed} brings it back; the plugin's log:{last}"
        );
        // A thread that is gone would be waited for.
        std::process::exit(FAILED);
    }));
    scenario(&place);
    std::process::exit(0);
}

/// The seeds that this process has to run.
pub(crate) fn seeds_of_process() -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (first, count) = (number(SEED).unwrap_or(1), number(SEEDS).unwrap_or(1));
    (0..count).map(move |at| {
        let seed = first.wrapping_add(at).max(1);
        NOW.store(seed, Ordering::Relaxed);
        u64::from(seed)
    })
}

/// A fabric that jobs run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fabric {
    /// `tcp;ofi_rxm` of the system's libfabric.
    Rxm,
    /// Its shared memory.
    Shm,
    /// TCP of the second libfabric, if there is one, over two rails.
    Tcp2,
    /// efa of the second libfabric, on two emulated NICs of a p5 for each PE, as if each were on a
    /// host of its own.
    Efa,
    /// A strict mock of cxi, over TCP of the second libfabric, with two NICs.
    Cxi,
}

impl Fabric {
    fn library(self) -> Need<Option<PathBuf>> {
        match self {
            Self::Rxm | Self::Shm => Ok(None),
            Self::Tcp2 => libfabric2().map(Some),
            Self::Efa => reaches_other_processes().and_then(|()| libfabric2().map(Some)),
            Self::Cxi => libfabric2().map(|_| Some(cxi_lab())),
        }
    }

    /// What its laboratory wants of a PE, whose NICs are in a directory.
    fn laboratory(self, me: u32, nics: &Path, seed: u32) -> Vec<(&'static str, String)> {
        match self {
            Self::Rxm | Self::Shm | Self::Tcp2 => Vec::new(),
            Self::Efa => vec![
                ("EFA_LAB_DIR", nics.display().to_string()),
                ("SYSFS_PATH", nics.join("sys").display().to_string()),
                ("EFA_LAB_PERSONA", String::from("p5")),
                ("EFA_LAB_NICS", String::from("2")),
                ("EFA_LAB_SEED", seed.to_string()),
                ("EFA_LAB_HOST", (me + 1).to_string()),
            ],
            Self::Cxi => vec![
                ("CXI_LAB_LIBFABRIC", libfabric2().unwrap_or_default().display().to_string()),
                ("CXI_LAB_VERSION", String::from("2.6")),
                ("CXI_LAB_NICS", String::from("2")),
            ],
        }
    }

    fn provider(self) -> &'static str {
        match self {
            Self::Rxm => "tcp;ofi_rxm",
            Self::Tcp2 => "tcp",
            Self::Shm => "shm",
            Self::Efa => "efa",
            Self::Cxi => "cxi",
        }
    }
}

/// A job to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) scenario: &'static str,
    pub(crate) fabric: Fabric,
    pub(crate) n_pes: u32,
    /// Where its memory is, where that matters: with a driver for memory on devices.
    pub(crate) memory: Option<&'static str>,
    pub(crate) version: Version,
    /// Seeds that it runs, unless the user says how many.
    pub(crate) seeds: Option<u32>,
    /// Settings besides the fabric, by a name.
    pub(crate) variant: Option<&'static str>,
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// Not where a stand-in takes its place.
    pub(crate) needs_plugin: bool,
    /// A PE that ends otherwise than well, and how.
    pub(crate) dies: Option<(u32, End)>,
}

impl Job {
    pub(crate) fn new(scenario: &'static str, fabric: Fabric, n_pes: u32) -> Self {
        Self {
            scenario,
            fabric,
            n_pes,
            memory: None,
            version: Version::V16,
            seeds: None,
            variant: None,
            env: Vec::new(),
            needs_plugin: true,
            dies: None,
        }
    }

    /// The same with memory there.
    pub(crate) fn on(self, memory: &'static str) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// The same by that version.
    pub(crate) fn by(self, version: Version) -> Self {
        Self { version, ..self }
    }

    /// The same with so many seeds.
    pub(crate) fn seeds(self, count: u32) -> Self {
        Self { seeds: Some(count), ..self }
    }

    /// The same with settings, which have a name.
    pub(crate) fn with(self, variant: &'static str, env: &[(&'static str, &'static str)]) -> Self {
        Self { variant: Some(variant), env: env.to_vec(), ..self }
    }

    /// As a test. What lacks its fabric is skipped, and says why.
    pub(crate) fn trial(self) -> Trial {
        let name = self.name();
        needs::trial(name, self.fabric.library(), move |library| self.run(library))
    }

    fn name(&self) -> String {
        let Self { scenario, fabric, n_pes, memory, version, variant, .. } = self;
        let part = |part: Option<&str>| part.map_or(String::new(), |part| format!("_{part}"));
        let (memory, variant) = (part(*memory), part(*variant));
        let version = match version {
            Version::V16 => String::new(),
            other => format!("_{other:?}"),
        };
        format!("{scenario}::{fabric:?}_{n_pes}_pes{memory}{version}{variant}").to_lowercase()
    }

    pub(crate) fn run(&self, library: Option<PathBuf>) -> Result<(), Failed> {
        let meeting = Meeting::new(self.n_pes)?;
        let program = std::env::current_exe()?;
        let (first, count) = match (seeds::single(), self.seeds) {
            (Some(seed), _) => (seed, 1),
            (None, count) => (seeds::draw(), count.map_or(1, seeds::count)),
        };
        if self.seeds.is_some() {
            eprintln!("{}: {count} seeds from {first} on", self.name());
        }
        let nics = PrivateDir::new("nccl-nics")?;
        let command = |me: u32| {
            let mut libraries: Vec<PathBuf> = Vec::new();
            let mut command = Command::new(&program);
            for name in std::env::vars().map(|(name, _)| name).filter(|name| is_setting(name)) {
                command.env_remove(name);
            }
            meeting.take_in(me, &mut command)?;
            command
                .env(SCENARIO, self.scenario)
                .envs(self.needs_plugin.then(|| (LIBRARY, nccl_plugin())))
                .env(SYMBOL, self.version.symbol())
                .env(SEED, first.to_string())
                .env(SEEDS, count.to_string())
                .env("NVSHMEM_LIBFABRIC_PROVIDER", self.fabric.provider())
                .env("RUST_BACKTRACE", "0");
            if let Some(memory) = self.memory {
                command.env(MEMORY, memory);
                libraries.push(fake_cuda_dir());
            }
            if self.fabric == Fabric::Efa {
                libraries.push(efa_lab_dir());
            }
            if !libraries.is_empty() {
                let all = std::env::join_paths(libraries).map_err(io::Error::other)?;
                command.env("LD_LIBRARY_PATH", all);
            }
            command.envs(self.fabric.laboratory(me, nics.path(), first));
            if let Some(library) = &library {
                command.env("NVSHMEM_LIBFABRIC_LIBRARY", library);
            }
            if self.fabric == Fabric::Tcp2 {
                command.env("NVSHMEM_LIBFABRIC_DEVICES", RAILS);
            }
            command.envs(self.env.iter().copied());
            Ok(command)
        };
        let commands = (0..self.n_pes).map(command).collect::<io::Result<Vec<_>>>()?;
        // With PE 0's end of it the port is closed, and who still wants to connect is told.
        drop(meeting);
        let is_long = count > 100 || needs::is_set("NVSHMEM_TEST_CYCLES");
        let deadline = if is_long { LONG } else { DEADLINE };
        // What becomes of the others when one is killed is for them to show.
        let grace = if self.dies.is_some() { deadline } else { GRACE };
        let ended = launcher::run(commands, Limits { deadline, grace }, || Ok(()))?;
        let wrong = ended.iter().enumerate().filter(|&(pe, Ended { end, .. })| {
            let dies = self.dies.filter(|(who, _)| *who == pe as u32);
            *end != dies.map_or(End::Exited(0), |(_, how)| how)
        });
        let wrong: Vec<_> = wrong.map(|(pe, Ended { end, .. })| format!("PE {pe} {end}")).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ").into()) }
    }
}

/// Both are of the loopback interface.
const RAILS: &str = "127.0.0.1,127.0.0.2";
