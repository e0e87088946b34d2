//! NVSHMEM's host library, as far as a remote transport can tell: its initialisation and its end,
//! in its order.

mod maps;
pub(crate) mod ops;
mod plugin;
pub(crate) mod proxy;
pub(crate) mod regions;
mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nvshmem_abi::{Major, c};

use crate::error::{Result, error};
use crate::host::ops::{Ops, Shared, Thread};
use crate::host::plugin::Plugin;
use crate::host::proxy::Proxy;
use crate::host::regions::Regions;
use crate::host::transport::Transport;
use crate::memory::address::{BufferId, Place, SymAddr};
use crate::memory::device_memory::{DeviceMemory, MemoryKind, UserMapped};
use crate::memory::gpu::Gpu;
use crate::memory::local::{Local, Mapping, word};
use crate::memory::spin::Spinner;
use crate::pe::job::Job;

const NEEDED: i32 = c::NVT_CAP_CPU_WRITE | c::NVT_CAP_CPU_READ;

const MAPPED: i32 =
    c::NVT_CAP_MAP | c::NVT_CAP_MAP_GPU_ST | c::NVT_CAP_MAP_GPU_LD | c::NVT_CAP_MAP_GPU_ATOMICS;

/// A PE between initialisation and finalisation. Its methods fail with the plugin's status, with
/// what has failed on another PE, or for a place that does not exist.
#[derive(Debug)]
pub struct Host<'a> {
    job: &'a Job,
    // Before `user`: it holds the shared state as well, and ends first.
    pub proxy: Proxy,
    pub user: Ops,
    shared: Arc<Shared>,
    used: AtomicU64,
    /// What connecting the endpoints took here, the other PEs' part of it included.
    pub connected_in: Duration,
}

impl Job {
    /// Loads the plugin and brings it up as NVSHMEM's initialisation does. Collective. May be done
    /// again after [`Host::finalize`].
    pub fn init(&self) -> Result<Host<'_>> {
        let (job, settings, me, memory) = (self, &self.settings, self.pe, self.settings.memory);
        let (layout, bootstrap) = (settings.layout, &job.bootstrap);
        let chunk = settings.chunk_bytes;
        let heap_bytes = settings.heap_bytes.max(1).next_multiple_of(chunk);
        let gpu = (memory != MemoryKind::Host).then(|| Gpu::of_process(me)).transpose()?;
        gpu.map_or(Ok(()), Gpu::make_current)?;
        let (heap, again) = new_heap(job, heap_bytes, gpu)?;

        let plugin = Plugin::load(&settings.plugin_dir, layout)?;
        let mut transport = Transport::init(plugin, layout)?;
        transport.fill(job, &heap, again.as_ref());
        let reach = reach(job, &mut transport)?;
        // NVSHMEM exchanges who reaches whom.
        bootstrap.allgather(&reach)?;

        let left = settings.leaves_nics;
        let devices = if left { Vec::new() } else { choose_devices(job, &transport)? };
        let began = Instant::now();
        let connected = transport.connect(&devices);
        let connected_in = began.elapsed();
        // On an error 3.8 still comes to the barrier, the others do not; 3.5 and later finalize the
        // transport, older ones give up.
        let (meets, finalizes) = match layout.major() {
            Major::V3 => (false, false),
            Major::V4 | Major::V5 | Major::V6 => (false, true),
            Major::V7 => (true, true),
        };
        if let Err(error) = connected {
            if meets {
                let _ = bootstrap.barrier();
            }
            if finalizes {
                transport.finalize()?;
            }
            return Err(error);
        }
        bootstrap.barrier()?;

        let bases = bootstrap.allgather(&(heap.start as u64).to_le_bytes())?;
        let bases = bases.chunks_exact(8).map(word);
        let most = transport.max_op_len;
        let regions = Regions::new(heap, again, bases.collect(), chunk, me, most);
        let first = if settings.heap_grows { 0 } else { heap_bytes };
        regions.register_heap(first, &transport, bootstrap)?;

