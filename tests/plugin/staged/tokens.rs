//! Tokens that a kernel has queued: they are taken together, in few calls of the driver at either
//! end.

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, Layout, MemoryKind, Pattern};

use test_jobs::memory::device;

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;
use crate::matrix::run;

const TOKENS: u64 = 64;
const LEN: u64 = 7168;
/// Tokens go to so many experts in turn, each of which has room for as many again.
const EXPERTS: u64 = 8;

/// The parameter of a job whose tokens are signalled.
const SIGNALLED: &str = "signalled";

/// What the sender's driver may see.
const MAX_CALLS: u64 = 8;

/// Name, fabric and layout; whether tokens are signalled, and bounce memory is shared; how many
/// calls the target's driver may see.
const CASES: [(&str, Fabric, Layout, bool, u8, u64); 4] = [
    ("for_shared_memory", Fabric::Shm, Layout::V7, false, 1, MAX_CALLS),
    ("by_the_fabric", Fabric::Tcp2, Layout::V7, false, 0, MAX_CALLS),
    ("with_signals", Fabric::Rxm, Layout::V7, true, 0, 2 * MAX_CALLS),
    // Before layout 4 a signal comes behind a fence, and each is stored in its order.
    ("with_fences", Fabric::Tcp2, Layout::V3b, true, 1, 3 * TOKENS),
];

pub(crate) fn trials() -> Vec<Trial> {
    let few_calls =
        |(name, fabric, layout, is_signalled, shares, most): (&str, Fabric, _, _, _, _)| {
            let name = format!("tokens::few_calls_{name}_{}", fabric.name());
            staged(name, fabric, Needs::StandIn, move || {
                let job = job(fabric, MemoryKind::DeviceVmm, "tokens", 2, 1, layout);
                let job = job.debug("share_bounce", shares).param(SIGNALLED, is_signalled);
                // Slow enough that all are queued while the first are copied.
                let report = run(job.env("FAKE_CUDA_COPY_NS", 10_000_000))?;
                let calls = |pe: usize| report.pes[pe].value("calls")?.parse::<u64>().ok();
                match calls(0).zip(calls(1)) {
                    Some((from, to)) if from <= MAX_CALLS && to <= most => Ok(()),
                    other => Err(Failed::from(format!("calls of the two drivers: {other:?}"))),
                }
            })
        };
    CASES.map(few_calls).into()
}

fn place(token: u64) -> u64 {
    let (expert, slot) = (token % EXPERTS, token / EXPERTS);
    (expert * 2 * (TOKENS / EXPERTS) + slot) * LEN
}

/// PE 0 puts all tokens without waiting; they are at their places. Each adds to the signal of its
/// expert, if that is asked for.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let is_signalled = job.param(SIGNALLED)?;
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
    // Its device is the one of its number.
    let calls = || device().calls_of(me);
    let before = calls();
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
    job.report("calls", calls() - before)?;
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
