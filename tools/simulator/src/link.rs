//! Messages between a PE and the launcher: lines of JSON over the PE's standard streams. So they
//! are the same for a PE of this host and for one that a shell of another host has become, the
//! launcher listens nowhere, and a PE whose launcher has gone finds its input closed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Begins each message. What a login shell prints before may lack the end of its line.
const MARK: &str = "nvshmem-sim: ";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FromPe {
    /// It has joined a collective: an allgather of these bytes, or a barrier: of none.
    Join(Vec<u8>),
    Value(String, String),
    Finished,
    Failed(String),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToPe {
    /// The collective is complete: what all PEs have brought.
    Gathered(Vec<u8>),
    Abort(String),
}

pub(crate) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(format!("{MARK}{}\n", serde_json::to_string(message)?).as_bytes())
}

/// Returns the message in a line; none if the line is something else.
pub(crate) fn parse<M: DeserializeOwned>(line: &str) -> Option<M> {
    serde_json::from_str(line.split_once(MARK)?.1).ok()
}

/// Takes the standard streams of this process: returns where messages to the launcher go, and its
/// own as they come. Calls `at_end` once the launcher has closed the input.
pub(crate) fn of_process(
    at_end: impl FnOnce() + Send + 'static,
) -> io::Result<(File, Receiver<ToPe>)> {
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    // What anything else in this process prints is no message.
    // SAFETY: both are open descriptors of this process; the second has been copied.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (tell, messages) = unbounded();
    thread::spawn(move || {
        let mut messages = io::stdin().lines().map_while(|line| parse(&line.ok()?));
        while messages.next().is_some_and(|message| tell.send(message).is_ok()) {}
        at_end();
    });
    Ok((output, messages))
}
