//! The whole way: kernels of two PEs, each in a process of its own, with their channels and a fabric between.
//!
//! Both PEs may be on one GPU. Then their kernels take turns, unless CUDA's multi-process service runs, and no
//! time means anything.

use std::env;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::{AREAS, Form, KernelArgs};
use nvshmem_transport_libfabric::channel::bootstrap::{TcpBootstrap, TcpOptions};
use nvshmem_transport_libfabric::channel::{Channel, ChannelError, Options};

use crate::machine::{Machine, MachineError};

/// What a process of the job is told: its PE, and PE 0's port.
const PE: &str = "CHANNEL_RUN_PE";
const PORT: &str = "CHANNEL_RUN_PORT";

/// Words in an area of the heap: 4 MiB.
const AREA: usize = 1 << 19;

/// Areas of the heap, as kernels have them.
const DST: usize = 0;
const SRC: usize = 1;

const N_PES: u32 = 2;
const DEADLINE: Duration = Duration::from_secs(120);

impl From<ChannelError> for MachineError {
    fn from(error: ChannelError) -> Self {
        MachineError(error.to_string())
    }
}

/// This process' PE, if it is one of a job.
pub fn this_pe() -> Option<u32> {
    env::var(PE).ok()?.parse().ok()
}

/// Starts this program once for each PE, with these arguments, and waits for both.
///
/// # Errors
/// One does not end well.
pub fn start(arguments: &[String]) -> Result<(), MachineError> {
    let io = |error: std::io::Error| MachineError(error.to_string());
    // PE 0 gets the socket itself, as its standard input.
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let start = |pe: u32| {
        let mut command = Command::new(env::current_exe()?);
        command.args(arguments).env(PE, pe.to_string()).env(PORT, port.to_string());
        let input =
            if pe == 0 { OwnedFd::from(listener.try_clone()?).into() } else { Stdio::null() };
        command.stdin(input).spawn()
    };
    let mut children: Vec<Child> = (0..N_PES).map(start).collect::<Result<_, _>>().map_err(io)?;
    let since = Instant::now();
    let mut failed = None;
    let mut ended = [false; N_PES as usize];
    while !ended.iter().all(|ended| *ended) {
        for (pe, child) in children.iter_mut().enumerate() {
            if ended[pe] {
                continue;
            }
            let status = child.try_wait().map_err(io)?;
            ended[pe] = status.is_some();
            if let Some(status) = status.filter(|status| !status.success()) {
                failed.get_or_insert(format!("PE {pe}: {status}"));
            }
            if !ended[pe] && (failed.is_some() || since.elapsed() > DEADLINE) {
                failed.get_or_insert(format!("PE {pe} does not end"));
                let _ = child.kill();
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    failed.map_or(Ok(()), |text| Err(MachineError(text)))
}

/// A PE's part. PE 0 prints. `share`: of what a GPU has to do, one part in so many is enough.
///
/// # Errors
/// Something is wrong with the channel or the data.
pub fn run(machine: &dyn Machine, me: u32, prefix: &str, share: u64) -> Result<(), MachineError> {
    let port = env::var(PORT).unwrap_or_default();
    let address = format!("127.0.0.1:{port}");
    let options =
        TcpOptions { address, me, n_pes: N_PES, job: 1, patience: Duration::from_secs(60) };
    let joined = if me == 0 {
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| MachineError(error.to_string()))?;
        TcpBootstrap::center(options, socket.into())
    } else {
        TcpBootstrap::join(options)
    };
    let joined = joined.map_err(|error| MachineError(error.to_string()))?;
    let options = Options { rings: 4, slots: 4096, ..Options::from_env()? };
    let channel = Channel::new(Box::new(joined), &options)?;
    let heap = channel.allocate_symmetric(8 * AREAS * AREA)? as usize;
    let job = Job { machine, channel, heap, me };
    if me == 0 {
        println!("channel of 2 PEs on {}", machine.name());
    }
    for (bytes, rounds) in [(8, 2000), (4096, 1000), (1 << 20, 100)] {
        let time = job.ping_pong(bytes, rounds / share)?;
        job.told(&format!("{prefix}_put_signal_{bytes}_bytes_one_way_us"), time / 2e3);
    }
    for bytes in [4096_usize, 65_536, 1 << 20] {
        let rate = job.bandwidth(1, bytes, ((256 << 20) / bytes).min(4000) as u64 / share)?;
        job.told(&format!("{prefix}_put_bandwidth_{bytes}_bytes_GBs"), rate * bytes as f64 / 1e9);
    }
    for threads in [1, 32, 256] {
        let rate = job.bandwidth(threads, 8, (20_000 / u64::from(threads) + 200) / share)?;
        job.told(&format!("{prefix}_puts_8_bytes_{threads}_threads_per_second"), rate);
    }
    Ok(job.channel.stop()?)
}

struct Job<'a> {
    machine: &'a dyn Machine,
    channel: Channel,
    heap: usize,
    me: u32,
}

impl Job<'_> {
    fn told(&self, name: &str, value: f64) {
        if self.me == 0 {
            println!("MEASURE {name} {value:.3}");
        }
    }

    fn word(&self, area: usize, index: usize) -> *mut u64 {
        assert!(area < AREAS && index < AREA);
        (self.heap + 8 * (area * AREA + index)) as *mut u64
    }

    /// The word at a place of what a PE puts in a round of measuring.
    fn content(pe: u32, salt: usize, index: usize) -> u64 {
        (u64::from(pe) << 56)
            ^ ((salt as u64) << 40)
            ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Fills the first `words` of the source, and empties all that peers write to.
    fn prepare(&self, salt: usize, words: usize) -> Result<(), MachineError> {
        self.channel.barrier()?;
        for area in 0..AREAS {
            for index in 0..words.max(16) {
                let value = if area == SRC { Self::content(self.me, salt, index) } else { 0 };
                // SAFETY: within the heap, which no kernel and no peer uses between two barriers.
                unsafe { self.word(area, index).write_volatile(value) };
            }
        }
        Ok(self.channel.barrier()?)
    }

    /// Whether what the peer has put is here.
    fn verify(&self, salt: usize, words: usize) -> Result<(), MachineError> {
        for index in 0..words {
            // SAFETY: within the heap, to which the peer has put before the barrier.
            let found = unsafe { self.word(DST, index).read_volatile() };
            let expected = Self::content(1 - self.me, salt, index);
            if found != expected {
                return Err(MachineError(format!(
                    "PE {}: word {index} of {words} is {found:#x}, not {expected:#x}",
                    self.me
                )));
            }
        }
        Ok(())
    }

    /// Runs a kernel to its end. How long it took, in nanoseconds.
    fn kernel(
        &self,
        name: &str,
        rounds: u64,
        bytes: usize,
        (blocks, threads): (u32, u32),
    ) -> Result<f64, MachineError> {
        let count = (blocks * threads) as usize;
        let (status, out) = (self.machine.shared(4 * count)?, self.machine.shared(8 * count)?);
        let args = KernelArgs {
            ctx: self.channel.context(),
            heap: self.heap as *mut u64,
            status: status.addr as *mut i32,
            out: out.addr as *mut u64,
            area: AREA as u64,
            rounds,
            bytes: bytes as u64,
            form: Form::Thread,
            flags: 0,
        };
        let since = Instant::now();
        // SAFETY: the channel and all memory stay until the kernel has ended; if it does not, this process
        // ends.
        let mut running = unsafe { self.machine.launch(name, args, blocks, threads) }?;
        while !running.is_done()? {
            if since.elapsed() > DEADLINE / 2 {
                eprintln!("PE {}: {name} does not end: {:?}", self.me, self.channel.error());
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
                    "{name}: thread {thread}: error {status}: {why:?}"
                )));
            }
        }
        Ok(time)
    }

    /// Nanoseconds of a round: there and back.
    fn ping_pong(&self, bytes: usize, rounds: u64) -> Result<f64, MachineError> {
        let mut time = 0.0;
        // The first one connects, and loads code.
        for rounds in [rounds / 10 + 1, rounds] {
            self.prepare(bytes, bytes / 8)?;
            time = self.kernel("ping_pong", rounds, bytes, (1, 1))? / rounds as f64;
            self.channel.barrier()?;
            self.verify(bytes, bytes / 8)?;
        }
        Ok(time)
    }

    /// Puts a second from PE 0 to PE 1, delivered.
    fn bandwidth(&self, threads: u32, bytes: usize, rounds: u64) -> Result<f64, MachineError> {
        let words = threads as usize * bytes / 8;
        let warp = self.machine.warp().min(threads);
        let mut rate = 0.0;
        for rounds in [rounds / 10 + 1, rounds] {
            self.prepare(bytes + 1, words)?;
            if self.me == 0 {
                let time = self.kernel("put_bandwidth", rounds, bytes, (threads / warp, warp))?;
                rate = rounds as f64 * f64::from(threads) * 1e9 / time;
            }
            self.channel.barrier()?;
            if self.me == 1 {
                self.verify(bytes + 1, words)?;
            }
        }
        Ok(rate)
    }
}
