//! Messages, in the shape and under the variables of NVSHMEM's own.
//!
//! The rest of the crate logs through the `log` macros, with one of NVSHMEM's subsystems as the
//! target: `log::info!(target: logging::TRANSPORT, "...")`. A record without a target counts as
//! [`TRANSPORT`]. Warnings and errors are shown whatever the subsystem.
//!
//! Nothing here is `unsafe`, and nothing panics: a log that cannot be written is lost.
#![forbid(unsafe_code)]

mod config;
#[cfg(test)]
pub(crate) mod heard;
mod line;
mod sink;

use std::sync::Once;

pub use config::{VARIABLES, Variable};

use config::Config;

/// Start and end of the transport.
pub const INIT: &str = "INIT";
/// Lanes, rails and operations.
pub const TRANSPORT: &str = "TRANSPORT";
/// Registration of memory, and memory handles.
pub const MEM: &str = "MEM";
/// Which devices there are, and which were chosen.
pub const TOPO: &str = "TOPO";
/// What the proxy thread does.
pub const PROXY: &str = "PROXY";

/// The line that says which plugin this is. Shown once `NVSHMEM_DEBUG` is set, at any level.
pub(crate) const VERSION: &str = "VERSION";

/// Sets up logging from the environment of the process. Only the first call does anything, so
/// each start of the transport may call it. A process that has installed a logger of its own for
/// this copy of the `log` crate keeps that one.
///
/// # Threads
/// Any.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (config, complaints) = Config::load(std::env::vars_os());
        if !sink::install(&config) {
            return;
        }
        for complaint in complaints {
            log::warn!(target: INIT, "{complaint}");
        }
        log::info!(target: VERSION, "{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    });
}
