//! Starts the PEs of one job and sees to it that it ends.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::pmi::Server;

/// How often ends of processes and PMI's sockets are looked at.
const TICK: Duration = Duration::from_millis(2);

/// How the PEs find one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Bootstrap {
    /// By an id that PE 0 makes and leaves in a file: the contract of `cuda/nvshmem/bootstrap.h`.
    Uid,
    /// By PMI-1, NVSHMEM's default, served from here.
    Pmi,
    /// By an `mpiexec` of Hydra (MPICH, or NVSHMEM's `nvshmrun`), which starts the PEs too.
    Mpiexec,
}

/// One job.
#[derive(Debug)]
pub struct Job {
    /// The program of all PEs.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// How many PEs.
    pub pes: u32,
    /// How they find one another.
    pub bootstrap: Bootstrap,
    /// Added to this process' environment.
    pub env: Vec<(String, String)>,
    /// An empty directory, where each PE's output stays: `pe-0.out` and `pe-0.err`, and so on.
    pub dir: PathBuf,
    /// The job is killed after so long.
    pub deadline: Duration,
    /// When one PE has failed, the others are killed after so long.
    pub grace: Duration,
}

/// How a PE has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal that was not ours.
    Signalled(i32),
    /// Killed by us, when its time was over.
    Killed,
}

/// A PE, or all of them where `mpiexec` has started them.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// When, since the job's start.
    pub after: Duration,
    /// What it has printed.
    pub stdout: String,
    /// What it has said beside that: NVSHMEM's log and ours.
    pub stderr: String,
}

struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: Option<(End, Duration)>,
}

impl Job {
    /// Runs the job to its end. A PE that fails is no error of this.
    ///
    /// # Errors
    /// What keeps it from starting, or PEs that send what is no PMI.
    pub fn run(&self) -> io::Result<Vec<Ended>> {
        let mut server = Server::new();
        let mut running = Vec::new();
        let started = self.start_all(&mut server, &mut running);
        // Whoever was started is seen to its end, also when another was not.
        let served = started.and_then(|()| self.wait(&mut server, &mut running));
        for pe in running.iter_mut().filter(|pe| pe.ended.is_none()) {
            pe.kill(Duration::ZERO);
        }
        served?;
        running.into_iter().map(Running::into_ended).collect()
    }

    fn start_all(&self, server: &mut Server, running: &mut Vec<Running>) -> io::Result<()> {
        if self.bootstrap == Bootstrap::Mpiexec {
            let mut command = Command::new("mpiexec");
            command.args(["-n", &self.pes.to_string()]).arg(&self.program);
            command.env("NVSHMEM_BOOTSTRAP", "PMI").stdin(Stdio::null());
            running.push(self.start(command, "pes")?);
            return Ok(());
        }
        for pe in 0..self.pes {
            let mut command = Command::new(&self.program);
            match self.bootstrap {
                Bootstrap::Pmi => {
                    let (stdin, env) = server.add(self.pes)?;
                    command.stdin(stdin).envs(env).env("NVSHMEM_BOOTSTRAP", "PMI");
                }
                _ => {
                    command
                        .stdin(Stdio::null())
                        .env("NVSHMEM_RUN_RANK", pe.to_string())
                        .env("NVSHMEM_RUN_SIZE", self.pes.to_string())
                        .env("NVSHMEM_RUN_UID_FILE", self.dir.join("uid"));
                }
            }
            running.push(self.start(command, &format!("pe-{pe}"))?);
        }
        Ok(())
    }

    fn start(&self, mut command: Command, name: &str) -> io::Result<Running> {
        let stdout = self.dir.join(format!("{name}.out"));
        let stderr = self.dir.join(format!("{name}.err"));
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        // SAFETY: between fork and exec only `prctl` runs, which is a plain system call: nothing there
        // allocates or takes a lock.
        unsafe {
            command.pre_exec(|| {
                // No PE outlives its launcher, however that ends.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|error| {
            let program = Path::new(command.get_program());
            let told = format!("{} cannot be started: {error}", program.display());
            io::Error::new(error.kind(), told)
        })?;
        Ok(Running { child, stdout, stderr, ended: None })
    }

    fn wait(&self, server: &mut Server, running: &mut [Running]) -> io::Result<()> {
        let start = Instant::now();
        let mut kill_at = start + self.deadline;
        let mut failed = false;
        loop {
            server.serve()?;
            for pe in running.iter_mut().filter(|pe| pe.ended.is_none()) {
                if let Some(status) = pe.child.try_wait()? {
                    pe.ended = Some((End::of(status), start.elapsed()));
                    if !status.success() && !failed {
                        failed = true;
                        kill_at = kill_at.min(Instant::now() + self.grace);
                    }
                }
            }
            if running.iter().all(|pe| pe.ended.is_some()) {
                return Ok(());
            }
            if Instant::now() >= kill_at {
                for pe in running.iter_mut().filter(|pe| pe.ended.is_none()) {
                    pe.kill(start.elapsed());
                }
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Running {
    fn kill(&mut self, after: Duration) {
        // It may have ended just now; the outcome is the same to us.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended = Some((End::Killed, after));
    }

    fn into_ended(self) -> io::Result<Ended> {
        let (end, after) = self.ended.unwrap_or((End::Killed, Duration::ZERO));
        let (stdout, stderr) = (read(&self.stdout)?, read(&self.stderr)?);
        Ok(Ended { end, after, stdout, stderr })
    }
}

fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Exited(code),
            (None, signal) => End::Signalled(signal.unwrap_or(0)),
        }
    }

    /// Whether it was successful.
    pub fn is_success(self) -> bool {
        self == End::Exited(0)
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exited(status) => write!(f, "ended with status {status}"),
            End::Signalled(signal) => write!(f, "ended by signal {signal}"),
            End::Killed => write!(f, "was killed when its time was over"),
        }
    }
}
