//! Consistency of device memory that NICs write to by themselves: flag seen, so data seen.
//!
//! NVSHMEM asks for it after a quiet that covers gets, and when a kernel asks (`enforce_cst`). What
//! has to be done for it depends on the device, and is decided once, when the PEs connect.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use log::{info, warn};

use crate::job::error::JobError;
use crate::logging;
use crate::settings::ConsistencyChoice;
use cuda::{Attributes, Context, Device, DeviceMemory, Driver, WritesOrdering, flush_writes};
use engine::lane::Lane;
use engine::lane::loopback::{Anchor, Loopback};
use engine::port::registration::is_unclosed;
use engine::port::{Access, MemoryPort, Port};
use engine::regions::RegionTable;
use engine::wire::handle::{Handle, HandleBytes};

const MAX_RAILS: usize = 32;

/// How NICs' writes are made visible to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strategy {
    /// They are, in order.
    None,
    /// `cuFlushGPUDirectRDMAWrites`.
    Flush,
    /// A loopback on every rail.
    Loopback(Loopback),
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing is needed",
            Self::Flush => "CUDA's flush",
            Self::Loopback(Loopback::Read) => "a read through each rail",
            Self::Loopback(Loopback::WriteRead) => "a write and a read through each rail",
        })
    }
}

impl Strategy {
    fn choose(choice: ConsistencyChoice, device: Option<&Attributes>) -> (Self, &'static str) {
        const ASKED: &str = "NVSHMEM_LIBFABRIC_DEBUG=consistency";
        match (choice, device) {
            (ConsistencyChoice::None, _) => (Self::None, ASKED),
            (ConsistencyChoice::Flush, _) => (Self::Flush, ASKED),
            (ConsistencyChoice::Read, _) => (Self::Loopback(Loopback::Read), ASKED),
            (ConsistencyChoice::WriteRead, _) => (Self::Loopback(Loopback::WriteRead), ASKED),
            (ConsistencyChoice::Auto, None) => (Self::None, "there is no device"),
            // The flag's and the data's writes are acknowledged one by one before a signal goes
            // out, so an order on each way to the memory is all that is asked of the device.
            (ConsistencyChoice::Auto, Some(device)) => match device.writes_ordering {
                WritesOrdering::Owner | WritesOrdering::AllDevices => {
                    (Self::None, "the device keeps the writes of NICs in order")
                }
                WritesOrdering::None if device.flush_on_host => {
                    (Self::Flush, "the device does not order the writes of NICs")
                }
                WritesOrdering::None => (
                    Self::Loopback(Loopback::Read),
                    "the device does not order the writes of NICs, and has no flush",
                ),
            },
        }
    }
}

/// The strategy of this process, and what it takes.
#[derive(Debug)]
pub(crate) struct Consistency {
    strategy: Strategy,
    /// The user asks for the loopback, whatever the memory is.
    forced: bool,
    context: Option<Arc<Context>>,
    /// What is read where NICs reach device memory.
    device: OnceLock<Words>,
    /// What is read else.
    host: OnceLock<Words>,
    making: Mutex<()>,
    times: AtomicU64,
}

#[derive(Debug)]
struct Words {
    anchor: Anchor,
    _landing: Box<[AtomicU64]>,
    _source: Source,
}

