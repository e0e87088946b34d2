//! NVSHMEM's host library, as far as a remote transport can tell: its initialisation and its end,
//! in its order.

mod maps;
pub(crate) mod nulls;
pub(crate) mod ops;
pub(crate) mod planned;
mod plugin;
pub(crate) mod proxy;
pub(crate) mod raw;
pub(crate) mod regions;
pub(crate) mod shared;
mod table;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Error, Result};
use crate::host::ops::Ops;
use crate::host::plugin::Plugin;
use crate::host::proxy::Proxy;
use crate::host::regions::Regions;
use crate::host::shared::{Shared, Thread};
use crate::host::transport::{Given, Transport, UserChunk};
use crate::memory::address::{BufferId, Place, SymAddr};
use crate::memory::device_memory::{DeviceMemory, MemoryKind, UserMapped};
use crate::memory::faults::Faults;
use crate::memory::gpu::Gpu;
use crate::memory::local::{Local, Mapping};
use crate::memory::plain_copies::PlainCopies;
use crate::memory::spin::Spinner;
use crate::pe::bootstrap::Bootstrap;
use crate::pe::job::Job;
use crate::settings::PeSettings;

/// What a transport for the proxy has to offer for each PE.
const NEEDED: i32 = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ;

/// What makes the host treat a transport as peer-to-peer memory.
const MAPPED: i32 =
    c::NVT_CAP_MAP | c::NVT_CAP_MAP_GPU_ST | c::NVT_CAP_MAP_GPU_LD | c::NVT_CAP_MAP_GPU_ATOMICS;

/// A PE between initialisation and finalisation.
#[derive(Debug)]
pub struct Host<'a> {
    job: &'a Job,
    // Before `user`: it holds the shared state as well, and ends first.
    proxy: Proxy,
    user: Ops,
    shared: Arc<Shared>,
    /// Bytes of the heap handed out.
    used: AtomicU64,
    connected_in: Duration,
}

impl Job {
    /// Loads the plugin and brings it up as NVSHMEM's initialisation does. Collective. May be done
    /// again after [`Host::finalize`].
    ///
    /// # Errors
    /// What failed, on this PE or on another.
    pub fn init(&self) -> Result<Host<'_>> {
        Host::init(self)
    }
}

