//! The launcher: starts the processes of a job, reads what they print, and sees each to its end.

mod private_dir;
mod process;
mod remote;
mod run;

pub use private_dir::PrivateDir;
pub use process::{End, Process, keep_ends_of_processes};
pub use remote::{exports, shell, word};
pub use run::{Ended, Limits, ask, run};
