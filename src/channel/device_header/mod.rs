//! The device header, compiled for CPU threads, at one end of a channel's memory.

mod descriptors;
mod producers;
mod regions;
mod words;

use std::ffi::CStr;
use std::thread;
use std::time::{Duration, Instant};

use channel_producer::{Form, KernelArgs, Producer, run, set_block, size_of_args};
use channel_sys as c;

use crate::channel::memory::shared::{Fault, Shared, Sizes};
use crate::channel::ring::Ring;
use crate::channel::ring::descriptor::{RegionAddr, RegionIndex};
use crate::channel::ring::region_entry::ShownRegion;
use cuda::WordsOptions;

/// Where the one region is said to be. Nobody follows the addresses.
const BASE: u64 = 1 << 44;
const REGION_BYTES: u64 = 1 << 36;

/// How long a test may wait for what must come.
const DEADLINE: Duration = Duration::from_secs(180);

pub(super) fn region_addr(region: u8, offset: u64) -> RegionAddr {
    RegionAddr::new(RegionIndex::new(region).unwrap(), offset).unwrap()
}

/// PE 0 of two.
fn shared(rings: u32, slots_log2: u32, spins: u64) -> Shared {
    Shared::new(Sizes { rings, slots_log2 }, 0, 2, spins, &WordsOptions::default()).unwrap()
}

/// The calling thread, as block 0.
fn producer(shared: &Shared) -> Producer {
    set_block(0);
    // SAFETY: the tests keep the context; nobody follows addresses of its regions.
    unsafe { Producer::new(shared.context()) }
}

struct Bed {
    shared: Shared,
    rings: Vec<Ring>,
}

impl Bed {
    fn new(n_rings: u32, slots_log2: u32, spins: u64) -> Self {
        let shared = shared(n_rings, slots_log2, spins);
        let region = ShownRegion { base: BASE, len: REGION_BYTES, symmetric: true };
        shared.set_region(0, region, 1).unwrap();
        // SAFETY: once, and the bed keeps the memory.
        let rings = unsafe { shared.rings() }.unwrap();
        Self { shared, rings }
    }

    fn context(&self) -> *mut c::nlf_context {
        self.shared.context().cast_mut()
    }

    fn error(&self) -> Option<c::nlf_error> {
        self.shared.fault().map(|Fault(error)| error)
    }

    /// Runs a kernel on `threads` CPU threads, and `consume` with the rings meanwhile until it says
    /// that it has finished. Returns statuses and `out` of the threads.
    fn run(
        &mut self,
        kernel: &'static CStr,
        threads: u64,
        rounds: u64,
        mut consume: impl FnMut(&mut [Ring], &Shared) -> bool,
    ) -> (Vec<i32>, Vec<u64>) {
        assert_eq!(size_of_args(), size_of::<KernelArgs>());
        let mut status = vec![0; threads as usize];
        let mut out = vec![0; threads as usize];
        let args = KernelArgs {
            ctx: self.shared.context(),
            heap: BASE as *mut u64,
            status: status.as_mut_ptr(),
            out: out.as_mut_ptr(),
            area: 0,
            rounds,
            bytes: 0,
            form: Form::Thread,
            flags: 0,
        };
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || {
                        let args = args;
                        // SAFETY: the context outlives the scope; the arrays have one entry for
                        // each thread; the kernels of these tests follow no address of the heap.
                        unsafe { run(kernel, &args, thread, threads) }
                    })
                })
                .collect();
            let since = Instant::now();
            while !consume(&mut self.rings, &self.shared) {
                assert!(since.elapsed() < DEADLINE, "the rings do not get on");
                thread::yield_now();
            }
            for thread in running {
                thread.join().unwrap();
            }
        });
        (status, out)
    }
}
