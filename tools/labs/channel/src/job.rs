//! A PE of the job: its channel, its heap, and kernels on them.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::{Form, KernelArgs};
use nvshmem_sim::BoxError;
use nvshmem_transport_libfabric::bootstrap::{Bootstrap, BootstrapError, TcpBootstrap, TcpOptions};
use nvshmem_transport_libfabric::channel::{Channel, ChannelError, MemoryLocation, Options};

use crate::image::{AREA, HEAP};
use crate::machines::{Machine, MachineError, Memory};

const DEADLINE: Duration = Duration::from_secs(60);

/// Most threads of a kernel.
const THREADS: usize = 512;

impl From<ChannelError> for MachineError {
    fn from(error: ChannelError) -> Self {
        MachineError(error.to_string())
    }
}

/// All channels of the job, and the checks: heaps of all PEs are compared, which takes many bytes.
#[derive(Clone)]
struct Meeting(Arc<Mutex<TcpBootstrap>>);

impl Bootstrap for Meeting {
    fn n_pes(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).n_pes()
    }

    fn me(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).me()
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allgather(mine)
    }
}

/// Joins PE 0, whose port goes to the others by the simulator.
fn join(pe: &nvshmem_sim::Job) -> Result<TcpBootstrap, BoxError> {
    let (me, n_pes) = (pe.pe, pe.n_pes());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ports = pe.bootstrap.allgather(&listener.local_addr()?.port().to_le_bytes())?;
    let address = format!("127.0.0.1:{}", u16::from_le_bytes([ports[0], ports[1]]));
    let options = TcpOptions { address, me, n_pes, job: 1, patience: Duration::from_secs(60) };
    match me {
        0 => Ok(TcpBootstrap::center(options, listener, &|_| true)?),
        _ => Ok(TcpBootstrap::join(options)?),
    }
}

/// The job as one of its PEs knows it. It has several channels, one after the other.
pub(crate) struct Job<'m> {
    pub(crate) machine: &'m dyn Machine,
    pub(crate) me: u32,
    meeting: Meeting,
}

impl<'m> Job<'m> {
    pub(crate) fn new(
        machine: &'m dyn Machine,
        pe: &nvshmem_sim::Job,
    ) -> Result<Self, MachineError> {
        let met = join(pe).map_err(|error| MachineError(error.to_string()))?;
        Ok(Self { machine, me: pe.pe, meeting: Meeting(Arc::new(Mutex::new(met))) })
    }

    /// Returns every PE's bytes, one after the other; all have equally many.
    pub(crate) fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, MachineError> {
        self.meeting.clone().allgather(mine).map_err(|error| MachineError(error.to_string()))
    }

    pub(crate) fn open(
        &self,
        location: MemoryLocation,
        (rings, slots): (u32, u64),
    ) -> Result<Pe<'_>, MachineError> {
        let options = Options { rings, slots, ..Options::from_env()? };
        let channel = Channel::new(Box::new(self.meeting.clone()), &options)?;
        let heap = channel.allocate_symmetric_on(location, HEAP)? as usize;
        let status = self.machine.shared(4 * THREADS)?;
        let out = self.machine.shared(8 * THREADS)?;
        // The kernel `errors` puts from there; and to there, which peers do not have.
        // SAFETY: it goes after the channel.
        unsafe { channel.register_local(out.addr as *mut u8, out.len) }?;
        Ok(Pe { job: self, channel, location, heap, status, out })
    }
}

pub(crate) struct Pe<'j> {
    pub(crate) job: &'j Job<'j>,
    pub(crate) channel: Channel,
    location: MemoryLocation,
    heap: usize,
    status: Memory,
    out: Memory,
}

impl Pe<'_> {
    /// Sets the whole heap. No kernel runs meanwhile, here or at a peer.
    pub(crate) fn write(&self, words: &[u64]) -> Result<(), MachineError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(bytes.len() == HEAP, "{} bytes", bytes.len());
        match self.location {
            MemoryLocation::Device => self.job.machine.write(self.heap, &bytes),
            MemoryLocation::Host => {
                // SAFETY: the heap is that long, and nobody uses it now.
                unsafe { (self.heap as *mut u8).copy_from(bytes.as_ptr(), HEAP) };
                Ok(())
            }
        }
    }

    /// Returns the whole heap. No kernel runs meanwhile, here or at a peer.
    pub(crate) fn read(&self) -> Result<Vec<u8>, MachineError> {
        let mut bytes = vec![0; HEAP];
        match self.location {
            MemoryLocation::Device => self.job.machine.read(self.heap, &mut bytes)?,
            // SAFETY: the heap is that long, and nobody writes to it now.
            MemoryLocation::Host => unsafe {
                bytes.as_mut_ptr().copy_from(self.heap as *const u8, HEAP);
            },
        }
        Ok(bytes)
    }

    /// Runs a kernel to its end, and returns what each thread has told.
    pub(crate) fn kernel(
        &self,
        name: &str,
        form: Form,
        rounds: u64,
        bytes: u64,
        (blocks, threads): (u32, u32),
    ) -> Result<Vec<u64>, MachineError> {
        let count = (blocks * threads) as usize;
        assert!(count <= THREADS, "{count} threads");
        let Self { status, out, .. } = self;
        for memory in [status, out] {
            // SAFETY: no kernel runs.
            unsafe { (memory.addr as *mut u8).write_bytes(0, memory.len) };
        }
        let args = KernelArgs {
            ctx: self.channel.context(),
            heap: self.heap as *mut u64,
            status: status.addr as *mut i32,
            out: out.addr as *mut u64,
            area: AREA,
            rounds,
            bytes,
            form,
            flags: 0,
        };
        let me = self.job.me;
        let since = Instant::now();
        // SAFETY: the channel and all memory stay until the kernel has ended; if it does not, this
        // process ends.
        let mut has_ended = unsafe { self.job.machine.launch(name, args, blocks, threads) }?;
        while !has_ended()? {
            if since.elapsed() > DEADLINE {
                eprintln!("PE {me}: {name} does not end: {:?}", self.channel.error());
                std::process::abort();
            }
            thread::yield_now();
        }
        for thread in 0..count {
            // SAFETY: one of each thread.
            let status = unsafe { (status.addr as *const i32).add(thread).read_volatile() };
            if status != 0 {
                let why = self.channel.error();
                return Err(MachineError(format!(
                    "PE {me}: {name}: thread {thread}: error {status}: {why:?}"
                )));
            }
        }
        // SAFETY: the same.
        let told = |thread| unsafe { (out.addr as *const u64).add(thread).read_volatile() };
        Ok((0..count).map(told).collect())
    }
}
