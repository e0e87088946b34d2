//! The launcher: starts the processes of a job, hears what they print, and sees each to its end.
//!
//! ```text
//! process      one process: its output line by line, and its end
//! group        all processes of a job, with a deadline; one that is asked something
//! pmi          a PMI-1 server, by which NVSHMEM's programs find one another
//! meeting      a job of one program, whose PEs find one another at a socket
//! private_dir  directories of a run's own
//! ```

mod group;
mod meeting;
mod pipe;
pub mod pmi;
mod poll;
mod private_dir;
mod process;

pub use group::{End, Ended, Limits, ask, run};
pub use meeting::{Place, run_job};
pub use pipe::Stream;
pub use poll::{poll, pollfd};
pub use private_dir::PrivateDir;
pub use process::{Process, dies_with_launcher, reaches_other_processes};