        let shared = Arc::new(Shared { transport, regions, gpu });
        let proxy = Proxy::start(shared.clone(), bootstrap.fatal.clone(), settings.step_deadline)?;
        let user = Ops::new(shared.clone(), Thread::User)?;
        let host = Host { job, proxy, user, shared, used: AtomicU64::new(0), connected_in };
        bootstrap.barrier()?;
        Ok(host)
    }
}

impl Host<'_> {
    /// Reserves memory in the symmetric heap, aligned to `align`. Collective: every PE asks for
    /// the same in the same order. Where the heap grows, chunks not used before are registered.
    pub fn alloc(&self, bytes: u64, align: u64) -> Result<SymAddr> {
        let (Shared { transport, regions, .. }, bootstrap) = (&*self.shared, &self.job.bootstrap);
        let heap = regions.heap.len();
        let start = self.used.load(Ordering::Relaxed).next_multiple_of(align.max(1));
        let end = start.checked_add(bytes).filter(|end| *end <= heap);
        let end =
            end.ok_or_else(|| error!("{bytes} bytes more than {start} in a heap of {heap} bytes"))?;
        regions.register_heap(end, transport, bootstrap)?;
        self.used.store(end, Ordering::Relaxed);
        Ok(SymAddr(start))
    }

    /// Registers a new buffer outside the heap, for the local side of transfers, of host or plain
    /// device memory. `skip` is the offset of its first byte in a page.
    pub fn register(&self, kind: MemoryKind, bytes: u64, skip: u64) -> Result<BufferId> {
        let memory = Mapping::of_kind(kind, bytes + skip, self.shared.gpu)?;
        self.shared.regions.add_buffer(memory, bytes, skip, Some(&self.shared.transport))
    }

    pub fn unregister(&self, buffer: BufferId) -> Result<()> {
        self.shared.regions.release_buffer(buffer, &self.shared.transport)
    }

    /// A new buffer that is not registered: transfers pass no handle for it. Host memory is
    /// pageable.
    pub fn unregistered(&self, kind: MemoryKind, bytes: u64) -> Result<BufferId> {
        let memory = Mapping::of_kind(kind, bytes, self.shared.gpu)?;
        self.shared.regions.add_buffer(memory, bytes, 0, None)
    }

    /// The last chunk of the heap by its user's own address, and where it is in the heap; none when
    /// no user's buffer is mapped there.
    pub fn user_mapped(&self) -> Result<Option<(SymAddr, Local<'_>)>> {
        let Regions { heap, again: Some(again), .. } = &self.shared.regions else {
            return Ok(None);
        };
        let at = SymAddr(heap.len() - again.len());
        Ok(Some((at, Local::of(again, 0, again.len())?)))
    }

    /// Starts a kernel on this PE's device, if it has one, that stays until it is told to end. It
    /// must have ended before [`Host::finalize`], which frees memory.
    pub(crate) fn spin(&self) -> Result<Option<Spinner>> {
        let deadline = self.job.settings.step_deadline;
        self.shared.gpu.map(|gpu| Spinner::start(gpu, deadline)).transpose()
    }

    pub fn local(&self, place: impl Into<Place>, len: u64) -> Result<Local<'_>> {
        self.shared.regions.local(place.into(), len)
    }

    /// Waits for something in memory, as a kernel does that looks at it. Fails when the proxy
    /// thread has failed, which would have brought it, or the time of a wait is over.
    pub fn wait_until(&self, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let (start, deadline) = (Instant::now(), self.job.settings.step_deadline);
        let fatal = &self.job.bootstrap.fatal;
        while !done()? {
            fatal.check()?;
            if start.elapsed() > deadline {
                return Err(error!("what was waited for has not come in {deadline:?}"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Completes everything issued from both kinds of threads, then waits for all PEs.
    pub fn barrier(&self) -> Result<()> {
        self.proxy.quiet()?;
        self.user.quiet()?;
        self.job.bootstrap.barrier()
    }

    /// Asks for queue pairs, as `nvshmemx_qp_create` does. Collective. Returns the indices: all 1
    /// from a plugin that declines. Not in layouts 3a and 3b.
    pub fn create_qps(&self, n: usize) -> Result<Vec<i32>> {
        self.shared.transport.create_qps(n)
    }

    pub fn show_info(&self) -> Result<()> {
        self.shared.transport.show_info()
    }

    /// Ends the PE in order: everything completed, all PEs together, the proxy thread stopped, the
    /// heap and then the buffers released, the transport finalized, the plugin unloaded where that
    /// version does so. Collective.
    pub fn finalize(self) -> Result<()> {
        let bootstrap = &self.job.bootstrap;
        self.barrier()?;
        let Host { proxy, user, shared, .. } = self;
        proxy.stop()?;
        bootstrap.fatal.check()?;
        drop(user);
        let Shared { transport, regions, .. } = sole(shared)?;
        regions.release(&transport)?;
        drop(regions);
        transport.finalize()
    }

    /// Ends the PE as a host does that has met an error and finalizes all the same: nothing is
    /// completed and nobody waited for. What cannot be released, as what has failed may still be
    /// under way, is freed after the transport's end. Not collective. That the proxy thread had
    /// failed is no error.
    pub fn tear_down(self) -> Result<()> {
        let Host { proxy, user, shared, .. } = self;
        proxy.stop()?;
        drop(user);
        let Shared { transport, regions, .. } = sole(shared)?;
        let _ = regions.release(&transport);
        transport.finalize()
    }
}

fn sole(shared: Arc<Shared>) -> Result<Shared> {
    Arc::try_unwrap(shared).map_err(|_| error!("operations are still in use at finalize"))
}

fn reach(job: &Job, transport: &mut Transport) -> Result<Vec<u8>> {
    let ask = |pe: u32| {
        let mut gpu_uuid = [0; 16];
        gpu_uuid[..4].copy_from_slice(&(pe + 1).to_le_bytes());
        let access = transport.can_reach_peer(c::nvt_pe_info {
            pcie_id: c::nvt_pcie_id { dev_id: pe as i32, bus_id: 0, domain_id: 0 },
            pe: pe as i32,
            hostHash: 0x6e76_7368 + u64::from(job.settings.node_of(pe).0),
            gpu_uuid,
        })?;
        if access & NEEDED != NEEDED || access & MAPPED != 0 {
            return Err(error!("plugin: PE {pe} is not accessible: can_reach_peer said {access}"));
        }
        Ok(access as u8)
    };
    (0..job.settings.n_pes).map(ask).collect()
}

fn new_heap(
    job: &Job,
    bytes: u64,
    gpu: Option<&'static Gpu>,
) -> Result<(Mapping, Option<Mapping>)> {
    let (kind, chunk, user) =
        (job.settings.memory, job.settings.chunk_bytes, job.settings.user_mapped);
    let Some(gpu) = gpu else { return Ok((Mapping::new(bytes, chunk)?, None)) };
    if kind == MemoryKind::Device {
        return Ok((Mapping::of_kind(kind, bytes, Some(gpu))?, None));
    }
    let memory = DeviceMemory::map(gpu, bytes as usize, chunk as usize, user)?;
    let again = user.map(|user| memory.last_again(user == UserMapped::HostNuma)).transpose()?;
    Ok((Mapping::of_device(memory), again.map(Mapping::of_device)))
}

/// The NICs this PE gets, as indices into the plugin's list. None when the plugin has no list.
///
/// NVSHMEM prefers those near the GPU and balances the PEs of a host over them. Without a GPU all
/// are equally near, so it is the balance that remains.
fn choose_devices(job: &Job, transport: &Transport) -> Result<Vec<i32>> {
    let n = transport.n_devices()?;
    if n == 0 {
        return Ok(Vec::new());
    }
    let (first, pes) = job.settings.node_of(job.pe);
    let each = (n / pes as usize).max(1);
    let first = (job.pe - first) as usize * each;
    Ok((first..first + each).map(|i| (i % n) as i32).collect())
}
