//! CUDA's multi-process service, by which kernels of several processes run on one GPU at a time.
//!
//! Without it they take turns, some milliseconds each, so that no figure of two PEs on one GPU says
//! anything about the transport.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// A service of our own, stopped on drop.
#[derive(Debug)]
pub(crate) struct Mps(Control);

/// The way to talk to the service that has its pipes in a directory of ours.
#[derive(Debug)]
struct Control {
    pipes: PathBuf,
    logs: PathBuf,
}

impl Mps {
    /// Starts the service, with its pipes and logs in `dir`.
    pub(crate) fn start(dir: &Path) -> io::Result<Self> {
        let control = Control { pipes: dir.join("pipes"), logs: dir.join("logs") };
        std::fs::create_dir_all(&control.pipes)?;
        std::fs::create_dir_all(&control.logs)?;
        let started = control.command().arg("-d").stdin(Stdio::null()).output()?;
        if !started.status.success() {
            let said = String::from_utf8_lossy(&started.stderr).trim().to_owned();
            return Err(io::Error::other(format!("{CONTROL} -d: {}: {said}", started.status)));
        }
        // The daemon is there; whether it serves shows with the first question.
        let mps = Self(control);
        mps.0.ask("get_server_list")?;
        Ok(mps)
    }

    /// What the PEs need in their environment, `pes` of them on one GPU.
    pub(crate) fn env(&self, pes: u32) -> Vec<(String, String)> {
        let mut env = self.0.directories();
        let share = (100 / pes.max(1)).max(1);
        env.push((String::from("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), share.to_string()));
        env
    }
}

impl Control {
    fn directories(&self) -> Vec<(String, String)> {
        let entry = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
        vec![
            entry("CUDA_MPS_PIPE_DIRECTORY", &self.pipes),
            entry("CUDA_MPS_LOG_DIRECTORY", &self.logs),
        ]
    }

    fn command(&self) -> Command {
        let mut command = Command::new(CONTROL);
        command.envs(self.directories());
        command
    }

    fn ask(&self, what: &str) -> io::Result<()> {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            writeln!(stdin, "{what}")?;
        }
        let status = child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{CONTROL}: {what}: {status}")))
        }
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        if let Err(error) = self.0.ask("quit") {
            eprintln!("the multi-process service may go on running: {error}");
        }
    }
}
