//! CUDA's multi-process service, by which kernels of several processes run on one GPU at a time.
//!
//! Without it they take turns, some milliseconds each, so that no figure of two PEs on one GPU says
//! anything about the transport.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// A service of our own, which has its pipes in a directory of ours and is stopped on drop.
#[derive(Debug)]
pub(crate) struct Mps(Vec<(String, String)>);

impl Mps {
    pub(crate) fn start(dir: &Path) -> io::Result<Self> {
        let mut directories = Vec::new();
        for (name, at) in [("PIPE", "pipes"), ("LOG", "logs")] {
            let at = dir.join(at);
            std::fs::create_dir_all(&at)?;
            directories.push((format!("CUDA_MPS_{name}_DIRECTORY"), at.display().to_string()));
        }
        let mut daemon = Command::new(CONTROL);
        let started = daemon.arg("-d").envs(directories.clone()).stdin(Stdio::null()).output()?;
        if !started.status.success() {
            let said = String::from_utf8_lossy(&started.stderr).trim().to_owned();
            return Err(io::Error::other(format!("{CONTROL} -d: {}: {said}", started.status)));
        }
        // The daemon is there; whether it serves shows with the first question.
        let mps = Self(directories);
        mps.ask("get_server_list")?;
        Ok(mps)
    }

    pub(crate) fn env(&self, pes: u32) -> Vec<(String, String)> {
        let share = (100 / pes.max(1)).max(1);
        let share = (String::from("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), share.to_string());
        self.0.iter().cloned().chain([share]).collect()
    }

    fn ask(&self, what: &str) -> io::Result<()> {
        let mut command = Command::new(CONTROL);
        command.envs(self.0.clone()).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            writeln!(stdin, "{what}")?;
        }
        match child.wait()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("{CONTROL}: {what}: {status}"))),
        }
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        if let Err(error) = self.ask("quit") {
            eprintln!("the multi-process service may go on running: {error}");
        }
    }
}
