//! A process that cleans up after the jobs of `qualify` when that is stopped: what is killed
//! removes nothing, and its PEs are killed with it. No signal of the terminal reaches this process.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::PrivateDir;

use crate::doctor::host::maker;

const SHM: &str = "/dev/shm";

const PATIENCE: Duration = Duration::from_secs(3);

const DONE: &[u8] = b"done";

/// The process, which cleans up when this is dropped.
pub(super) struct Sweeper {
    child: Child,
    /// The `TMPDIR` of the jobs.
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
        if let Some(mut input) = self.child.stdin.take() {
            let _ = input.write_all(DONE);
        }
        let _ = self.child.wait();
    }
}

pub(crate) fn serve() -> io::Result<()> {
    let before: BTreeSet<OsString> = names(SHM).collect();
    let directory = PrivateDir::new("nlf-qualify")?;
    println!("{}", directory.path().display());
    io::stdout().flush()?;
    let mut said = Vec::new();
    io::stdin().read_to_end(&mut said)?;
    let began = Instant::now();
    while said != DONE && began.elapsed() < PATIENCE {
        for name in names(SHM).filter(|name| !before.contains(name)) {
            let is_dead = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
            if maker(&name.to_string_lossy()).is_some_and(is_dead) {
                // Another user's stays.
                let _ = fs::remove_file(Path::new(SHM).join(name));
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn names(directory: &str) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}
