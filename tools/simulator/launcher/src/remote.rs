//! Shells on other hosts, started by an agent: a command such as `ssh HOST` that executes there
//! the words behind it, with its own standard streams.
//!
//! What the shell is to do goes by its standard input: every user of a host can read command lines.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A shell that does what it reads.
///
/// Its one word is the same to an agent that hands it to another shell, as `ssh` does, and to one
/// that does not.
pub fn shell(agent: &[OsString]) -> Command {
    let mut words = agent.iter();
    let mut command = Command::new(words.next().cloned().unwrap_or_default());
    command.args(words).arg("/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Lines that put variables into the environment of what a shell starts. What has no name of a
/// variable is left out.
pub fn exports<'a>(variables: impl IntoIterator<Item = (&'a str, OsString)>) -> String {
    let mut script = String::new();
    for (name, value) in variables.into_iter().filter(|(name, _)| is_name(name)) {
        // A value with a null byte is none that a process could have.
        if let Ok(quoted) = shlex::try_quote(&value.to_string_lossy()) {
            let _ = writeln!(script, "export {name}={quoted}");
        }
    }
    script
}

pub fn word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // A path with a null byte is none.
    shlex::try_quote(&path).map_or_else(|_| String::from("''"), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask;

    #[test]
    fn names_are_not_executed() {
        let value = || OsString::from("1");
        for name in ["NVSHMEM_A;id", "FI_$(id)", "FI_A B", "", "1A", "NVSHMEM_\nid"] {
            assert_eq!(exports([(name, value())]), "", "{name:?}");
        }
        assert_eq!(exports([("FI_TCP_1", value())]), "export FI_TCP_1=1\n");
    }

    #[test]
    fn values_survive_the_shell() {
        let value = "it's \"$HOME\" `id`\n2nd; rm *";
        let script = exports([("TEST_VALUE", OsString::from(value))]) + "exec env\n";
        let shell = shell(&["env".into(), "IT=agent".into()]);
        let text = ask(shell, &script, std::time::Duration::from_secs(60)).unwrap().out;
        assert!(text.contains(&format!("TEST_VALUE={value}\n")), "{text}");
        assert!(text.contains("IT=agent\n"), "{text}");
    }
}
