//! The processes of a job, run to their end: one that fails, or a deadline, ends the others. And
//! programs that are asked something.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::pipe::Stream;
use crate::poll::poll;
use crate::process::{Process, dies_with_launcher};

/// How often ends of processes are looked at, and what is served besides.
const TICK: Duration = Duration::from_millis(2);

/// How long a job may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// What is left is killed after so long.
    pub deadline: Duration,
    /// When one process has failed, the others are killed after so long.
    pub grace: Duration,
}

/// How a process has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal that was not ours.
    Signalled(i32),
    /// Killed by us, when its time was over.
    Killed,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// The same, as the system has it.
    pub status: ExitStatus,
    /// When, since the job's start.
    pub after: Duration,
    /// What it has printed into pipes, line by line.
    pub output: Vec<(Stream, String)>,
}

/// Starts the commands, and waits until all have ended. `serve` is called again and again
/// meanwhile, and must not wait. A process that fails is no error of this.
///
/// # Errors
/// One cannot be started, or that of `serve`. The others are killed then.
pub fn run(
    commands: impl IntoIterator<Item = Command>,
    limits: Limits,
    serve: impl FnMut() -> io::Result<()>,
) -> io::Result<Vec<Ended>> {
    let started = Instant::now();
    let start = |mut command: Command| {
        dies_with_launcher(&mut command);
        Process::start(&mut command)
    };
    let all = commands.into_iter().map(start).collect::<io::Result<Vec<Process>>>()?;
    wait(all, started, limits, serve)
}

/// What a program answers, well or not, to some lines. It is killed after so long.
///
/// # Errors
/// Why it does not start, without its name.
pub fn ask(mut command: Command, input: &str, limit: Duration) -> io::Result<Ended> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut asked = Process::from(command.spawn()?);
    asked.say(input);
    let limits = Limits { deadline: limit, grace: limit };
    Ok(wait(vec![asked], started, limits, || Ok(()))?.swap_remove(0))
}

/// Waits for the end of all.
fn wait(
    mut all: Vec<Process>,
    started: Instant,
    limits: Limits,
    mut serve: impl FnMut() -> io::Result<()>,
) -> io::Result<Vec<Ended>> {
    let mut output: Vec<Vec<(Stream, String)>> = all.iter().map(|_| Vec::new()).collect();
    let mut ends: Vec<Option<End>> = vec![None; all.len()];
    let mut kill_at = started + limits.deadline;
    let (mut failed, mut is_killed) = (false, false);
    while all.iter().any(|one| one.is_running() || one.may_print()) {
        let mut fds: Vec<_> = all.iter().flat_map(Process::pollfds).collect();
        poll(&mut fds, Some(TICK));
        serve()?;
        for ((one, output), end) in all.iter_mut().zip(&mut output).zip(&mut ends) {
            one.read(|stream, line| output.push((stream, line)));
            let (None, Some((status, _))) = (*end, one.exit()) else { continue };
            *end = Some(if is_killed { End::Killed } else { End::of(status) });
            if !status.success() && !failed {
                failed = true;
                kill_at = kill_at.min(Instant::now() + limits.grace);
            }
        }
        if !is_killed && Instant::now() >= kill_at {
            is_killed = true;
            all.iter_mut().filter(|one| one.is_running()).for_each(Process::kill);
        }
    }
    let ended = all.into_iter().zip(output).zip(ends).filter_map(|((mut one, output), end)| {
        let (status, when) = one.exit()?;
        Some(Ended { end: end?, status, after: when - started, output })
    });
    Ok(ended.collect())
}

impl Ended {
    /// What it has printed on one stream.
    pub fn text(&self, stream: Stream) -> String {
        let of_it = self.output.iter().filter(|(of, _)| *of == stream);
        of_it.map(|(_, line)| format!("{line}\n")).collect()
    }
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

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(status) => write!(f, "ended with status {status}"),
            End::Signalled(signal) => write!(f, "ended by signal {signal}"),
            End::Killed => write!(f, "was killed when its time was over"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ends(scripts: &[&str], limits: Limits) -> Vec<End> {
        let ended = run(scripts.iter().map(|script| sh(script)), limits, || Ok(())).unwrap();
        ended.iter().map(|one| one.end).collect()
    }

    #[test]
    fn all_that_is_printed_is_had_by_process_and_stream() {
        let limits = Limits { deadline: LONG, grace: LONG };
        let scripts = ["seq 50000; echo x >&2; exit 3", "printf 'a\nb'"].map(sh);
        let ended = run(scripts, limits, || Ok(())).unwrap();
        assert_eq!((ended[0].end, ended[1].end), (End::Exited(3), End::Exited(0)));
        assert_eq!(ended[0].text(Stream::Out).lines().count(), 50_000);
        assert_eq!(ended[0].text(Stream::Err), "x\n");
        assert_eq!(ended[1].text(Stream::Out), "a\nb\n", "a last line without an end is one");
    }

    #[test]
    fn one_that_is_asked_answers_though_it_does_not_read_all() {
        let told =
            ask(sh("head -n 1; echo x >&2; exit 3"), &"word\n".repeat(50_000), LONG).unwrap();
        assert_eq!((told.end, told.status.code()), (End::Exited(3), Some(3)));
        assert_eq!(
            (told.text(Stream::Out), told.text(Stream::Err)),
            ("word\n".into(), "x\n".into())
        );
    }

    #[test]
    fn one_that_fails_ends_the_others_after_the_grace() {
        let now = Limits { deadline: LONG, grace: Duration::ZERO };
        assert_eq!(ends(&["exec sleep 1000", "exit 7"], now), [End::Killed, End::Exited(7)]);
        let died = ["exec sleep 1000", "kill -KILL $$"];
        assert_eq!(ends(&died, now), [End::Killed, End::Signalled(libc::SIGKILL)]);
        // In time for a last word.
        let later = Limits { grace: LONG, ..now };
        assert_eq!(ends(&["read x; exit 5", "exit 7"], later), [End::Exited(5), End::Exited(7)]);
    }

    #[test]
    fn none_outlives_the_deadline_or_what_keeps_the_job_from_going_on() {
        let soon = Limits { deadline: Duration::from_millis(50), grace: LONG };
        assert_eq!(ends(&["exec sleep 1000", "exit 0"], soon), [End::Killed, End::Exited(0)]);
        let limits = Limits { deadline: LONG, grace: LONG };
        let error =
            run([sh("exec sleep 1000")], limits, || Err(io::Error::other("no"))).unwrap_err();
        assert_eq!(error.to_string(), "no");
        let hung = ask(sh("exec sleep 1000"), "", Duration::from_millis(50)).unwrap();
        assert_eq!(hung.end, End::Killed);
        let missing = [sh("exec sleep 1000"), Command::new("/nonexistent/program")];
        let error = run(missing, limits, || Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/program cannot be started"), "{error}");
    }
}