impl<'a> Host<'a> {
    pub(crate) fn init(job: &'a Job) -> Result<Host<'a>> {
        let host = Host::bring_up(job);
        host.map_err(|error| with_reason(error, &job.bootstrap))
    }

    fn bring_up(job: &'a Job) -> Result<Host<'a>> {
        let settings = &job.settings;
        let (layout, bootstrap) = (settings.layout, &job.bootstrap);
        let chunk = settings.chunk_bytes;
        let heap_bytes = settings.heap_bytes.max(1).next_multiple_of(chunk);
        let gpu = match settings.memory {
            MemoryKind::Host => None,
            _ => Some(Gpu::of_process(settings.pe)?),
        };
        if let Some(gpu) = gpu {
            gpu.make_current()?;
        }
        let Heap { heap, again } = Heap::new(settings, heap_bytes, gpu)?;

        let directory = (!settings.by_name).then_some(settings.plugin_dir.as_path());
        let plugin = Plugin::load(directory, layout)?;
        let mut transport = Transport::init(plugin, layout)?;
        let declared = transport.declared().clone();
        if !declared.initialized || declared.no_proxy {
            let text = "the transport does not say that it is initialised and wants a proxy";
            return Err(Error::Plugin(text.into()));
        }
        if declared.attr & c::NVT_ATTR_CONNECTED == 0 {
            return Err(Error::Plugin(format!("attr is {}: no endpoints", declared.attr)));
        }
        let given = Given {
            my_pe: settings.pe,
            n_pes: settings.n_pes,
            heap_base: heap.start(),
            log2_granularity: chunk.trailing_zeros(),
            dynamic_heap: settings.memory.is_vmm(),
            user_mapped: again.as_ref().map(|again| UserChunk {
                heap: heap.start() as usize + (heap.len() - again.len()) as usize,
                user: again.start() as usize,
                len: again.len() as usize,
                is_host: settings.user_mapped == Some(UserMapped::HostNuma),
            }),
        };
        transport.fill(given, bootstrap);
        let reach = Self::reach(job, &mut transport)?;
        // NVSHMEM exchanges who reaches whom.
        bootstrap.allgather(&reach)?;

        let left = settings.leaves_nics;
        let devices = if left { Vec::new() } else { choose_devices(&transport, bootstrap)? };
        let began = Instant::now();
        let connected = transport.connect(&devices);
        let connected_in = began.elapsed();
        // On an error 3.8 still comes to the barrier, the others do not.
        if connected.is_ok() || layout == Layout::V7 {
            let together = bootstrap.barrier();
            if connected.is_ok() {
                together?;
            }
        }
        if let Err(error) = connected {
            // 3.5 and later finalize the transport, older ones give up.
            if layout.major() >= Major::V4 {
                transport.finalize()?;
            }
            return Err(error);
        }

        let heap_bases = bootstrap.allgather_u64(heap.start() as u64)?;
        let max_op_len = declared.max_op_len;
        let regions = Regions::new(heap, again, heap_bases, chunk, settings.pe, max_op_len);
        let first = if settings.heap_grows { 0 } else { heap_bytes };
        regions.register_heap(first, &transport, bootstrap)?;

        let shared = Arc::new(Shared::new(transport, regions, settings.pe, settings.n_pes, gpu)?);
        let proxy = Proxy::start(shared.clone(), bootstrap.fatal(), settings.step_deadline)?;
        let user = Ops::new(shared.clone(), Thread::User);
        let host = Host { job, proxy, user, shared, used: AtomicU64::new(0), connected_in };
        bootstrap.barrier()?;
        Ok(host)
    }

    /// Asks for every PE, this one too, in order.
    fn reach(job: &Job, transport: &mut Transport) -> Result<Vec<u8>> {
        let settings = &job.settings;
        (0..settings.n_pes)
            .map(|pe| {
                let mut gpu_uuid = [0; 16];
                gpu_uuid[..4].copy_from_slice(&(pe + 1).to_le_bytes());
                let peer = c::nvt_pe_info {
                    pcie_id: c::nvt_pcie_id { dev_id: pe as i32, bus_id: 0, domain_id: 0 },
                    pe: pe as i32,
                    hostHash: 0x6e76_7368 + u64::from(settings.nodes.of(pe).number),
                    gpu_uuid,
                };
                let access = transport.can_reach_peer(peer)?;
                if access & NEEDED != NEEDED || access & MAPPED != 0 {
                    let text = format!("PE {pe} is not accessible: can_reach_peer said {access}");
                    return Err(Error::Plugin(text));
                }
                Ok(access as u8)
            })
            .collect()
    }

    /// What connecting the endpoints took here, the other PEs' part of it included.
    pub fn connected_in(&self) -> Duration {
        self.connected_in
    }

    /// Reserves memory in the symmetric heap, aligned to `align`. Collective: every PE asks for
    /// the same in the same order. Where the heap grows, chunks not used before are registered.
    ///
    /// # Errors
    /// The heap is full, or a registration failed, here or on another PE.
    pub fn alloc(&self, bytes: u64, align: u64) -> Result<SymAddr> {
        let heap = self.shared.regions.heap_bytes();
        let start = self.used.load(Ordering::Relaxed).next_multiple_of(align.max(1));
        let end = start.checked_add(bytes).filter(|end| *end <= heap);
        let end = end.ok_or_else(|| {
            Error::Usage(format!("{bytes} bytes more than {start} in a heap of {heap} bytes"))
        })?;
        self.shared
            .regions
            .register_heap(end, &self.shared.transport, &self.job.bootstrap)
            .map_err(|e| with_reason(e, &self.job.bootstrap))?;
        self.used.store(end, Ordering::Relaxed);
        Ok(SymAddr(start))
    }

    /// What this PE's heap is made of.
    pub fn memory(&self) -> MemoryKind {
        self.job.settings.memory
    }

    /// Registers a new buffer outside the heap, for the local side of transfers. `skip` is the
    /// offset of its first byte in a page. It is of the same memory as the heap; of plain device
    /// memory where the heap is of the VMM interface.
    ///
    /// # Errors
    /// The plugin refuses it.
    pub fn register(&self, bytes: u64, skip: u64) -> Result<BufferId> {
        self.register_in(self.memory().of_buffers(), bytes, skip)
    }

    /// As [`Host::register`], of a kind of its own: host or plain device memory. Where the PE has a
    /// device, host memory is page-locked first, as NVSHMEM does.
    ///
    /// # Errors
    /// The plugin refuses it, or this PE has no such memory.
    pub fn register_in(&self, kind: MemoryKind, bytes: u64, skip: u64) -> Result<BufferId> {
        let mut memory = Mapping::of_kind(kind, bytes + skip, self.shared.gpu)?;
        if let Some(gpu) = self.shared.gpu {
            memory.lock(gpu)?;
        }
        self.shared.regions.add_buffer(memory, bytes, skip, Some(&self.shared.transport))
    }

    /// Ends the registration of a buffer. Transfers that use it must be complete.
    ///
    /// # Errors
    /// There is no such buffer, or the plugin fails.
    pub fn unregister(&self, buffer: BufferId) -> Result<()> {
        self.shared.regions.release_buffer(buffer, &self.shared.transport)
    }

    /// Registers a buffer anew that was unregistered.
    ///
    /// # Errors
    /// The plugin refuses it, or the buffer is registered.
    pub fn register_again(&self, buffer: BufferId) -> Result<()> {
        self.shared.regions.register_again(buffer, &self.shared.transport)
    }

    /// A new buffer that is not registered: transfers pass no handle for it. Of the same memory as
    /// [`Host::register`]'s.
    ///
    /// # Errors
    /// There is no memory.
    pub fn unregistered(&self, bytes: u64) -> Result<BufferId> {
        self.unregistered_in(self.memory().of_buffers(), bytes)
    }

    /// As [`Host::unregistered`], of host or plain device memory. Host memory is pageable.
    ///
    /// # Errors
    /// There is no memory, or none of this kind.
    pub fn unregistered_in(&self, kind: MemoryKind, bytes: u64) -> Result<BufferId> {
        let memory = Mapping::of_kind(kind, bytes, self.shared.gpu)?;
        self.shared.regions.add_buffer(memory, bytes, 0, None)
    }

    /// The last chunk of the heap by its user's own address, and where it is in the heap; none when
    /// no user's buffer is mapped there.
    ///
    /// # Errors
    /// None in practice: the chunk is inside the heap.
    pub fn user_mapped(&self) -> Result<Option<(SymAddr, Local<'_>)>> {
        self.shared.regions.user_mapped()
    }

    /// Name and number of this PE's device; none when its heap is of host memory.
    pub fn device(&self) -> Option<String> {
        self.shared.gpu.map(Gpu::describe)
    }

    /// What can be done to this PE's device; none when its heap is of host memory.
    pub fn faults(&self) -> Option<Faults> {
        self.shared.gpu.map(Faults::of)
    }

    /// Copies of the driver alone, of up to so many bytes at a time; none when this PE's heap is of
    /// host memory. They must be gone before [`Host::finalize`].
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn plain_copies(&self, bytes: u64) -> Result<Option<PlainCopies>> {
        self.shared.gpu.map(|gpu| PlainCopies::new(gpu, bytes)).transpose()
    }

    /// Starts a kernel on this PE's device that stays until it is told to end. It must have ended
    /// before [`Host::finalize`], which frees memory.
    ///
    /// # Errors
    /// There is no device, or it does not start the kernel.
    pub fn spin(&self) -> Result<Spinner> {
        let gpu = self.shared.gpu;
        let gpu = gpu.ok_or_else(|| Error::Usage("this PE has no device".into()))?;
        Spinner::start(gpu, self.job.settings.step_deadline)
    }

    /// Memory of this PE.
    ///
    /// # Errors
    /// It is not all inside the heap or the buffer.
    pub fn local(&self, place: impl Into<Place>, len: u64) -> Result<Local<'_>> {
        self.shared.regions.local(place.into(), len)
    }

    /// The whole heap of this PE.
    ///
    /// # Errors
    /// None in practice: the heap is inside itself.
    pub fn heap(&self) -> Result<Local<'_>> {
        self.local(SymAddr(0), self.shared.regions.heap_bytes())
    }

