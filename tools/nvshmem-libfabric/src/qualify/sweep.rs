//! A process that cleans up after the jobs of `qualify`, however that ends: what is killed removes
//! nothing, and its PEs are killed with it. No signal of the terminal reaches this process.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::PrivateDir;

use crate::doctor::host::maker;

const SHM: &str = "/dev/shm";

/// How long the jobs' processes, which are killed with their parent, are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process, which cleans up when this is dropped.
pub(super) struct Sweeper {
    child: Child,
    /// The `TMPDIR` of the jobs, by which their processes are known, too.
    pub(super) directory: PathBuf,
}

impl Sweeper {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("sweep").stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(out).read_line(&mut line)?;
        Ok(Self { child, directory: PathBuf::from(line.trim_end()) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        // The end of its input is the sign.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Waits until the process that has started this ends, and cleans up.
pub(crate) fn serve() -> io::Result<()> {
    let before: BTreeSet<OsString> = names(SHM).collect();
    let directory = PrivateDir::new("nlf-qualify")?;
    println!("{}", directory.path().display());
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let began = Instant::now();
    while is_used(directory.path()) && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    for name in names(SHM).filter(|name| !before.contains(name)) {
        let is_dead = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if maker(&name.to_string_lossy()).is_some_and(is_dead) {
            // Another user's stays.
            let _ = fs::remove_file(Path::new(SHM).join(name));
        }
    }
    Ok(())
}

/// Whether a process has the directory in its environment.
fn is_used(directory: &Path) -> bool {
    let wanted = directory.as_os_str().as_encoded_bytes();
    names("/proc").any(|pid| {
        let variables = fs::read(Path::new("/proc").join(pid).join("environ"));
        variables.is_ok_and(|all| all.windows(wanted.len()).any(|part| part == wanted))
    })
}

fn names(directory: &str) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}
