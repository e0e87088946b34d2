//! A PE on another host: the command that starts a shell there, and the lines that make that shell
//! the PE.
//!
//! The command, such as `ssh HOST`, executes on the host what stands behind it, with its own
//! standard streams. All that the PE is to know goes there by the standard input: every user of a
//! host can read command lines. What the PE and the launcher tell each other goes by the same
//! streams, so the launcher listens nowhere, and a PE whose launcher has gone finds its input
//! closed and ends.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a PE of another host is started, and what is started there.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The host, for messages.
    pub host: String,
    /// The command that runs on the host what stands behind it.
    pub agent: Vec<OsString>,
    /// This program, there.
    pub program: PathBuf,
    /// Directory with `nvshmem_transport_libfabric.so.N`, there.
    pub plugin_dir: PathBuf,
}

/// The line behind which a PE speaks. What a shell that starts says first is nobody's concern.
pub(crate) const BEGINS: &str = "nvshmem-sim: begins";

/// A shell on a host, whose input is what it does.
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

/// Lines that put variables into the environment of what a shell starts.
pub fn exports<'a>(variables: impl IntoIterator<Item = (&'a str, OsString)>) -> String {
    let mut script = String::new();
    for (name, value) in variables {
        // A value with a null byte is none that a process could have.
        if let Ok(quoted) = shlex::try_quote(&value.to_string_lossy()) {
            let _ = writeln!(script, "export {name}={quoted}");
        }
    }
    script
}

/// A path as a word of a shell's line.
pub fn word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // A path with a null byte is none.
    shlex::try_quote(&path).map_or_else(|_| String::from("''"), String::from)
}

impl Remote {
    /// The lines that make a shell the PE.
    pub(crate) fn script<'a>(
        &self,
        variables: impl IntoIterator<Item = (&'a str, OsString)>,
    ) -> String {
        let exports = exports(variables);
        let program = word(&self.program);
        // Some libraries write a report into the working directory when a process aborts.
        format!("{exports}cd \"${{TMPDIR:-/tmp}}\" && echo '{BEGINS}' && exec {program}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_a_pe_is_to_know_arrives_by_its_input() {
        let value = "it's \"$HOME\" `id`\n2nd; rm *";
        let remote = Remote {
            host: String::from("a"),
            agent: vec!["env".into(), "IT=agent".into()],
            program: PathBuf::from("env"),
            plugin_dir: PathBuf::new(),
        };
        let mut child = shell(&remote.agent).spawn().unwrap();
        let script = remote.script([("SIM_TEST", OsString::from(value))]);
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("{BEGINS}\n")), "{text}");
        assert!(text.contains(&format!("SIM_TEST={value}\n")), "{text}");
        assert!(text.contains("IT=agent\n"), "{text}");
    }
}
