//! The launcher: starts the processes of a job, reads what they print, and sees each to its end.
//!
//! ```text
//! process      one process: its output, and its end
//! run          all processes of a job, with a deadline; a program that answers a question
//! remote       shells on other hosts, started by an agent such as ssh
//! private_dir  directories of a run's own
//! ```

#![allow(missing_docs, reason = "names say what is not said here")]

mod private_dir;
mod process;
mod remote;
mod run;

pub use private_dir::PrivateDir;
pub use process::{End, Process, keep_ends_of_processes};
pub use remote::{exports, shell, word};
pub use run::{Ended, Limits, ask, run};
