//! The log, in the format and under the variables of NVSHMEM's own.
//!
//! The rest of the crate logs through the `log` macros, with one of NVSHMEM's subsystems as the
//! target: `log::info!(target: logging::TRANSPORT, "...")`. A record without a target counts as
//! [`TRANSPORT`]. Warnings and errors are shown whatever the subsystem.
//!
//! Nothing here is `unsafe`, and nothing panics: a log that cannot be written is lost.
#![forbid(unsafe_code)]

mod config;
mod line;
mod sink;

use std::sync::Once;

pub use config::{VARIABLES, Variable};
#[cfg(test)]
pub(crate) use test_support::heard;

use config::Config;

/// Start and end of the transport.
pub const INIT: &str = "INIT";
/// Lanes, rails and operations.
pub const TRANSPORT: &str = "TRANSPORT";
/// Registration of memory, and memory handles.
pub const MEM: &str = "MEM";
/// Devices found and chosen.
pub const TOPO: &str = "TOPO";
/// The proxy thread.
pub const PROXY: &str = "PROXY";

/// Target of the line with the plugin's version, shown if `NVSHMEM_DEBUG` is set to any level.
pub(crate) const VERSION: &str = "VERSION";

/// Sets up logging from the environment, on any thread. Only the first call has an effect, so each
/// start of the transport may call it. A logger that the process has installed for this copy of the
/// `log` crate stays.
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
