//! A context with its consumers, and CPU threads that put into its rings what kernels would.

use std::thread;
use std::time::{Duration, Instant};

use channel_producer::{ContextOptions, Form, HostContext, KernelArgs, run, size_of_args};
use channel_sys::{NLF_REGION_SYMMETRIC, nlf_region};
use nvshmem_transport_libfabric::channel::ring::{PublishedIn, Ring, RingMemory};

/// Where the one region is said to be. Nobody follows the addresses.
pub(crate) const BASE: u64 = 1 << 44;
pub(crate) const REGION_BYTES: u64 = 1 << 36;

/// How long a test may wait for what must come.
const DEADLINE: Duration = Duration::from_secs(180);

pub(crate) struct Bed {
    pub(crate) context: HostContext,
    pub(crate) rings: Vec<Ring>,
}

impl Bed {
    pub(crate) fn new(n_rings: u32, slots_log2: u32, spins: u64) -> Self {
        let region = nlf_region { base: BASE, size: REGION_BYTES | NLF_REGION_SYMMETRIC };
        let context = HostContext::new(&ContextOptions {
            n_pes: 2,
            me: 0,
            n_rings,
            slots_log2,
            spins,
            regions: vec![region],
        });
        let rings = (0..n_rings as usize).map(|index| consumer(&context, index, slots_log2));
        let rings = rings.collect();
        Self { context, rings }
    }

    /// Runs a kernel on `threads` CPU threads, and `consume` with the rings meanwhile until it says
    /// that it has finished. Returns statuses and `out` of the threads.
    pub(crate) fn run(
        &mut self,
        kernel: &'static std::ffi::CStr,
        threads: u64,
        rounds: u64,
        mut consume: impl FnMut(&mut [Ring], &HostContext) -> bool,
    ) -> (Vec<i32>, Vec<u64>) {
        assert_eq!(size_of_args(), size_of::<KernelArgs>());
        let mut status = vec![0; threads as usize];
        let mut out = vec![0; threads as usize];
        let args = KernelArgs {
            ctx: self.context.as_ptr(),
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
            while !consume(&mut self.rings, &self.context) {
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

fn consumer(context: &HostContext, index: usize, slots_log2: u32) -> Ring {
    let memory = RingMemory {
        slots: context.slots(index).cast(),
        slots_log2,
        published: context.published(index).cast(),
        published_in: PublishedIn::Host,
    };
    // SAFETY: the memory is the context's, of that size and zeroed; the bed keeps it, and makes one
    // consumer for each ring. Producers are the device API's.
    unsafe { Ring::new(memory) }.unwrap()
}
