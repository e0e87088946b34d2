//! Consistency of device memory that NICs write: whoever sees a flag also sees the data.
//!
//! NVSHMEM requests it after a quiet that covers gets, and when a kernel does (`enforce_cst`).
//! Devices that do not order NICs' writes need CUDA's flush, others nothing; that is decided once,
//! when the PEs connect. A device with neither has no direct memory: see
//! [`register_direct`](super::direct::register_direct).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use log::{info, warn};

use crate::logging;
use crate::settings::ConsistencyChoice;
use cuda::{Attributes, Context, CudaError, Device, Driver, WritesOrdering, flush_writes};

/// Returns whether NICs' writes need CUDA's flush on a device, and the reason.
fn needs_flush(choice: ConsistencyChoice, device: Option<&Attributes>) -> (bool, &'static str) {
    const ASKED: &str = "NVSHMEM_LIBFABRIC_DEBUG=consistency";
    match (choice, device) {
        (ConsistencyChoice::None, _) => (false, ASKED),
        (ConsistencyChoice::Flush, _) => (true, ASKED),
        (ConsistencyChoice::Auto, None) => (false, "there is no device"),
        // The writes of data and flag are acknowledged one by one before a signal is sent, so the
        // device only has to order the writes of one path.
        (ConsistencyChoice::Auto, Some(device)) => match device.writes_ordering {
            WritesOrdering::Owner | WritesOrdering::AllDevices => {
                (false, "the device keeps the writes of NICs in order")
            }
            WritesOrdering::None => (true, "the device does not order the writes of NICs"),
        },
    }
}

/// Returns true if a device can make NICs' writes visible before a flag that follows them.
pub(super) fn is_orderable(device: &Attributes) -> bool {
    keeps_order(device) || device.flush_on_host
}

/// Returns true if a device itself keeps NICs' writes in order.
pub(super) fn keeps_order(device: &Attributes) -> bool {
    device.writes_ordering >= WritesOrdering::Owner
}

/// Method by which this process makes NICs' writes visible to its device.
#[derive(Debug)]
pub(crate) struct Consistency {
    /// The device's context, if its memory needs a flush.
    context: Option<Arc<Context>>,
    /// Whether the user demands a flush even if NICs reach no device memory.
    forced: bool,
    times: AtomicU64,
}

impl Consistency {
    /// Decides for the device of the context that is bound on this thread, and logs the decision.
    pub(crate) fn new(choice: ConsistencyChoice) -> Self {
        let device = Driver::of_process().ok().and_then(Device::current);
        let attributes = device.and_then(|device| {
            let warn = |error: &CudaError| {
                warn!(target: logging::TRANSPORT, "attributes of {device}: {error}");
            };
            device.attributes().inspect_err(warn).ok()
        });
        let (flushes, reason) = needs_flush(choice, attributes.as_ref());
        let context = device.filter(|_| flushes).and_then(|device| {
            let warn = |error: &CudaError| {
                warn!(target: logging::TRANSPORT, "context of {device}: {error}");
            };
            Context::primary(device.driver(), device.ordinal()).inspect_err(warn).ok()
        });
        if device.is_some() || choice != ConsistencyChoice::Auto {
            let how = if flushes { "CUDA's flush" } else { "nothing is needed" };
            info!(
                target: logging::TRANSPORT,
                "order of NICs' writes to device memory before flags: {how} ({reason})"
            );
        }
        Self { context, forced: choice == ConsistencyChoice::Flush, times: AtomicU64::new(0) }
    }

    /// Makes NICs' writes visible to the device if needed; `direct`: NICs reach its memory.
    #[inline]
    pub(crate) fn enforce(&self, direct: bool) -> Result<(), CudaError> {
        let Some(context) = self.context.as_ref().filter(|_| direct || self.forced) else {
            return Ok(());
        };
        flush_writes(context)?;
        self.times.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Consistency {
    fn drop(&mut self) {
        let times = *self.times.get_mut();
        if times != 0 {
            info!(target: logging::TRANSPORT, "CUDA's flush: done {times} time(s) before flags");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(writes_ordering: WritesOrdering) -> Attributes {
        Attributes {
            compute: (9, 0),
            gpudirect_rdma: true,
            gpudirect_rdma_vmm: true,
            writes_ordering,
            flush_on_host: true,
            dma_buf: true,
            dma_buf_mmap: false,
            virtual_memory: true,
            stream_write_64: true,
            host_numa_node: -1,
        }
    }

    #[test]
    fn user_choice_overrides_device() {
        use ConsistencyChoice as Choice;
        for (ordering, expected) in [
            (WritesOrdering::None, true),
            (WritesOrdering::Owner, false),
            (WritesOrdering::AllDevices, false),
        ] {
            let attributes = device(ordering);
            let flushes = |choice| needs_flush(choice, Some(&attributes)).0;
            assert_eq!(flushes(Choice::Auto), expected, "{ordering:?}");
            assert!(flushes(Choice::Flush) && !flushes(Choice::None));
            assert!(is_orderable(&attributes) && keeps_order(&attributes) != expected);
            let without_flush = Attributes { flush_on_host: false, ..attributes };
            assert_eq!(is_orderable(&without_flush), !expected, "{ordering:?}");
        }
        assert!(!needs_flush(Choice::Auto, None).0);
    }
}
