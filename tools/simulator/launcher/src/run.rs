//! The processes of a job, run to their end: one that fails, or a deadline, ends the others.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{End, Process, poll};

const TICK: Duration = Duration::from_millis(4);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Whatever still runs after this is killed.
    pub deadline: Duration,
    /// When one process has failed, the others are killed after this.
    pub grace: Duration,
}

#[derive(Debug)]
pub struct Ended {
    pub end: End,
    /// Time from the job's start to its end.
    pub after: Duration,
    pub out: String,
    pub err: String,
}

/// Starts the commands, and waits until all have ended. A process that fails is no error.
///
/// `serve` is given the processes, in the order they were started, whenever they may have printed
/// something or ended; it must not wait.
pub fn run(
    commands: impl IntoIterator<Item = Command>,
    limits: Limits,
    mut serve: impl FnMut(&mut [Process]) -> io::Result<()>,
) -> io::Result<Vec<Ended>> {
    let started = Instant::now();
    let start = |mut command: Command| Process::start(&mut command);
    let mut all = commands.into_iter().map(start).collect::<io::Result<Vec<Process>>>()?;
    wait(&mut all, started, limits, &mut serve)?;
    Ok(all.into_iter().filter_map(|process| ended(process, started)).collect())
}

/// Gives a program some lines and waits for its answer, whatever its status. It is killed after
/// the limit.
pub fn ask(mut command: Command, input: &str, limit: Duration) -> io::Result<Ended> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut asked = [Process::start(&mut command)?];
    if let Some(mut stdin) = asked[0].stdin() {
        // A program that does not read it to its end has its reasons.
        let _ = stdin.write_all(input.as_bytes());
    }
    let limits = Limits { deadline: limit, grace: limit };
    wait(&mut asked, started, limits, &mut |_| Ok(()))?;
    let [asked] = asked;
    ended(asked, started).ok_or_else(|| io::Error::other("it has no status"))
}

fn wait(
    all: &mut [Process],
    started: Instant,
    limits: Limits,
    serve: &mut impl FnMut(&mut [Process]) -> io::Result<()>,
) -> io::Result<()> {
    let mut kill_at = started + limits.deadline;
    let mut failed = false;
    while all.iter().any(|one| one.end().is_none()) {
        let mut fds: Vec<_> = all.iter().flat_map(Process::pollfds).collect();
        poll(&mut fds, TICK);
        all.iter_mut().for_each(Process::look);
        serve(all)?;
        if !failed && all.iter().any(|one| one.exit.is_some_and(|(end, _)| !end.is_success())) {
            failed = true;
            kill_at = kill_at.min(Instant::now() + limits.grace);
        }
        if Instant::now() >= kill_at {
            all.iter_mut().for_each(Process::kill);
        }
    }
    Ok(())
}

fn ended(process: Process, started: Instant) -> Option<Ended> {
    let (end, when) = process.exit?;
    let (out, err) = (process.out.text(), process.err.text());
    Some(Ended { end, after: when - started, out, err })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ends(scripts: &[&str], deadline: Duration, grace: Duration) -> Vec<End> {
        let limits = Limits { deadline, grace };
        let ended = run(scripts.iter().map(|script| sh(script)), limits, |_| Ok(())).unwrap();
        ended.iter().map(|one| one.end).collect()
    }

    #[test]
    fn unread_input_is_no_error() {
        let told = ask(sh("head -n 1; exit 3"), &"word\n".repeat(50_000), LONG).unwrap();
        assert_eq!((told.end, &*told.out), (End::Exited(3), "word\n"));
    }

    #[test]
    fn failure_ends_others_after_grace() {
        let sleeps = "exec sleep 1000";
        assert_eq!(ends(&[sleeps, "exit 7"], LONG, Duration::ZERO), [End::Killed, End::Exited(7)]);
        let died = [sleeps, "kill -KILL $$"];
        let killed = End::Signalled(libc::SIGKILL);
        assert_eq!(ends(&died, LONG, Duration::ZERO), [End::Killed, killed]);
        // In time for a last word.
        assert_eq!(ends(&["sleep 0.1; exit 5", "exit 7"], LONG, LONG)[0], End::Exited(5));
    }

    #[test]
    fn deadline_ends_all_processes() {
        let (sleeps, soon) = ("exec sleep 1000", Duration::from_millis(50));
        assert_eq!(ends(&[sleeps, sleeps], soon, LONG), [End::Killed, End::Killed]);
        assert_eq!(ask(sh(sleeps), "", soon).unwrap().end, End::Killed);
        let limits = Limits { deadline: LONG, grace: LONG };
        let error = run([sh(sleeps)], limits, |_| Err(io::Error::other("no"))).unwrap_err();
        assert_eq!(error.to_string(), "no");
        let missing = [sh(sleeps), Command::new("/nonexistent/program")];
        let error = run(missing, limits, |_| Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/program cannot be started"), "{error}");
    }
}