    /// Waits for something in memory, as a kernel does that looks at it.
    ///
    /// # Errors
    /// The proxy thread has failed, which would have brought it, or the time of a wait is over; or
    /// what `done` gives.
    pub fn wait_until(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let (start, deadline) = (Instant::now(), self.job.settings.step_deadline);
        let fatal = self.job.bootstrap.fatal();
        while !done()? {
            if let Some(text) = fatal.get() {
                return Err(Error::Proxy(text.to_string()));
            }
            if start.elapsed() > deadline {
                return Err(Error::Timeout(format!(
                    "what was waited for has not come in {deadline:?}"
                )));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The operations of the user's thread. They may run while the proxy thread works.
    pub fn user(&self) -> &Ops {
        &self.user
    }

    /// The way to the proxy thread.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Completes everything issued from both kinds of threads, then waits for all PEs.
    ///
    /// # Errors
    /// What failed, on this PE or on another.
    pub fn barrier(&self) -> Result<()> {
        self.proxy.quiet()?;
        self.user.quiet()?;
        self.job.bootstrap.barrier()
    }

    /// Asks for queue pairs, as `nvshmemx_qp_create` does. Collective. Returns the indices: all 1
    /// from a plugin that declines. Not in layouts 3a and 3b.
    ///
    /// # Errors
    /// The plugin fails instead of declining.
    pub fn create_qps(&self, n: usize) -> Result<Vec<i32>> {
        self.shared.transport.create_qps(n)
    }

    /// What the plugin says about how atomics complete.
    pub fn atomics_complete_on_quiet(&self) -> bool {
        self.shared.transport.declared().atomics_complete_on_quiet
    }

    /// Lets the plugin print about itself.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn show_info(&self) -> Result<()> {
        self.shared.transport.show_info()
    }

    /// Flushes a region of this PE's user threads (layout 7); nothing where there are none.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn region_flush(&self, issuer: u64, region: u64) -> Result<()> {
        self.shared.transport.region_flush(c::NVT_REGION_ROLE_HOST, issuer, region)
    }

    /// Ends the PE in order: everything completed, all PEs together, the proxy thread stopped, the
    /// heap and then the buffers released, the transport finalized, the plugin unloaded where that
    /// version does so. Collective.
    ///
    /// # Errors
    /// What failed, on this PE or on another.
    pub fn finalize(self) -> Result<()> {
        let bootstrap = &self.job.bootstrap;
        self.barrier().map_err(|e| with_reason(e, bootstrap))?;
        let Host { proxy, user, shared, .. } = self;
        proxy.stop()?;
        drop(user);
        end(shared)
    }
}

impl Host<'_> {
    /// Ends the PE as a host does that has met an error and finalizes all the same: nothing is
    /// completed and nobody waited for. What cannot be released, as what has failed may still be
    /// under way, is freed after the transport's end. Not collective.
    ///
    /// # Errors
    /// The proxy thread does not end, or the plugin does not let its transport be taken down. That
    /// the proxy thread had failed is none.
    pub fn tear_down(self) -> Result<()> {
        let Host { proxy, user, shared, .. } = self;
        match proxy.stop() {
            Ok(()) | Err(Error::Proxy(_)) => {}
            Err(error) => return Err(error),
        }
        drop(user);
        let Shared { transport, regions, .. } = sole(shared)?;
        regions.release(&transport);
        transport.finalize()
    }
}