#[derive(Debug)]
enum Source {
    Host { _words: Box<[AtomicU64]> },
    Device { _page: DeviceMemory },
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
        let (strategy, reason) = Strategy::choose(choice, attributes.as_ref());
        let context = match (strategy, device) {
            (Strategy::None, _) | (_, None) => None,
            (_, Some(device)) => match Context::primary(device.driver(), device.ordinal()) {
                Ok(context) => Some(context),
                Err(error) => {
                    warn!(target: logging::TRANSPORT, "context of {device}: {error}");
                    None
                }
            },
        };
        if device.is_some() || choice != ConsistencyChoice::Auto {
            info!(
                target: logging::TRANSPORT,
                "order of NICs' writes to device memory before flags: {strategy} ({reason})"
            );
        }
        Self {
            strategy,
            forced: matches!(choice, ConsistencyChoice::Read | ConsistencyChoice::WriteRead),
            context,
            device: OnceLock::new(),
            host: OnceLock::new(),
            making: Mutex::new(()),
            times: AtomicU64::new(0),
        }
    }

    /// Registers memory, with what the order of NICs' writes to it takes.
    ///
    /// # Errors
    /// The memory cannot be registered, or no order be made. Nothing is left registered then: the
    /// memory must not be used, for its flags might come before its data.
    pub(crate) fn register<M: MemoryPort>(
        &self,
        regions: &RegionTable<M>,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<HandleBytes, JobError> {
        let handle = regions.register(addr, len, access)?;
        if let Err(error) = self.prepare(regions) {
            regions.release(&handle)?;
            return Err(error);
        }
        Ok(handle)
    }

    /// Makes what the strategy takes for the memory that is registered by now. It may wait for the
    /// device, so this is called where memory is registered, and when the PEs connect.
    pub(crate) fn prepare<M: MemoryPort>(&self, regions: &RegionTable<M>) -> Result<(), JobError> {
        let Strategy::Loopback(_) = self.strategy else { return Ok(()) };
        let direct = regions.memory().reaches_devices();
        let made = if direct { &self.device } else { &self.host };
        if made.get().is_some() || !direct && !self.forced {
            return Ok(());
        }
        // It guards no data.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if made.get().is_none() {
            let words = if direct { self.on_device(regions)? } else { Words::on_host(regions)? };
            let _ = made.set(words);
        }
        Ok(())
    }

    fn on_device<M: MemoryPort>(&self, regions: &RegionTable<M>) -> Result<Words, JobError> {
        let context = self.context.as_ref().ok_or(JobError::NoAnchor {
            why: "no context of a device was bound when the PEs connected",
        })?;
        let page = DeviceMemory::page(context)?;
        let (addr, len) = (page.range().addr(), page.range().len());
        Words::registered(regions, addr, len, Source::Device { _page: page })
    }

    #[inline]
    pub(crate) fn enforce<P: Port, M: MemoryPort>(
        &self,
        lane: &mut Lane<P>,
        regions: &RegionTable<M>,
    ) -> Result<(), JobError> {
        match self.strategy {
            Strategy::None => return Ok(()),
            Strategy::Flush => match &self.context {
                Some(context) if regions.memory().reaches_devices() => {
                    flush_writes(context)?;
                }
                _ => return Ok(()),
            },
            Strategy::Loopback(how) => match self.device.get().or_else(|| self.host.get()) {
                Some(words) => lane.loopback(&words.anchor, how)?,
                None => return Ok(()),
            },
        }
        self.times.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Consistency {
    fn drop(&mut self) {
        let (strategy, times) = (self.strategy, *self.times.get_mut());
        if times != 0 {
            info!(target: logging::TRANSPORT, "{strategy}: done {times} time(s) before flags");
        }
    }
}

impl Words {
    fn on_host<M: MemoryPort>(regions: &RegionTable<M>) -> Result<Self, JobError> {
        let words = some_words();
        let (addr, len) = (words.as_ptr() as usize, size_of_val(&*words));
        Self::registered(regions, addr, len, Source::Host { _words: words })
    }

    fn registered<M: MemoryPort>(
        regions: &RegionTable<M>,
        addr: usize,
        len: usize,
        source: Source,
    ) -> Result<Self, JobError> {
        let landing = some_words();
        let at = landing.as_ptr() as usize;
        let handle = regions.register(addr, len, Access::LocalAndRemote)?;
        let staged = Handle::decode(&handle).is_ok_and(|handle| handle.staged.is_some());
        let registered = if staged {
            Err(JobError::NoAnchor {
                why: "the fabric does not reach device memory of ours, though it reaches others'",
            })
        } else {
            let len = size_of_val(&*landing);
            regions.register(at, len, Access::Local).map_err(JobError::from)
        };
        match registered {
            Ok(_) => {
                let anchor = Anchor { handle, addr, landing: at };
                Ok(Self { anchor, _landing: landing, _source: source })
            }
            Err(failed) => {
                // What stays registered is not given back.
                if regions.release(&handle).is_err() {
                    std::mem::forget(source);
                }
                Err(failed)
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if is_unclosed() {
            // The fabric may still write to them.
            let nothing = Source::Host { _words: Box::default() };
            std::mem::forget(std::mem::replace(&mut self._source, nothing));
            std::mem::forget(std::mem::take(&mut self._landing));
        }
    }
}

fn some_words() -> Box<[AtomicU64]> {
    const { assert!(Anchor::bytes_for(MAX_RAILS) == MAX_RAILS * size_of::<AtomicU64>()) };
    (0..MAX_RAILS).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Pe;
    use sim_fabric::{FakeFabric, Script};

    fn device(writes_ordering: WritesOrdering, flush_on_host: bool) -> Attributes {
        Attributes {
            compute: (9, 0),
            gpudirect_rdma: true,
            gpudirect_rdma_vmm: true,
            writes_ordering,
            flush_on_host,
            dma_buf: true,
            virtual_memory: true,
            stream_write_64: true,
            host_numa_node: -1,
        }
    }

    #[test]
    fn unorderable_memory_is_not_registered() {
        let fabric = FakeFabric::new(1, 1, Script::default());
        let regions = RegionTable::new(fabric.memory(Pe(0), 1), Pe(0));
        let heap = fabric.alloc(Pe(0), 4096);
        // The fake registers its own memory alone, so not the words that this one reads through
        // rails.
        let ordered = Consistency::new(ConsistencyChoice::Read);
        let access = Access::LocalAndRemote;
        assert!(ordered.register(&regions, heap, 4096, access).is_err());
        assert!(regions.is_empty(), "{} regions are left", regions.len());
        // Nothing is read where nobody asks for it and NICs reach no device.
        let mut unasked = Consistency::new(ConsistencyChoice::Read);
        unasked.forced = false;
        assert!(unasked.register(&regions, heap, 4096, access).is_ok());
        assert_eq!(regions.len(), 1);
    }

    #[test]
    fn unreadable_words_are_not_registered() {
        let fabric = FakeFabric::new(1, 1, Script::default());
        let regions = RegionTable::new(fabric.memory(Pe(0), 1), Pe(0));
        let source = Source::Host { _words: some_words() };
        // In the fake's memory, as the others are not.
        let words = fabric.alloc(Pe(0), 4096);
        assert!(Words::registered(&regions, words, 4096, source).is_err());
        assert!(regions.is_empty(), "{} regions are left", regions.len());
    }

    #[test]
    fn user_choice_overrides_device() {
        use ConsistencyChoice as Choice;
        let read = Strategy::Loopback(Loopback::Read);
        for (ordering, flush, expected) in [
            (WritesOrdering::None, true, Strategy::Flush),
            (WritesOrdering::None, false, read),
            (WritesOrdering::Owner, true, Strategy::None),
            (WritesOrdering::AllDevices, false, Strategy::None),
        ] {
            let attributes = device(ordering, flush);
            let chosen = |choice| Strategy::choose(choice, Some(&attributes)).0;
            assert_eq!(chosen(Choice::Auto), expected, "{ordering:?} {flush}");
            assert_eq!(chosen(Choice::None), Strategy::None);
            assert_eq!(chosen(Choice::Flush), Strategy::Flush);
            assert_eq!(chosen(Choice::Read), read);
            assert_eq!(chosen(Choice::WriteRead), Strategy::Loopback(Loopback::WriteRead));
        }
        assert_eq!(Strategy::choose(Choice::Auto, None).0, Strategy::None);
        assert_eq!(Strategy::choose(Choice::Read, None).0, read);
    }
}
