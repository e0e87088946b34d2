//! Instructions of NCCL's calls: puts and strong puts with signal as they are started, questions
//! about requests that are done, and idle progress of a block of many contexts. Two ranks in one
//! process, over a real fabric; of what libfabric does none is counted.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nccl_abi::{Config, HANDLE_BYTES, MR_FORCE_SO, PTR_HOST, SIGNAL_INC, Status, Table16};
use nvshmem_sim::{BoxError, PrivateDir};
use nvshmem_transport_libfabric::nccl::tables::V16;

use super::{Options, PROVIDER, sections};
use crate::callgrind::nvshmem_bench_mark;
use crate::harness::report::{Report, breakdown};

/// What [`PART`](crate::suites::channel::PART) says for the process that is counted.
pub(super) const NAME: &str = "instructions-nccl";

/// What is counted, by the names of the figures.
const KINDS: [&str; 4] = [
    "nccl_put_instructions",
    "nccl_put_signal_instructions",
    "nccl_test_instructions",
    "nccl_idle_progress_129_contexts_instructions",
];

/// Calls of the two sections of each: no more than rails and windows have room for.
const LENGTHS: [u64; 2] = [8, 40];

/// As many as DeepEP has.
const CONTEXTS: c_int = 129;

const BYTES: usize = 8;

/// Asks NCCL's questions of a table, and wants good answers.
fn good(what: &str, status: Status) -> Result<(), BoxError> {
    if status == Status::SUCCESS { Ok(()) } else { Err(format!("{what}: {status:?}").into()) }
}

/// One rank of a group: its contexts, its memory and its signals. Pointers are NCCL's.
struct Rank {
    group: *mut c_void,
    contexts: *mut c_void,
    memory: *mut c_void,
    signals: *mut c_void,
    /// What they are of.
    _words: Box<[u64; 64]>,
}

impl Rank {
    /// One of two, which tell each other their handles.
    fn new(
        rank: c_int,
        tell: &Sender<[u8; HANDLE_BYTES]>,
        hear: &Receiver<[u8; HANDLE_BYTES]>,
    ) -> Result<Self, BoxError> {
        let Table16 { listen, connect, close_listen, create_context, reg_mr_sym, .. } = V16;
        let (mut listening, mut group, mut contexts) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut mine = [0; HANDLE_BYTES];
        // SAFETY: places of this function, with room for what is written; below likewise.
        let status =
            unsafe { listen(ptr::null_mut(), 0, mine.as_mut_ptr().cast(), &mut listening) };
        good("listen", status)?;
        tell.send(mine)?;
        let theirs = hear.recv()?;
        let handles = if rank == 0 { [mine, theirs] } else { [theirs, mine] };
        let pointers = handles.each_ref().map(|handle| handle.as_ptr().cast::<c_void>());
        // SAFETY: as many handles as ranks, and a listener that was made above.
        let status =
            unsafe { connect(ptr::null_mut(), pointers.as_ptr(), 2, rank, listening, &mut group) };
        good("connect", status)?;
        // SAFETY: made above, and used no more.
        good("closeListen", unsafe { close_listen(listening) })?;
        let mut config = Config { contexts: CONTEXTS, traffic_class: -1, rank_stride: 1 };
        // SAFETY: a group that was made above.
        let status = unsafe { create_context(group, &mut config, &mut contexts) };
        good("createContext", status)?;
        let mut words = Box::new([0_u64; 64]);
        let base = words.as_mut_ptr();
        let register = |at: usize, flags| -> Result<*mut c_void, BoxError> {
            let mut handle = ptr::null_mut();
            let data = base.wrapping_add(at).cast();
            // SAFETY: memory that lives as long as the rank, of which each half is registered.
            let status = unsafe { reg_mr_sym(group, data, 256, PTR_HOST, flags, &mut handle) };
            good("regMrSym", status).map(|()| handle)
        };
        let (memory, signals) = (register(0, 0)?, register(32, MR_FORCE_SO)?);
        Ok(Self { group, contexts, memory, signals, _words: words })
    }

    fn put(&self) -> Result<*mut c_void, BoxError> {
        let Self { contexts, memory, .. } = *self;
        let mut request = ptr::null_mut();
        // SAFETY: contexts and memory of this rank's, which are ended after everything else.
        let status =
            unsafe { (V16.iput)(contexts, 1, 0, memory, BYTES, 64, memory, 1, 0, &mut request) };
        good("iput", status).map(|()| request)
    }