/// What nobody uses any more.
fn sole(shared: Arc<Shared>) -> Result<Shared> {
    Arc::try_unwrap(shared)
        .map_err(|_| Error::Usage("operations are still in use at finalize".into()))
}

/// Releases the heap and then the buffers, finalizes the transport, and unloads the plugin where
/// that version does so.
fn end(shared: Arc<Shared>) -> Result<()> {
    let Shared { transport, regions, .. } = sole(shared)?;
    regions.end(&transport)?;
    transport.finalize()
}

/// The symmetric heap's memory.
struct Heap {
    heap: Mapping,
    /// The last chunk by its user's own address, where a user's buffer is mapped.
    again: Option<Mapping>,
}

impl Heap {
    fn new(settings: &PeSettings, bytes: u64, gpu: Option<&'static Gpu>) -> Result<Heap> {
        let kind = settings.memory;
        let chunk = settings.chunk_bytes;
        let Some(gpu) = gpu else {
            return Ok(Heap { heap: Mapping::new(bytes, chunk)?, again: None });
        };
        if !kind.is_vmm() {
            return Ok(Heap { heap: Mapping::of_kind(kind, bytes, Some(gpu))?, again: None });
        }
        let step = (kind == MemoryKind::DeviceVmm).then_some(chunk as usize);
        let user = settings.user_mapped;
        if user.is_some() && step.is_none() {
            let text = "a user's buffer is a chunk, and here a chunk is several allocations";
            return Err(Error::Usage(text.into()));
        }
        let memory = DeviceMemory::map(gpu, bytes as usize, chunk as usize, step, user)?;
        let again = user.map(|user| memory.last_again(user == UserMapped::HostNuma)).transpose()?;
        Ok(Heap { heap: Mapping::of_device(memory), again: again.map(Mapping::of_device) })
    }
}

/// The NICs this PE gets, as indices into the plugin's list. None when the plugin has no list.
///
/// NVSHMEM prefers those near the GPU and balances the PEs of a host over them. Without a GPU all
/// are equally near, so it is the balance that remains.
fn choose_devices(transport: &Transport, bootstrap: &Bootstrap) -> Result<Vec<i32>> {
    let n = transport.device_paths()?.len();
    if n == 0 {
        return Ok(Vec::new());
    }
    let each = (n / bootstrap.npes_node() as usize).max(1);
    let first = bootstrap.mype_node() as usize * each;
    Ok((first..first + each).map(|i| (i % n) as i32).collect())
}

/// Adds why the job was ended, when that is what made a call fail.
fn with_reason(error: Error, bootstrap: &Bootstrap) -> Error {
    match (error, bootstrap.abort_reason()) {
        (Error::Status { call, status, .. }, Some(reason)) => {
            Error::Status { call, status, context: format!(" (the job had failed: {reason})") }
        }
        (error, _) => error,
    }
}
