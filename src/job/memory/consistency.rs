//! Consistency of device memory that NICs write to by themselves: flag seen, so data seen.
//!
//! NVSHMEM asks for it after a quiet that covers gets, and when a kernel asks (`enforce_cst`). On
//! devices that do not keep NICs' writes in order it takes CUDA's flush, on others nothing; that is
//! decided once, when the PEs connect. A device with neither has no direct memory: see
//! [`register_direct`](super::direct::register_direct).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use log::{info, warn};

use crate::logging;
use crate::settings::ConsistencyChoice;
use cuda::{Attributes, Context, CudaError, Device, Driver, WritesOrdering, flush_writes};

/// Whether NICs' writes need CUDA's flush on a device, and why.
fn needs_flush(choice: ConsistencyChoice, device: Option<&Attributes>) -> (bool, &'static str) {
    const ASKED: &str = "NVSHMEM_LIBFABRIC_DEBUG=consistency";
    match (choice, device) {
        (ConsistencyChoice::None, _) => (false, ASKED),
        (ConsistencyChoice::Flush, _) => (true, ASKED),
        (ConsistencyChoice::Auto, None) => (false, "there is no device"),
        // The flag's and the data's writes are acknowledged one by one before a signal goes out,
        // so an order on each way to the memory is all that is asked of the device.
        (ConsistencyChoice::Auto, Some(device)) => match device.writes_ordering {
            WritesOrdering::Owner | WritesOrdering::AllDevices => {
                (false, "the device keeps the writes of NICs in order")
            }
            WritesOrdering::None => (true, "the device does not order the writes of NICs"),
        },
    }
}

/// Whether anything makes NICs' writes visible to a device before a flag that follows them.
pub(super) fn is_orderable(device: &Attributes) -> bool {
    device.writes_ordering >= WritesOrdering::Owner || device.flush_on_host
}

/// How this process makes NICs' writes visible to its device.
#[derive(Debug)]
pub(crate) struct Consistency {
    /// The device's context, if its memory needs a flush.
    context: Option<Arc<Context>>,
    /// Whether to flush although NICs reach no device memory, as the user asks.
    forced: bool,
    times: AtomicU64,
}

impl Consistency {
    /// Decides, and says so once, for the device of the context that is bound on this thread.
    pub(crate) fn new(choice: ConsistencyChoice) -> Self {
        let device = Driver::of_process().ok().and_then(Device::current);
        let attributes = device.and_then(|device| match device.attributes() {
            Ok(attributes) => Some(attributes),
            Err(error) => {
                warn!(target: logging::TRANSPORT, "attributes of {device}: {error}");
                None
            }
        });
        let (flushes, reason) = needs_flush(choice, attributes.as_ref());
        let context = device.filter(|_| flushes).and_then(|device| {
            match Context::primary(device.driver(), device.ordinal()) {
                Ok(context) => Some(context),
                Err(error) => {
                    warn!(target: logging::TRANSPORT, "context of {device}: {error}");
                    None
                }
            }
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

    /// Makes NICs' writes visible to the device, if they need it; `direct` says whether NICs reach
    /// device memory.
    ///
    /// # Errors
    /// As the driver answers.
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
            assert!(is_orderable(&attributes));
            let without_flush = Attributes { flush_on_host: false, ..attributes };
            assert_eq!(is_orderable(&without_flush), !expected, "{ordering:?}");
        }
        assert!(!needs_flush(Choice::Auto, None).0);
    }
}