    fn put_signal(&self) -> Result<*mut c_void, BoxError> {
        let Self { contexts, memory, signals, .. } = *self;
        let (operation, mut request) = (SIGNAL_INC, ptr::null_mut());
        // SAFETY: as in `put`.
        let status = unsafe {
            (V16.iput_signal)(
                contexts,
                1,
                0,
                memory,
                BYTES,
                64,
                memory,
                1,
                8,
                signals,
                0,
                operation,
                true,
                0,
                &mut request,
            )
        };
        good("iputSignal", status).map(|()| request)
    }

    fn is_done(&self, request: *mut c_void) -> Result<bool, BoxError> {
        let mut done = 0;
        // SAFETY: a group of this rank's, and a request of it.
        good("test", unsafe { (V16.test)(self.group, request, &mut done) })?;
        Ok(done != 0)
    }

    fn progress(&self) -> Result<(), BoxError> {
        // SAFETY: contexts of this rank's.
        good("progress", unsafe { (V16.progress)(self.contexts) })
    }

    /// Waits for requests.
    fn finish(&self, requests: &[*mut c_void]) -> Result<(), BoxError> {
        for request in requests {
            while !self.is_done(*request)? {
                self.progress()?;
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(), BoxError> {
        let Self { group, contexts, memory, signals, .. } = &self;
        // SAFETY: made by `new`, and used no more.
        unsafe {
            good("destroyContext", (V16.destroy_context)(*contexts))?;
            good("deregMrSym", (V16.dereg_mr_sym)(*group, *memory))?;
            good("deregMrSym", (V16.dereg_mr_sym)(*group, *signals))?;
            good("closeColl", (V16.close_coll)(*group))
        }
    }
}

/// The process that is counted.
pub(super) fn process() -> Result<(), BoxError> {
    let mut ctx = ptr::null_mut();
    // SAFETY: a place of this function, and no logger.
    good("init", unsafe { (V16.init)(&mut ctx, 1, None) })?;
    let (tell_first, hears_first) = channel();
    let (tell_second, hears_second) = channel();
    let (over, ends) = channel::<()>();
    let second = thread::spawn(move || -> Result<(), String> {
        let rank = Rank::new(1, &tell_second, &hears_first).map_err(|error| error.to_string())?;
        // Its helper serves the other one meanwhile.
        let _ = ends.recv();
        rank.end().map_err(|error| error.to_string())
    });
    let rank = Rank::new(0, &tell_first, &hears_second)?;
    counted(&rank)?;
    drop(over);
    rank.end()?;
    second.join().map_err(|_| "the second rank has panicked")??;
    // SAFETY: initialized above.
    good("finalize", unsafe { (V16.finalize)(ctx) })
}

fn counted(rank: &Rank) -> Result<(), BoxError> {
    // What is opened at first use.
    for _ in 0..LENGTHS[1] {
        rank.finish(&[rank.put()?, rank.put_signal()?])?;
    }
    let section = |count: u64, start: &dyn Fn() -> Result<*mut c_void, BoxError>| {
        let mut requests = Vec::with_capacity(count as usize);
        nvshmem_bench_mark();
        for _ in 0..count {
            requests.push(start()?);
        }
        nvshmem_bench_mark();
        rank.finish(&requests).map(|()| requests)
    };
    for length in LENGTHS {
        section(length, &|| rank.put())?;
    }
    let mut requests = Vec::new();
    for length in LENGTHS {
        requests = section(length, &|| rank.put_signal())?;
    }
    sections(LENGTHS, |length| {
        let mut all = requests.iter().cycle().take(length as usize);
        all.try_for_each(|request| rank.is_done(*request).map(drop))
    })?;
    sections(LENGTHS, |length| (0..length).try_for_each(|_| rank.progress()))
}

/// Counts.
///
/// # Errors
/// A process that failed, files that are not understood.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = PrivateDir::new("nvshmem-bench")?;
    let provider = [("NVSHMEM_LIBFABRIC_PROVIDER", PROVIDER.full_name())];
    let callgrind = super::process_with(options, &dir, NAME, &provider)?;
    for (at, name) in KINDS.into_iter().enumerate() {
        // The program has the plugin in it.
        let cost = callgrind.cost(2 * at, LENGTHS, |object| object.contains("nvshmem-"))?;
        report.counted(name, name.to_owned(), &cost);
        if at < 2 {
            breakdown(name, &cost);
        }
    }
    Ok(())
}
