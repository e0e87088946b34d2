//! Programs that are asked something: their output, or why there is none, within a deadline.
//!
//! What libraries of drivers do when they are loaded is not ours: a hang or a crash there is an
//! answer, too.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a question may take. A driver that starts many GPUs takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the end of the program is looked at.
const TICK: Duration = Duration::from_millis(2);

/// What a program prints.
///
/// # Errors
/// It does not start, fails, or does not end.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    output_within(command, PATIENCE)
}

fn output_within(command: Command, patience: Duration) -> Result<String, String> {
    let answer = ask(command, "", patience).map_err(|error| match error {
        NoAnswer::Start(why) => format!("it cannot be started: {why}"),
        NoAnswer::Late(why) => why,
    })?;
    if answer.status.success() {
        return Ok(answer.stdout);
    }
    Err(format!("it failed ({}) and said: {}", answer.status, answer.last_words()))
}

/// What a program has printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// The last line of its errors.
    pub(crate) fn last_words(&self) -> String {
        let said = self.stderr.lines().rev().find(|line| !line.trim().is_empty());
        said.unwrap_or("nothing").to_owned()
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Start(String),
    Late(String),
}

/// What a program answers, well or not, to some lines.
///
/// # Errors
/// It does not start, or does not end.
pub(crate) fn ask(
    mut command: Command,
    input: &str,
    patience: Duration,
) -> Result<Answer, NoAnswer> {
    let started =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| NoAnswer::Start(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read it to its end has its reasons.
        let _ = stdin.write_all(input.as_bytes());
    }
    // Pipes that nobody reads would stop it.
    let read = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                // What was read until then counts.
                let _ = stream.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>));
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < patience => thread::sleep(TICK),
            Ok(None) => {
                // It may have ended just now, which is as good.
                let _ = child.kill();
                let _ = child.wait();
                let why = format!("it did not end within {} s", patience.as_secs());
                return Err(NoAnswer::Late(why));
            }
            Err(error) => {
                return Err(NoAnswer::Late(format!("its end cannot be waited for: {error}")));
            }
        }
    };
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    Ok(Answer { status, stdout, stderr })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_failure_crash_and_hang_are_told_apart() {
        let ask = |script| output_within(sh(script), PATIENCE);
        assert_eq!(ask("echo yes"), Ok(String::from("yes\n")));
        assert_eq!(ask("seq 100000").map(|text| text.lines().count()), Ok(100_000));
        let failed = ask("echo no >&2; exit 3").unwrap_err();
        assert!(failed.contains('3') && failed.ends_with("no"), "{failed}");
        assert!(ask("kill -TERM $$").unwrap_err().contains("signal: 15"));
        let hung = output_within(sh("exec sleep 1000"), Duration::from_millis(50)).unwrap_err();
        assert!(hung.contains("did not end"), "{hung}");
        assert!(output(Path::new("/nonexistent"), &[]).unwrap_err().contains("cannot be started"));
    }
}
