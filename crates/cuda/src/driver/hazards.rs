//! Warnings about CUDA settings with which a kernel may block the copies that it waits for. A
//! process that has started CUDA can no longer change them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::MEM;
use crate::driver::library::Driver;

const OWN_STREAMS: u32 = 3;

pub(crate) fn warn(driver: &Driver) {
    let set = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    let pipes = env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_default();
    if let Some(queues) = few_queues(set.as_deref(), is_served(pipes)) {
        log::warn!(
            target: MEM,
            "CUDA_DEVICE_MAX_CONNECTIONS {queues}: copies of staged memory may share a queue of the device \
             with kernels that wait for them, and then neither ends; set it to 32"
        );
    }
    if driver.loads_kernels_lazily() {
        log::warn!(
            target: MEM,
            "CUDA loads kernels lazily: launching a kernel for the first time while another one waits for \
             staged memory stops all copies, and then neither ends; set CUDA_MODULE_LOADING=EAGER, or launch \
             each kernel once before"
        );
    }
}

/// Describes `CUDA_DEVICE_MAX_CONNECTIONS` if it leaves too few queues. The driver's default is 8,
/// and 2 for a client of the multi-process service.
fn few_queues(set: Option<&str>, is_served: bool) -> Option<String> {
    let Some(set) = set.map(str::trim).filter(|set| !set.is_empty()) else {
        let default = "is not set, and a client of the multi-process service has 2 queues then";
        return is_served.then(|| String::from(default));
    };
    set.parse()
        .ok()
        .filter(|queues| *queues <= OWN_STREAMS)
        .map(|queues: u32| format!("is {queues}"))
}

fn is_served(pipes: OsString) -> bool {
    let pipes = if pipes.is_empty() { "/tmp/nvidia-mps".into() } else { pipes };
    PathBuf::from(pipes).join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_has_a_control_pipe() {
        // Any directory with a file of this name.
        let debian = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian");
        assert!(is_served(debian.into()) && !is_served("/nowhere".into()));
    }

    #[test]
    fn few_queues_are_told() {
        for (set, served, told) in [
            (Some("1"), false, "is 1"),
            (Some(" 3 "), true, "is 3"),
            (None, true, "is not set"),
            (Some(" "), true, "is not set"),
        ] {
            let found = few_queues(set, served).unwrap_or_default();
            assert!(found.starts_with(told), "{set:?} {served}: {found}");
        }
        for (set, served) in
            [(Some("8"), true), (Some("32"), false), (Some("many"), true), (None, false)]
        {
            assert_eq!(few_queues(set, served), None, "{set:?} {served}");
        }
    }
}
