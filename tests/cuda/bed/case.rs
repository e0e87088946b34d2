//! A case, and the process that it runs in.

use std::fmt::Display;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Completion, Failed, Trial};
use test_support::built::fake_cuda_dir;
use test_support::needs;

use crate::bed::Bed;

const CASE: &str = "NVSHMEM_TEST_CUDA_CASE";

const HANG: Duration = Duration::from_secs(600);

const SKIPPED: i32 = 77;

const NO_GPU: &str = "no GPU: ";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// By returning.
    Success,
    /// By a fault.
    Fault,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    Fake,
    /// The fake and the machine's own.
    Any,
    None,
    /// The machine's own.
    Gpu,
}

/// One thing to show.
pub(crate) struct Case {
    name: &'static str,
    body: fn(),
    environment: &'static [(&'static str, &'static str)],
    driver: Driver,
    end: End,
}

impl Case {
    pub(crate) fn fake(name: &'static str, body: fn()) -> Self {
        Self { name, body, environment: &[], driver: Driver::Fake, end: End::Success }
    }

    pub(crate) fn any(name: &'static str, body: fn()) -> Self {
        Self { driver: Driver::Any, ..Self::fake(name, body) }
    }

    pub(crate) fn gpu(name: &'static str, body: fn()) -> Self {
        Self { driver: Driver::Gpu, ..Self::fake(name, body) }
    }

    pub(crate) fn none(name: &'static str, body: fn()) -> Self {
        Self { driver: Driver::None, ..Self::fake(name, body) }
    }

    pub(crate) fn with(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    pub(crate) fn faults(self) -> Self {
        Self { end: End::Fault, ..self }
    }

    pub(crate) fn trial(&self) -> Option<Trial> {
        let (name, environment, end) = (self.name, self.environment, self.end);
        let (kind, fake) = match self.driver {
            Driver::Fake | Driver::Any => ("fake", true),
            Driver::None => ("no_driver", false),
            Driver::Gpu => return None,
        };
        Some(Trial::ignorable_test(format!("{kind}::{name}"), move || {
            let mut command = command(name);
            command.envs(environment.iter().copied());
            if fake {
                // Before the user's, where libfabric may be.
                let mut paths = fake_cuda_dir().into_os_string();
                if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                    paths.push(":");
                    paths.push(others);
                }
                command.env("LD_LIBRARY_PATH", paths);
            }
            run(command, end)
        }))
    }

    fn is_for_gpus(&self) -> bool {
        matches!(self.driver, Driver::Any | Driver::Gpu)
    }

    fn gpu_trial(&self) -> Option<Trial> {
        let (name, end) = (self.name, self.end);
        let run = move || run(command(name), end);
        self.is_for_gpus().then(|| Trial::ignorable_test(format!("gpu::{name}"), run))
    }
}

pub(crate) fn gpu_trials(cases: &[Case]) -> Vec<Trial> {
    match probe_gpu() {
        Ok(()) => cases.iter().filter_map(Case::gpu_trial).collect(),
        Err(reason) => {
            let count = cases.iter().filter(|case| case.is_for_gpus()).count();
            vec![needs::trial(format!("gpu::{count}_cases"), Err(reason), |()| Ok(()))]
        }
    }
}

pub(crate) fn skip(reason: impl Display) -> ! {
    println!("{reason}");
    std::process::exit(SKIPPED);
}

pub(crate) fn run_child(cases: &[Case]) {
    let Ok(name) = std::env::var(CASE) else { return };
    if name == "probe" {
        match Bed::probe() {
            Ok(device) => println!("GPU: {device}"),
            Err(reason) => println!("{NO_GPU}{reason}"),
        }
        std::process::exit(0);
    }
    let case = cases.iter().find(|case| case.name == name).expect("a case of this name");
    (case.body)();
    std::process::exit(0);
}

/// Whether there is a real GPU, seen from a process of its own: this one must not load its driver.
fn probe_gpu() -> Result<(), String> {
    let ended = launcher::ask(command("probe"), "", HANG).map_err(|error| error.to_string())?;
    let said = ended.out;
    match said.trim().strip_prefix(NO_GPU) {
        Some(reason) => Err(format!("no GPU here: {reason}")),
        None if ended.end.is_success() => {
            println!("{}", said.trim());
            Ok(())
        }
        None => Err(format!("looking for a GPU {}", ended.end)),
    }
}

fn command(case: &str) -> Command {
    let program = std::env::current_exe().expect("this test has a path");
    let mut command = Command::new(program);
    command.env(CASE, case).env("RUST_BACKTRACE", "0");
    command
}

fn run(command: Command, expected: End) -> Result<Completion, Failed> {
    let ended = launcher::ask(command, "", HANG)?;
    let said = ended.out;
    let as_expected = match ended.end {
        launcher::End::Exited(SKIPPED) => {
            return Ok(Completion::ignored_with(said.lines().last().unwrap_or_default()));
        }
        launcher::End::Exited(0) => expected == End::Success,
        launcher::End::Signalled(libc::SIGSEGV | libc::SIGBUS) => expected == End::Fault,
        _ => false,
    };
    if as_expected {
        return Ok(Completion::Completed);
    }
    let complained = ended.err;
    Err(format!("it {}, and {expected:?} was expected:\n{said}{complained}", ended.end).into())
}
