//! A job: this test program once for each PE, as processes of their own.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use launcher::{End, Ended, Limits, Meeting, Place};
use libtest_mimic::{Failed, Trial};
use nvshmem_sim::is_setting;
use test_support::built::{cxi_lab, fake_cuda_dir};
use test_support::needs::{self, Need, libfabric2};

use crate::memory::MEMORY;

/// The scenario that a process of a job is told.
const SCENARIO: &str = "CHANNEL_TEST_SCENARIO";

/// No job takes as long on any machine that is not stuck.
const DEADLINE: Duration = Duration::from_secs(150);

/// Nor one with as many cycles as `make cycles` has.
const LONG: Duration = Duration::from_secs(3600);

/// What a PE does.
pub(crate) type Scenario = fn(&Place);

/// In a process of a job: runs its scenario, and ends.
pub(crate) fn pe_entry(scenarios: &[(&str, Scenario)]) {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let place = Place::of_process().expect("a process of a job is told its place");
    let scenario = scenarios.iter().find(|(known, _)| *known == name);
    let (_, scenario) = scenario.expect("a scenario of this program");
    scenario(&place);
    std::process::exit(0);
}

/// A fabric that jobs run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fabric {
    /// `tcp;ofi_rxm` of the system's libfabric.
    Rxm,
    /// Its shared memory.
    Shm,
    /// TCP of the second libfabric, if there is one.
    Tcp2,
    /// A persona of cxi over that: its NICs reach memory of devices.
    Cxi,
}

impl Fabric {
    fn library(self) -> Need<Option<PathBuf>> {
        if matches!(self, Self::Tcp2 | Self::Cxi) { libfabric2().map(Some) } else { Ok(None) }
    }

    fn provider(self) -> &'static str {
        match self {
            Self::Rxm => "tcp;ofi_rxm",
            Self::Tcp2 => "tcp",
            Self::Shm => "shm",
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
    /// Settings besides the fabric.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// PEs that end otherwise than well.
    pub(crate) dies: Option<u32>,
}

impl Job {
    pub(crate) fn new(scenario: &'static str, fabric: Fabric, n_pes: u32) -> Self {
        Self { scenario, fabric, n_pes, memory: None, env: Vec::new(), dies: None }
    }

    /// The same with memory there.
    pub(crate) fn on(self, memory: &'static str) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// As a test. What lacks its fabric is skipped, and says why.
    pub(crate) fn trial(self) -> Trial {
        let Self { scenario, fabric, n_pes, memory, .. } = &self;
        let memory = memory.map_or(String::new(), |memory| format!("_{memory}"));
        let name = format!("{scenario}::{fabric:?}_{n_pes}_pes{memory}").to_lowercase();
        needs::trial(name, fabric.library(), move |library| self.run(library))
    }

    fn run(&self, library: Option<PathBuf>) -> Result<(), Failed> {
        let meeting = Meeting::new(self.n_pes)?;
        let program = std::env::current_exe()?;
        let command = |me: u32| {
            let mut command = Command::new(&program);
            for name in std::env::vars().map(|(name, _)| name).filter(|name| is_setting(name)) {
                command.env_remove(name);
            }
            meeting.take_in(me, &mut command)?;
            command
                .env(SCENARIO, self.scenario)
                .env("NVSHMEM_LIBFABRIC_PROVIDER", self.fabric.provider())
                .env("RUST_BACKTRACE", "0")
                .envs(self.env.iter().copied());
            if let Some(memory) = self.memory {
                command.env(MEMORY, memory).env("LD_LIBRARY_PATH", fake_cuda_dir());
            }
            match &library {
                Some(carrier) if self.fabric == Fabric::Cxi => {
                    command.env("NVSHMEM_LIBFABRIC_LIBRARY", cxi_lab());
                    command.env("CXI_LAB_LIBFABRIC", carrier).env("CXI_LAB_VERSION", "2.6");
                    command.env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always");
                }
                Some(library) => {
                    command.env("NVSHMEM_LIBFABRIC_LIBRARY", library);
                }
                None => {}
            }
            Ok(command)
        };
        let commands = (0..self.n_pes).map(command).collect::<io::Result<Vec<_>>>()?;
        // With PE 0's end of it the port is closed, and who still wants to connect is told.
        drop(meeting);
        let is_long = needs::is_set("NVSHMEM_TEST_CYCLES");
        let deadline = if is_long { LONG } else { DEADLINE };
        // What becomes of the others when one has failed is for them to show.
        let ended = launcher::run(commands, Limits { deadline, grace: deadline }, || Ok(()))?;
        for (pe, Ended { end, .. }) in ended.into_iter().enumerate() {
            let expected = self.dies == Some(pe as u32);
            if end == End::Killed || end.is_success() == expected {
                return Err(format!("PE {pe} {end}").into());
            }
        }
        Ok(())
    }
}
