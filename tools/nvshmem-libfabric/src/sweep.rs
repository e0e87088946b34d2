//! A process that cleans up after the jobs of a command when that is stopped: what is killed
//! removes nothing, and its PEs are killed with it. No signal of the terminal reaches this process.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use launcher::PrivateDir;

const PATIENCE: Duration = Duration::from_secs(3);

const DONE: &[u8] = b"done";

/// The process, which ends when this is dropped, and cleans up if this process ends before.
pub(crate) struct Sweeper(Child);

impl Sweeper {
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["sweep", &process::id().to_string()]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(DONE);
        }
        let _ = self.0.wait();
    }
}

/// Waits for the end of a process on standard input, and cleans up unless it says that it is done.
pub(crate) fn serve(pid: u32) -> io::Result<()> {
    let mut said = Vec::new();
    io::stdin().read_to_end(&mut said)?;
    let began = Instant::now();
    // PEs are not gone at once.
    while said != DONE && began.elapsed() < PATIENCE {
        ofi::remove_left_behind();
        PrivateDir::remove_of(pid);
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
