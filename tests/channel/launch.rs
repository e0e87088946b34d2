//! A job: this test program once for each PE, as processes of their own.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::is_setting;
use test_support::built::{cxi_lab, fake_cuda_dir};
use test_support::needs::{self, Need, libfabric2};

use crate::memory::MEMORY;

/// What a process of a job is told.
const ME: &str = "CHANNEL_TEST_PE";
const N_PES: &str = "CHANNEL_TEST_PES";
const PORT: &str = "CHANNEL_TEST_PORT";
const SCENARIO: &str = "CHANNEL_TEST_SCENARIO";

/// No job takes as long on any machine that is not stuck.
const DEADLINE: Duration = Duration::from_secs(150);

/// Nor one with as many cycles as `make cycles` has.
const LONG: Duration = Duration::from_secs(3600);

/// This PE, in a job.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) me: u32,
    pub(crate) n_pes: u32,
    /// Where PE 0 listens.
    pub(crate) address: String,
}

impl Place {
    /// The socket that PE 0 was started with.
    pub(crate) fn listener(&self) -> TcpListener {
        let socket = io::stdin().as_fd().try_clone_to_owned().expect("a socket as standard input");
        TcpListener::from(socket)
    }
}

/// What a PE does.
pub(crate) type Scenario = fn(&Place);

/// In a process of a job: runs its scenario, and ends.
pub(crate) fn pe_entry(scenarios: &[(&str, Scenario)]) {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(me), Some(n_pes), Some(port)) = (number(ME), number(N_PES), number(PORT)) else {
        panic!("a process of a job is told its place");
    };
    let scenario = scenarios.iter().find(|(known, _)| *known == name);
    let (_, scenario) = scenario.expect("a scenario of this program");
    scenario(&Place { me, n_pes, address: format!("127.0.0.1:{port}") });
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
    /// A persona of cxi over that: its NICs take memory of devices, and move none of it.
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
        // PE 0 gets the socket itself, as its standard input.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let program = std::env::current_exe()?;
        let start = |me: u32| {
            let mut command = Command::new(&program);
            for name in std::env::vars().map(|(name, _)| name).filter(|name| is_setting(name)) {
                command.env_remove(name);
            }
            command
                .env(SCENARIO, self.scenario)
                .env(ME, me.to_string())
                .env(N_PES, self.n_pes.to_string())
                .env(PORT, port.to_string())
                .env("NVSHMEM_LIBFABRIC_PROVIDER", self.fabric.provider())
                .env("RUST_BACKTRACE", "0")
                .envs(self.env.iter().copied())
                .stdin(if me == 0 {
                    Stdio::from(OwnedFd::from(listener.try_clone()?))
                } else {
                    Stdio::null()
                });
            if let Some(memory) = self.memory {
                command.env(MEMORY, memory).env("LD_LIBRARY_PATH", fake_cuda_dir());
            }
            match &library {
                Some(carrier) if self.fabric == Fabric::Cxi => {
                    command.env("NVSHMEM_LIBFABRIC_LIBRARY", cxi_lab());
                    command.env("CXI_LAB_LIBFABRIC", carrier).env("CXI_LAB_VERSION", "2.6");
                    command.env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "always");
                    // Words and few bytes are then the peers' processors'.
                    command.env("NVSHMEM_LIBFABRIC_ATOMICS", "target");
                }
                Some(library) => {
                    command.env("NVSHMEM_LIBFABRIC_LIBRARY", library);
                }
                None => {}
            }
            command.spawn()
        };
        let children: Vec<Child> = (0..self.n_pes).map(start).collect::<Result<_, _>>()?;
        // With PE 0's end of it the port is closed, and who still wants to connect is told.
        drop(listener);
        let ended = wait(children);
        for (pe, status) in ended.into_iter().enumerate() {
            let expected = self.dies == Some(pe as u32);
            match status {
                None => return Err(format!("PE {pe} did not end").into()),
                Some(status) if status.success() == expected => {
                    return Err(format!("PE {pe}: {status}").into());
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Waits for all; who is too late is killed, as are the rest once one has failed.
fn wait(mut children: Vec<Child>) -> Vec<Option<ExitStatus>> {
    let is_long = needs::is_set("NVSHMEM_TEST_CYCLES");
    let end = Instant::now() + if is_long { LONG } else { DEADLINE };
    loop {
        let statuses: Vec<_> =
            children.iter_mut().map(|child| child.try_wait().ok().flatten()).collect();
        if statuses.iter().all(Option::is_some) {
            return statuses;
        }
        if Instant::now() > end {
            for child in &mut children {
                let _ = child.kill();
                let _ = child.wait();
            }
            return statuses;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
