//! Hazards: what keeps copies of ours from running beside kernels that wait for them. Nothing here can be
//! mended from inside a process that has started CUDA, so it is said in the log.

use std::env;

use crate::cuda::driver::library::Driver;
use crate::logging;

/// Streams that work beside the program's: two of copies and one of words.
const OWN_STREAMS: u32 = 3;

/// Warns of settings with which a program whose kernels wait for staged memory may stand still.
pub(crate) fn warn(driver: &Driver) {
    let set = env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    if let Some(queues) = few_queues(set.as_deref()) {
        log::warn!(
            target: logging::MEM,
            "CUDA_DEVICE_MAX_CONNECTIONS is {queues}: copies of staged memory may share a queue of the device \
             with kernels that wait for them, and then neither ends; set it to 32"
        );
    }
    if driver.loads_kernels_lazily() {
        log::warn!(
            target: logging::MEM,
            "CUDA loads kernels lazily: launching a kernel for the first time while another one waits for \
             staged memory stops all copies, and then neither ends; set CUDA_MODULE_LOADING=EAGER, or launch \
             each kernel once before"
        );
    }
}

/// What the user has set the device's queues to (`CUDA_DEVICE_MAX_CONNECTIONS`), if that is hardly enough
/// for our streams and the program's. The driver's default is 8, and 2 for a client of the
/// multi-process service.
fn few_queues(set: Option<&str>) -> Option<u32> {
    set?.trim().parse().ok().filter(|queues| *queues <= OWN_STREAMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_queues_are_those_that_our_streams_fill() {
        assert_eq!(few_queues(Some("1")), Some(1));
        assert_eq!(few_queues(Some(" 3 ")), Some(3));
        for enough in [None, Some("8"), Some("32"), Some(""), Some("many")] {
            assert_eq!(few_queues(enough), None, "{enough:?}");
        }
    }
}
