//! Hazards: what keeps copies of ours from running beside kernels that wait for them. Nothing here
//! can be mended from inside a process that has started CUDA, so it is said in the log.

use std::env;
use std::path::PathBuf;

use crate::MEM;
use crate::driver::library::Driver;

const OWN_STREAMS: u32 = 3;

pub(crate) fn warn(driver: &Driver) {
    let set = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    match few_queues(set.as_deref(), is_served()) {
        None => {}
        Some(Few::Set(queues)) => log::warn!(
            target: MEM,
            "CUDA_DEVICE_MAX_CONNECTIONS is {queues}: copies of staged memory may share a queue of the device \
             with kernels that wait for them, and then neither ends; set it to 32"
        ),
        Some(Few::OfService) => log::warn!(
            target: MEM,
            "CUDA_DEVICE_MAX_CONNECTIONS is not set, and a client of the multi-process service has 2 queues of the device \
             then: copies of staged memory may share one with kernels that wait for them, and then neither ends; set it to 32"
        ),
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Few {
    /// The user has set so many.
    Set(u32),
    /// The default of the multi-process service, 2.
    OfService,
}

/// Whether `CUDA_DEVICE_MAX_CONNECTIONS` leaves us few queues. The driver's default is 8, and 2 for
/// a client of the multi-process service.
fn few_queues(set: Option<&str>, is_served: bool) -> Option<Few> {
    let set = set.map(str::trim).filter(|set| !set.is_empty());
    let Some(set) = set else { return is_served.then_some(Few::OfService) };
    set.parse().ok().filter(|queues| *queues <= OWN_STREAMS).map(Few::Set)
}

fn is_served() -> bool {
    let pipes = env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|pipes| !pipes.is_empty());
    let pipes = pipes.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    pipes.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_queues_are_recognised() {
        for served in [false, true] {
            assert_eq!(few_queues(Some("1"), served), Some(Few::Set(1)));
            assert_eq!(few_queues(Some(" 3 "), served), Some(Few::Set(3)));
            for enough in [Some("8"), Some("32"), Some("many")] {
                assert_eq!(few_queues(enough, served), None, "{enough:?}");
            }
        }
    }

    #[test]
    fn mps_default_leaves_few_queues() {
        for unset in [None, Some(""), Some(" ")] {
            assert_eq!(few_queues(unset, true), Some(Few::OfService));
            assert_eq!(few_queues(unset, false), None);
        }
    }
}
