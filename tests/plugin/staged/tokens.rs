//! Tokens that a kernel has queued: they are taken together, in few calls of the driver at either
//! end.

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, CALLS, Job, JobSettings, Layout, MemoryKind, Pattern};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;
use crate::matrix::run;

const TOKENS: u64 = 64;
const LEN: u64 = 7168;
/// Tokens go to so many experts in turn, each of which has room for as many again.
const EXPERTS: u64 = 8;

/// The parameter of a job whose tokens are signalled.
const SIGNALLED: &str = "signalled";

const MAX_CALLS: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let new = |name: &str, fabric: Fabric, run: fn(Fabric) -> Result<(), Failed>| {
        let name = format!("tokens::{name}_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || run(fabric))
    };
    vec![
        new("few_calls_for_shared_memory", Fabric::Shm, |fabric| few_calls(fabric, true)),
        new("few_calls_by_the_fabric", Fabric::Tcp2, |fabric| few_calls(fabric, false)),
        new("few_calls_with_signals", Fabric::Rxm, |fabric| with_signals(fabric, Layout::V7)),
        // Before layout 4 a signal comes behind a fence, and each is stored in its order.
        new("few_calls_with_fences", Fabric::Tcp2, |fabric| with_signals(fabric, Layout::V3b)),
    ]
}

fn place(token: u64) -> u64 {
    let (expert, slot) = (token % EXPERTS, token / EXPERTS);
    (expert * 2 * (TOKENS / EXPERTS) + slot) * LEN
}

fn few_calls(fabric: Fabric, shares: bool) -> Result<(), Failed> {
    let job = job(fabric, MemoryKind::DeviceVmm, "tokens", 2, 1, Layout::V7);
    let (from, to) = calls(job.debug("share_bounce", u32::from(shares)))?;
    let way = if shares { "shared" } else { "by_fabric" };
    let most = from.max(to);
    println!("MEASURE driver_calls_for_64_tokens_{way}_{} {most} calls", fabric.name());
    few((from, to), MAX_CALLS)
}

fn with_signals(fabric: Fabric, layout: Layout) -> Result<(), Failed> {
    let job = job(fabric, MemoryKind::DeviceVmm, "tokens", 2, 1, layout);
    let (from, to) = calls(job.param(SIGNALLED, true))?;
    let most: u64 = if layout == Layout::V3b { 3 * TOKENS } else { 2 * MAX_CALLS };
    let (name, version) = (fabric.name(), if layout == Layout::V3b { 3 } else { 7 });
    println!("MEASURE sender_calls_for_64_signalled_tokens_layout_{version}_{name} {from} calls");
    few((from, to), most)
}

fn calls(job: JobSettings) -> Result<(u64, u64), Failed> {
    // Slow enough that all are queued while the first are copied.
    let report = run(job.env("FAKE_CUDA_COPY_NS", 10_000_000))?;
    let calls = |pe: usize| report.pes[pe].value("calls").and_then(|calls| calls.parse().ok());
    let both = calls(0).zip(calls(1));
    both.ok_or_else(|| format!("no calls were counted:\n{report}").into())
}

fn few((from, to): (u64, u64), most: u64) -> Result<(), Failed> {
    if from > MAX_CALLS || to > most {
        return Err(format!("{from} calls of the sender's driver, {to} of the target's").into());
    }
    Ok(())
}

/// PE 0 puts all tokens without waiting; they are at their places. Each adds to the signal of its
/// expert, if that is asked for.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let is_signalled = job.param_or(SIGNALLED, false)?;
    let host = job.init()?;
    let source = host.alloc(TOKENS * LEN, 4096)?;
    let target = host.alloc(2 * TOKENS * LEN, 4096)?;
    let signals = host.alloc(EXPERTS * 8, 4096)?;
    host.local(source, TOKENS * LEN)?.fill(Pattern::new(me.into()), 0)?;
    host.local(target, 2 * TOKENS * LEN)?.set(0)?;
    host.local(signals, EXPERTS * 8)?.set(0)?;
    // Whose lane has had a message copies from others' memory, and has told them.
    host.proxy().put((me + 1) % n, target.plus(2 * TOKENS * LEN - 8), source, 8)?;
    host.proxy().quiet()?;
    host.barrier()?;
    let faults = host.faults().ok_or("there is a device")?;
    let before = faults.count(CALLS)?;
    if me == 0 {
        let add = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1);
        for token in 0..TOKENS {
            let (to, from) = (target.plus(place(token)), source.plus(token * LEN));
            let signal = signals.plus(token % EXPERTS * 8);
            if is_signalled {
                host.proxy().put_signal(1, to, from, LEN, signal, add)?;
            } else {
                host.proxy().put(1, to, from, LEN)?;
            }
        }
        host.proxy().quiet()?;
    }
    host.barrier()?;
    job.report("calls", faults.count(CALLS)? - before)?;
    if me == 1 {
        for token in 0..TOKENS {
            let there = host.local(target.plus(place(token)), LEN)?;
            there.verify(Pattern::new(0), token * LEN)?;
        }
        let each = if is_signalled { TOKENS / EXPERTS } else { 0 };
        for expert in 0..EXPERTS {
            let word = host.local(signals.plus(expert * 8), 8)?.load_acquire()?;
            if word != each {
                return Err(format!("the signal of expert {expert} is {word}").into());
            }
        }
    }
    host.finalize()?;
    Ok(())
}
