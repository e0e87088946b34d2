//! A logger that writes to NCCL's log, in its format and under its variables.

use std::ffi::{CString, c_int, c_ulong};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::nccl::abi::{Logger, level, subsystem};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::logging;

static LOGGER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

struct NcclLog;

pub(super) fn init(logger: Logger) {
    match logger {
        None => logging::init(),
        Some(logger) => {
            LOGGER.store(logger as *mut (), Ordering::Release);
            // It fails if the logger is set already.
            if log::set_logger(&NcclLog).is_ok() {
                // NCCL filters by its own variables.
                log::set_max_level(LevelFilter::Info);
            }
        }
    }
}

fn logger() -> Logger {
    let known = LOGGER.load(Ordering::Acquire);
    // SAFETY: null, or the function that `init` was given, NCCL's, which outlives this library.
    unsafe { std::mem::transmute::<*mut (), Logger>(known) }
}

fn subsystem_of(level: Level, target: &str) -> c_ulong {
    match target {
        // Without NCCL_DEBUG_SUBSYS, messages of networks alone are not shown at any level.
        _ if level <= Level::Warn => subsystem::ALL,
        logging::INIT | logging::VERSION => subsystem::INIT | subsystem::NET,
        logging::MEM => subsystem::NET | subsystem::REG,
        logging::TOPO => subsystem::NET | subsystem::GRAPH,
        logging::PROXY => subsystem::NET | subsystem::PROXY,
        _ => subsystem::NET,
    }
}

impl Log for NcclLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        let Some(logger) = logger().filter(|_| self.enabled(record.metadata())) else { return };
        let (of, mark) = match record.level() {
            Level::Error => (level::WARN, "error: "),
            Level::Warn => (level::WARN, ""),
            _ => (level::INFO, ""),
        };
        let text = format!("nvshmem-libfabric: {mark}{}", record.args());
        let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
        let line = c_int::try_from(record.line().unwrap_or(0)).unwrap_or(0);
        let subsystems = subsystem_of(record.level(), record.target());
        // SAFETY: NCCL's logger, with strings that live through the call and its one argument.
        unsafe {
            logger(
                of,
                subsystems,
                c"nvshmem-libfabric".as_ptr(),
                line,
                c"%s".as_ptr(),
                text.as_ptr(),
            );
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_subsystems_of_nccl() {
        let of = [logging::INIT, logging::MEM, logging::TOPO, logging::PROXY, "other"];
        let also = [subsystem::INIT, subsystem::REG, subsystem::GRAPH, subsystem::PROXY, 0];
        for (target, also) in of.into_iter().zip(also) {
            assert_eq!(subsystem_of(Level::Info, target), subsystem::NET | also, "{target}");
            assert_eq!(subsystem_of(Level::Warn, target), subsystem::ALL, "{target}");
        }
    }
}
