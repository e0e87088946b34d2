//! Instructions of NCCL's calls: puts and strong puts with signal as they are started, by a rank to
//! itself over a real fabric; of what libfabric does none is counted.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::thread;

use nvshmem_bench::nvshmem_bench_mark;
use nvshmem_sim::{BoxError, PrivateDir};
use nvshmem_transport_libfabric::nccl::abi::{
    Config, HANDLE_BYTES, MR_FORCE_SO, PTR_HOST, SIGNAL_INC, Status,
};
use nvshmem_transport_libfabric::nccl::tables::V16;

use crate::Options;
use crate::instructions::{Callgrind, PROVIDER};
use crate::report::Report;

/// Tells this program that it is the process that is counted.
pub(crate) const PART: &str = "nccl";

const LENGTHS: [u64; 2] = [8, 40];

const BYTES: usize = 8;

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = PrivateDir::new("nvshmem-bench")?;
    let callgrind = Callgrind::new(options.keep.as_deref().unwrap_or(dir.path()), PART)?;
    let mut process = crate::part(callgrind.prefix(), PART)?;
    let status = process.env("NVSHMEM_LIBFABRIC_PROVIDER", PROVIDER.names().1).status()?;
    if !status.success() {
        return Err(format!("counting in NCCL's calls: {status}").into());
    }
    for (at, name) in ["nccl_put_instructions", "nccl_put_signal_instructions"].iter().enumerate() {
        // The program has the plugin in it.
        let cost = callgrind.cost(at, LENGTHS, |object| object.contains("nvshmem-"))?;
        report.push((*name).to_owned(), cost, "instructions");
    }
    Ok(())
}

fn good(status: Status) -> Result<(), BoxError> {
    if status == Status::SUCCESS { Ok(()) } else { Err(format!("a call: {status:?}").into()) }
}

pub(crate) fn process() -> Result<(), BoxError> {
    let (mut listening, mut group, mut contexts) = (null_mut(), null_mut(), null_mut());
    let mut mine = [0; HANDLE_BYTES];
    // SAFETY: places of this function with room for what is written, and a listener and a group
    // made here. The words and the place of the plugin live until the process ends; no logger.
    let [memory, signals] = unsafe {
        good((V16.init)(Box::leak(Box::new(null_mut())), 1, None))?;
        good((V16.listen)(null_mut(), 0, mine.as_mut_ptr().cast(), &mut listening))?;
        let handle = mine.as_ptr().cast::<c_void>();
        good((V16.connect)(null_mut(), &handle, 1, 0, listening, &mut group))?;
        good((V16.close_listen)(listening))?;
        let mut config = Config { contexts: 1, traffic_class: -1, rank_stride: 1 };
        good((V16.create_context)(group, &mut config, &mut contexts))?;
        let words = Box::leak(Box::new([0_u64; 64])).as_mut_ptr();
        let mut handles = [null_mut(); 2];
        for (at, flags) in [(0, 0), (1, MR_FORCE_SO)] {
            let data = words.wrapping_add(32 * at).cast();
            good((V16.reg_mr_sym)(group, data, 256, PTR_HOST, flags, &mut handles[at]))?;
        }
        handles
    };
    let put = |signal: bool| -> Result<*mut c_void, BoxError> {
        let (mine, theirs, size, mut request) = (0, 64, BYTES, null_mut());
        // SAFETY: contexts and memory of this rank, which live until the process ends.
        good(unsafe {
            if signal {
                (V16.iput_signal)(
                    contexts,
                    0,
                    mine,
                    memory,
                    size,
                    theirs,
                    memory,
                    0,
                    8,
                    signals,
                    0,
                    SIGNAL_INC,
                    true,
                    0,
                    &mut request,
                )
            } else {
                (V16.iput)(contexts, 0, mine, memory, size, theirs, memory, 0, 0, &mut request)
            }
        })?;
        Ok(request)
    };
    let finish = |request| -> Result<(), BoxError> {
        let mut done = 0;
        while done == 0 {
            // SAFETY: a request and contexts of this rank.
            unsafe {
                good((V16.progress)(contexts))?;
                good((V16.test)(group, request, &mut done))?;
            }
            thread::yield_now();
        }
        Ok(())
    };
    for signal in [false, true] {
        // What is opened at first use.
        (0..LENGTHS[1]).try_for_each(|_| finish(put(signal)?))?;
        for length in LENGTHS {
            let mut requests = Vec::with_capacity(length as usize);
            nvshmem_bench_mark();
            (0..length).try_for_each(|_| put(signal).map(|put| requests.push(put)))?;
            nvshmem_bench_mark();
            requests.into_iter().try_for_each(finish)?;
        }
    }
    Ok(())
}
