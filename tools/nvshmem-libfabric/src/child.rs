//! Programs that are asked something: their output, or why there is none, within a deadline.
//!
//! What libraries of drivers do when they are loaded is not ours: a hang or a crash there is an
//! answer, too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use launcher::{End, Ended};

/// Limit of one question. A driver that starts many GPUs takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn output(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let answer = ask(command, "", PATIENCE)?;
    if answer.end.is_success() {
        return Ok(answer.out);
    }
    Err(format!("it {} and said: {}", answer.end, last_words(&answer)))
}

pub(crate) fn last_words(answer: &Ended) -> String {
    let last = answer.err.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("nothing").to_owned()
}

/// Returns the answer of a program, well or not, to some lines; or why there is none.
pub(crate) fn ask(command: Command, input: &str, patience: Duration) -> Result<Ended, String> {
    let answer = launcher::ask(command, input, patience)
        .map_err(|error| format!("it cannot be started: {error}"))?;
    match answer.end {
        End::Killed => Err(format!("it did not end within {} s", patience.as_secs())),
        End::Exited(_) | End::Signalled(_) => Ok(answer),
    }
}
