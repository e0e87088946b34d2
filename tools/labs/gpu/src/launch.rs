//! Starts the PEs of one job of any NVSHMEM program, and collects their output.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::pmi::Server;
use launcher::{End, Limits};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bootstrap {
    /// By an id that PE 0 makes and leaves in a file: the contract of `cuda/nvshmem/bootstrap.h`.
    Uid,
    /// By PMI-1, NVSHMEM's default, served from here: NVIDIA's programs know no ids in files.
    Pmi,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) pes: u32,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) env: Vec<(String, String)>,
    /// An empty directory, where each PE's output stays: `pe-0.out` and `pe-0.err`, and so on.
    pub(crate) dir: PathBuf,
    pub(crate) limits: Limits,
}

/// A PE that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) after: Duration,
    pub(crate) stdout: String,
    /// NVSHMEM's log and ours.
    pub(crate) stderr: String,
}

impl Job {
    pub(crate) fn run(&self) -> io::Result<Vec<Ended>> {
        let mut server = Server::new();
        let names: Vec<String> = (0..self.pes).map(|pe| format!("pe-{pe}")).collect();
        let commands = (0..).zip(&names).map(|(pe, name)| self.command(pe, name, &mut server));
        let commands = commands.collect::<io::Result<Vec<_>>>()?;
        let ended = launcher::run(commands, self.limits, |_| server.serve())?;
        let read = |name: &str, end| read(&self.dir.join(format!("{name}.{end}")));
        let with_output = ended.into_iter().zip(&names).map(|(ended, name)| {
            let (stdout, stderr) = (read(name, "out")?, read(name, "err")?);
            Ok(Ended { end: ended.end, after: ended.after, stdout, stderr })
        });
        with_output.collect()
    }

    fn command(&self, pe: u32, name: &str, server: &mut Server) -> io::Result<Command> {
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::null());
        match self.bootstrap {
            Bootstrap::Pmi => {
                let (stdin, env) = server.add(self.pes)?;
                command.stdin(stdin).envs(env).env("NVSHMEM_BOOTSTRAP", "PMI");
            }
            Bootstrap::Uid => {
                command
                    .env("NVSHMEM_RUN_RANK", pe.to_string())
                    .env("NVSHMEM_RUN_SIZE", self.pes.to_string())
                    .env("NVSHMEM_RUN_UID_FILE", self.dir.join("uid"));
            }
        }
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let file = |end| File::create(self.dir.join(format!("{name}.{end}")));
        command.stdout(file("out")?).stderr(file("err")?);
        Ok(command)
    }
}

fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}
