//! A PE of a job: its channel, its heap, and kernels on them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::{AREAS, Form, KernelArgs};
use launcher::Place;
use nvshmem_transport_libfabric::bootstrap::{Bootstrap, BootstrapError, TcpBootstrap};
use nvshmem_transport_libfabric::channel::{Channel, ChannelError, MemoryLocation, Options};

use crate::job::launch::join;
use crate::machines::machine::{Machine, MachineError};
use crate::machines::reach::copy_near;

/// What a kernel may take.
const DEADLINE: Duration = Duration::from_secs(60);

impl From<ChannelError> for MachineError {
    fn from(error: ChannelError) -> Self {
        MachineError(error.to_string())
    }
}

/// The job's bootstrap, which the channel and the PE both use, one after the other.
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

/// The PEs of a process' job, which has several channels one after the other.
pub struct Job<'m> {
    pub(crate) machine: &'m dyn Machine,
    pub(crate) me: u32,
    pub(crate) n_pes: u32,
    meeting: Meeting,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("me", &self.me).finish_non_exhaustive()
    }
}

impl<'m> Job<'m> {
    /// Joins the others.
    ///
    /// # Errors
    /// They do not come together.
    pub fn new(machine: &'m dyn Machine, place: &Place) -> Result<Self, MachineError> {
        let (me, n_pes) = (place.me, place.n_pes);
        let meeting = Meeting(Arc::new(Mutex::new(join(place)?)));
        Ok(Self { machine, me, n_pes, meeting })
    }

    /// Every PE's bytes, one after the other; all have equally many.
    pub(crate) fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, MachineError> {
        self.meeting.clone().allgather(mine).map_err(|error| MachineError(error.to_string()))
    }

    /// A channel, with a heap of so many words an area.
    pub(crate) fn open(
        &self,
        location: MemoryLocation,
        (rings, slots): (u32, u64),
        area: usize,
    ) -> Result<Pe<'_>, MachineError> {
        let options = Options { rings, slots, ..Options::from_env()? };
        let channel = Channel::new(Box::new(self.meeting.clone()), &options)?;
        let heap = channel.allocate_symmetric_on(location, 8 * AREAS * area)? as usize;
        Ok(Pe { job: self, channel, location, heap, area })
    }
}

/// See the module.
pub(crate) struct Pe<'j> {
    pub(crate) job: &'j Job<'j>,
    pub(crate) channel: Channel,
    pub(crate) location: MemoryLocation,
    pub(crate) heap: usize,
    area: usize,
}

/// What a kernel has told.
pub(crate) struct Told {
    /// By thread.
    pub(crate) out: Vec<u64>,
    /// From launch to end, in nanoseconds.
    pub(crate) time: f64,
}

impl Pe<'_> {
    /// Where an area of the heap begins.
    pub(crate) fn at(&self, area: usize) -> usize {
        assert!(area < AREAS, "there is no area {area}");
        self.heap + 8 * area * self.area
    }

    /// Sets the first words of an area, which no kernel and no peer uses meanwhile.
    pub(crate) fn write(&self, area: usize, words: &[u64]) -> Result<(), MachineError> {
        assert!(words.len() <= self.area * (AREAS - area), "{} words", words.len());
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match self.location {
            MemoryLocation::Device => self.job.machine.write(self.at(area), &bytes),
            MemoryLocation::Host => {
                // SAFETY: within the heap, by the assertion.
                unsafe { copy_near(bytes.as_ptr() as usize, self.at(area), bytes.len()) };
                Ok(())
            }
        }
    }

    /// The first bytes from an area on, which no peer changes meanwhile.
    pub(crate) fn read(&self, area: usize, len: usize) -> Result<Vec<u8>, MachineError> {
        assert!(len <= 8 * self.area * (AREAS - area), "{len} bytes");
        let mut bytes = vec![0; len];
        match self.location {
            MemoryLocation::Device => self.job.machine.read(self.at(area), &mut bytes)?,
            MemoryLocation::Host => {
                // SAFETY: within the heap, by the assertion.
                unsafe { copy_near(self.at(area), bytes.as_mut_ptr() as usize, len) };
            }
        }
        Ok(bytes)
    }

    /// Runs a kernel to its end.
    pub(crate) fn kernel(
        &self,
        name: &str,
        form: Form,
        rounds: u64,
        bytes: usize,
        (blocks, threads): (u32, u32),
    ) -> Result<Told, MachineError> {
        let count = (blocks * threads) as usize;
        let machine = self.job.machine;
        let (status, out) = (machine.shared(4 * count)?, machine.shared(8 * count)?);
        let args = KernelArgs {
            ctx: self.channel.context(),
            heap: self.heap as *mut u64,
            status: status.addr as *mut i32,
            out: out.addr as *mut u64,
            area: self.area as u64,
            rounds,
            bytes: bytes as u64,
            form,
            flags: 0,
        };
        let me = self.job.me;
        let since = Instant::now();
        // SAFETY: the channel and all memory stay until the kernel has ended; if it does not, this
        // process ends.
        let mut running = unsafe { machine.launch(name, args, blocks, threads) }?;
        while !running.is_done()? {
            if since.elapsed() > DEADLINE {
                eprintln!("PE {me}: {name} does not end: {:?}", self.channel.error());
                std::process::abort();
            }
            thread::yield_now();
        }
        let time = since.elapsed().as_nanos() as f64;
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
        let out = |thread| unsafe { (out.addr as *const u64).add(thread).read_volatile() };
        Ok(Told { out: (0..count).map(out).collect(), time })
    }
}
