//! Instructions of NCCL's calls: puts and strong puts with signal as they are started, by a rank to
//! itself over a real fabric, and tests of such puts under way; of what libfabric does none is
//! counted. And what many groups cost: two ranks of one process in 1, 10 and 60 of them.

use std::ffi::c_void;
use std::fs;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use nvshmem_bench::nvshmem_bench_mark;
use nvshmem_sim::{BoxError, PrivateDir};
use nvshmem_transport_libfabric::nccl::abi::{
    Config, HANDLE_BYTES, MR_FORCE_SO, PTR_HOST, SIGNAL_INC, Status,
};
use nvshmem_transport_libfabric::nccl::tables::V16;

use crate::instructions::{Callgrind, PROVIDER};
use crate::report::Report;
use crate::{Options, Provider};

/// Tells this program that it is the process that is counted.
pub(crate) const PART: &str = "nccl";

const GROUPS: &str = "nccl_groups";

const COUNTS: [usize; 3] = [1, 10, 60];

const FIGURES: [(&str, &str); 4] =
    [("connect", "s"), ("descriptors", "descriptors"), ("threads", "threads"), ("idle", "%")];

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
    for (at, name) in ["put", "put_signal", "test"].iter().enumerate() {
        // The program has the plugin in it.
        let cost = callgrind.cost(at, LENGTHS, |object| object.contains("nvshmem-"))?;
        report.push(format!("nccl_{name}_instructions"), cost, "instructions");
    }
    let mut process = crate::part(Vec::new(), GROUPS)?;
    // Over ofi_rxm sixty groups would take 24 GB.
    let told = process.env("NVSHMEM_LIBFABRIC_PROVIDER", Provider::Shm.names().1).output()?;
    let figures = String::from_utf8_lossy(&told.stdout).into_owned();
    let names = COUNTS.iter().flat_map(|count| FIGURES.map(|(what, unit)| (count, what, unit)));
    for (figure, (count, what, unit)) in figures.lines().zip(names) {
        report.push(format!("nccl_{count}_groups_{what}"), figure.parse()?, unit);
    }
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    if told.status.success() { Ok(()) } else { Err(text.into()) }
}

fn good(status: Status) -> Result<(), BoxError> {
    if status == Status::SUCCESS { Ok(()) } else { Err(format!("a call: {status:?}").into()) }
}

pub(crate) fn process(part: &str) -> Result<(), BoxError> {
    if part == GROUPS {
        // SAFETY: the place of the plugin lives until the process ends; no logger.
        good(unsafe { (V16.init)(Box::leak(Box::new(null_mut())), 1, None) })?;
        return COUNTS.into_iter().try_for_each(groups);
    }
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
    let test = |request| -> Result<bool, BoxError> {
        let mut done = 0;
        // SAFETY: a request of this rank.
        good(unsafe { (V16.test)(group, request, &mut done) })?;
        Ok(done != 0)
    };
    let finish = |request| -> Result<(), BoxError> {
        while !test(request)? {
            // SAFETY: contexts of this rank.
            good(unsafe { (V16.progress)(contexts) })?;
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
    for length in LENGTHS {
        let requests = (0..length).map(|_| put(false)).collect::<Result<Vec<_>, _>>()?;
        nvshmem_bench_mark();
        // The plugin's helper may have ended some.
        requests.iter().try_for_each(|request| test(*request).map(drop))?;
        nvshmem_bench_mark();
        requests.into_iter().try_for_each(finish)?;
    }
    Ok(())
}

/// Makes groups of two ranks, leaves them alone for a second, and closes them.
fn groups(count: usize) -> Result<(), BoxError> {
    let entries = |of: &str| fs::read_dir(format!("/proc/self/{of}")).map(Iterator::count);
    let before = (entries("fd")?, entries("task")?);
    let begun = Instant::now();
    let groups = (0..count).map(|_| pair()).collect::<Result<Vec<_>, _>>()?;
    let seconds = begun.elapsed().as_secs_f64();
    let (descriptors, threads) = (entries("fd")? - before.0, entries("task")? - before.1);
    let busy = processor_ticks()?;
    thread::sleep(Duration::from_secs(1));
    let idle = processor_ticks()? - busy;
    println!("{seconds}\n{descriptors}\n{threads}\n{idle}");
    let close = |group: usize| {
        // SAFETY: a group of `pair`.
        good(unsafe { (V16.close_coll)(group as *mut c_void) }).expect("it is connected");
    };
    groups.into_iter().for_each(|group| {
        thread::scope(|scope| {
            group.into_iter().for_each(|rank| drop(scope.spawn(move || close(rank))));
        });
    });
    Ok(())
}

/// Connects two ranks. Returns their groups' addresses.
fn pair() -> Result<[usize; 2], BoxError> {
    let mut handles = [[0; HANDLE_BYTES]; 2];
    let mut listening = [0; 2];
    for (handle, listening) in handles.iter_mut().zip(&mut listening) {
        let mut listener = null_mut();
        // SAFETY: places of this function.
        good(unsafe { (V16.listen)(null_mut(), 0, handle.as_mut_ptr().cast(), &mut listener) })?;
        *listening = listener.addr();
    }
    let connect = |rank: usize| {
        let (mut group, all) = (null_mut(), [0, 1].map(|of| handles[of].as_ptr().cast::<c_void>()));
        let listener = listening[rank] as *mut c_void;
        // SAFETY: places of this function, and a listener of it.
        unsafe {
            let (handles, rank) = (all.as_ptr(), rank as i32);
            good((V16.connect)(null_mut(), handles, 2, rank, listener, &mut group))
                .and_then(|()| good((V16.close_listen)(listener)))
                .expect("both ranks connect");
        }
        group.addr()
    };
    Ok(thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || connect(rank)));
        ranks.map(|rank| rank.join().expect("it is connected"))
    }))
}

/// Returns the process's processor time in hundredths of a second, as Linux counts it.
fn processor_ticks() -> Result<u64, BoxError> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Ok(fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?)
}
