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
pub(crate) enum Driver {
    Fake,
    /// The fake; the case ends by a fault.
    Faults,
    /// The fake, loaded and not started.
    Unstarted,
    /// The fake and the machine's own.
    Any,
    None,
    /// The machine's own.
    Gpu,
}

#[derive(Clone, Copy)]
pub(crate) enum Body {
    Bare(fn()),
    OnBed(fn(&Bed)),
}

type Environment = &'static [(&'static str, &'static str)];

pub(crate) struct Case {
    name: String,
    body: Body,
    environment: Environment,
    driver: Driver,
}

/// Lists the cases of a module, which are named as their functions are: `Driver ("VARIABLE" =
/// "value", ...): function, function;`. Where CUDA is started, they are given the bed.
macro_rules! cases {
    (@body None $body:ident) => { $crate::bed::case::Body::Bare($body) };
    (@body Unstarted $body:ident) => { $crate::bed::case::Body::Bare($body) };
    (@body $driver:ident $body:ident) => { $crate::bed::case::Body::OnBed($body) };
    ($($driver:ident $(($($key:literal = $value:literal),+))?: $($body:ident),+;)+) => {
        pub(crate) fn cases() -> Vec<$crate::bed::case::Case> {
            let mut cases = Vec::new();
            $(cases.extend($crate::bed::case::Case::group(
                module_path!(),
                $crate::bed::case::Driver::$driver,
                &[$($(($key, $value)),+)?],
                &[$((stringify!($body), cases!(@body $driver $body))),+],
            ));)+
            cases
        }
    };
}

pub(crate) use cases;

impl Case {
    pub(crate) fn group(
        module: &str,
        driver: Driver,
        environment: Environment,
        bodies: &[(&str, Body)],
    ) -> Vec<Self> {
        let module = module.split_once("::").map_or(module, |(_, module)| module);
        let set: String =
            environment.iter().map(|(key, value)| format!("[{key}={value}]")).collect();
        let case = |(name, body): &(&str, Body)| {
            let name = format!("{module}::{name}{set}");
            Self { name, body: *body, environment, driver }
        };
        bodies.iter().map(case).collect()
    }

    pub(crate) fn trial(&self) -> Option<Trial> {
        let (name, environment, driver) = (self.name.clone(), self.environment, self.driver);
        let kind = match driver {
            Driver::Fake | Driver::Faults | Driver::Unstarted | Driver::Any => "fake",
            Driver::None => "no_driver",
            Driver::Gpu => return None,
        };
        Some(Trial::ignorable_test(format!("{kind}::{name}"), move || {
            let mut command = command(&name);
            command.envs(environment.iter().copied());
            if driver != Driver::None {
                // Before the user's, where libfabric may be.
                let mut paths = fake_cuda_dir().into_os_string();
                if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                    paths.push(":");
                    paths.push(others);
                }
                command.env("LD_LIBRARY_PATH", paths);
            }
            run(command, driver == Driver::Faults)
        }))
    }

    fn is_for_gpus(&self) -> bool {
        matches!(self.driver, Driver::Any | Driver::Gpu)
    }

    fn gpu_trial(&self) -> Option<Trial> {
        let name = self.name.clone();
        let trial_name = format!("gpu::{name}");
        let run = move || run(command(&name), false);
        self.is_for_gpus().then(|| Trial::ignorable_test(trial_name, run))
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
    match case.body {
        Body::Bare(body) => body(),
        Body::OnBed(body) => body(&Bed::new()),
    }
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

fn run(command: Command, faults: bool) -> Result<Completion, Failed> {
    let launcher::Ended { end, out, err, .. } = launcher::ask(command, "", HANG)?;
    match end {
        launcher::End::Exited(SKIPPED) => {
            Ok(Completion::ignored_with(out.lines().last().unwrap_or_default()))
        }
        launcher::End::Exited(0) if !faults => Ok(Completion::Completed),
        launcher::End::Signalled(libc::SIGSEGV | libc::SIGBUS) if faults => {
            Ok(Completion::Completed)
        }
        _ => Err(format!("it {end}, and is to fault: {faults}\n{out}{err}").into()),
    }
}
