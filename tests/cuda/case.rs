//! A case, and the process that it runs in.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

use crate::bed::Bed;

/// Names the case to a child.
const CASE: &str = "NVSHMEM_TEST_CUDA_CASE";

/// What stops a case that hangs.
const HANG: Duration = Duration::from_secs(60);

/// What a child of [`probe_gpu`] prints before the reason why there is no GPU.
const NO_GPU: &str = "no GPU: ";

/// How a case ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// By returning.
    Success,
    /// By a fault.
    Fault,
}

/// One thing to show.
pub(crate) struct Case {
    name: &'static str,
    body: fn(),
    environment: &'static [(&'static str, &'static str)],
    /// Whether the fake driver can be found by its name.
    fake: bool,
    /// Whether it is for real devices as well.
    gpu: bool,
    end: End,
}

impl Case {
    /// A case for the fake driver.
    pub(crate) fn fake(name: &'static str, body: fn()) -> Self {
        Self { name, body, environment: &[], fake: true, gpu: false, end: End::Success }
    }

    /// A case for any driver.
    pub(crate) fn any(name: &'static str, body: fn()) -> Self {
        Self { gpu: true, ..Self::fake(name, body) }
    }

    /// A case without a driver.
    pub(crate) fn none(name: &'static str, body: fn()) -> Self {
        Self { fake: false, ..Self::fake(name, body) }
    }

    /// What the fake drivers find in their environment.
    pub(crate) fn with(self, environment: &'static [(&'static str, &'static str)]) -> Self {
        Self { environment, ..self }
    }

    /// It has to end by a fault.
    pub(crate) fn faults(self) -> Self {
        Self { end: End::Fault, ..self }
    }

    /// Its trial without a GPU.
    pub(crate) fn trial(&self) -> Trial {
        let (name, environment, end, fake) = (self.name, self.environment, self.end, self.fake);
        let kind = if fake { "fake" } else { "no_driver" };
        Trial::test(format!("{kind}::{name}"), move || {
            let mut command = command(name);
            command.envs(environment.iter().copied());
            if fake {
                command.env("LD_LIBRARY_PATH", fake_dir());
            }
            run(&mut command, end)
        })
    }

    /// Its trial on a GPU, if it is for one.
    fn gpu_trial(&self) -> Option<Trial> {
        let (name, end) = (self.name, self.end);
        self.gpu.then(|| Trial::test(format!("gpu::{name}"), move || run(&mut command(name), end)))
    }
}

/// The trials on a real GPU; where there is none, one that is ignored and says why.
pub(crate) fn gpu_trials(cases: &[Case]) -> Vec<Trial> {
    match probe_gpu() {
        Ok(()) => cases.iter().filter_map(Case::gpu_trial).collect(),
        Err(reason) => {
            let count = cases.iter().filter(|case| case.gpu).count();
            let name = format!("gpu::{count} cases ({reason})");
            vec![Trial::test(name, || Ok(())).with_ignored_flag(true)]
        }
    }
}

/// Where the environment names a case, runs it and ends the process.
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
    let output = command("probe").output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match said.trim().strip_prefix(NO_GPU) {
        Some(reason) => Err(format!("no GPU here: {reason}")),
        None if output.status.success() => {
            println!("{}", said.trim());
            Ok(())
        }
        None => Err(format!("looking for a GPU failed: {}", output.status)),
    }
}

fn command(case: &str) -> Command {
    let program = std::env::current_exe().expect("this test has a path");
    let mut command = Command::new(program);
    command.env(CASE, case).env("RUST_BACKTRACE", "0");
    command
}

fn run(command: &mut Command, end: End) -> Result<(), Failed> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cannot start: {error}"))?;
    let status = wait(&mut child)?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let faulted = matches!(status.signal(), Some(libc::SIGSEGV | libc::SIGBUS));
    let as_expected = match end {
        End::Success => status.success(),
        End::Fault => faulted,
    };
    if as_expected {
        return Ok(());
    }
    Err(format!("it ended with {status}, and {end:?} was expected:\n{text}").into())
}

fn wait(child: &mut Child) -> Result<ExitStatus, Failed> {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill().map_err(|error| error.to_string())?;
            return Err(format!("it did not end in {HANG:?}").into());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A directory with the fake drivers under the names of the real ones.
fn fake_dir() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let built = test.parent().expect("it is in a directory");
        // The same for every run of this build, so that nothing piles up.
        let dir = built.join("fake-cuda-names");
        fs::create_dir_all(&dir).expect("a directory for the fake drivers");
        link(&built.join("libfake_cuda.so"), &dir.join("libcuda.so.1"));
        link(&built.join("libfake_gdrcopy.so"), &dir.join("libgdrapi.so.2"));
        dir
    })
    .clone()
}

fn link(library: &Path, name: &Path) {
    assert!(library.exists(), "{} is not built", library.display());
    if fs::read_link(name).is_ok_and(|target| target == library) {
        return;
    }
    // A link to another build's library is replaced.
    let _ = fs::remove_file(name);
    symlink(library, name).expect("a link to a fake driver");
}
