//! Programs that are asked something: their output, or why there is none, within a deadline.
//!
//! What libraries of drivers do when they are loaded is not ours: a hang or a crash there is an
//! answer, too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use launcher::{End, Ended, Stream};

/// What a question may take. A driver that starts many GPUs takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

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
    if answer.end.is_success() {
        return Ok(answer.text(Stream::Out));
    }
    Err(format!("it {} and said: {}", answer.end, last_words(&answer)))
}

pub(crate) fn last_words(answer: &Ended) -> String {
    let said = answer.text(Stream::Err);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("nothing").to_owned()
}

#[derive(Debug)]
pub(crate) enum NoAnswer {
    Start(String),
    Late(String),
}

/// What a program answers, well or not, to some lines.
pub(crate) fn ask(command: Command, input: &str, patience: Duration) -> Result<Ended, NoAnswer> {
    let answer = launcher::ask(command, input, patience)
        .map_err(|error| NoAnswer::Start(error.to_string()))?;
    match answer.end {
        End::Killed => {
            Err(NoAnswer::Late(format!("it did not end within {} s", patience.as_secs())))
        }
        End::Exited(_) | End::Signalled(_) => Ok(answer),
    }
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
        assert!(ask("kill -TERM $$").unwrap_err().contains("signal 15"));
        let hung = output_within(sh("exec sleep 1000"), Duration::from_millis(50)).unwrap_err();
        assert!(hung.contains("did not end"), "{hung}");
        assert!(output(Path::new("/nonexistent"), &[]).unwrap_err().contains("cannot be started"));
    }
}
