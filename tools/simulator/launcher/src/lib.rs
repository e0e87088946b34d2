//! The launcher: starts the processes of a job, reads what they print, and sees each to its end.
//!
//! ```text
//! process        one process: its output line by line, and its end
//! run            all processes of a job, with a deadline; a program that answers a question
//! meeting        a job of one program, whose PEs find one another at a socket
//! remote         shells on other hosts, started by an agent such as ssh
//! shared_memory  files in /dev/shm that killed processes leave behind
//! private_dir    directories of a run's own
//! ```

#![allow(missing_docs, reason = "names say what is not said here")]

mod meeting;
mod private_dir;
mod process;
mod remote;
mod run;
mod shared_memory;

pub use meeting::{Place, run_job};
pub use private_dir::PrivateDir;
pub use process::{
    End, Process, Stream, keep_ends_of_processes, poll, pollfd, reaches_other_processes,
};
pub use remote::{exports, shell, word};
pub use run::{Ended, Limits, Service, ask, run};
