//! Bad input of every kind: each is refused with a message that helps, and harms nothing else.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, Layout, Outcome, Pattern};
use test_support::built::compile;

use crate::fabric::{Fabric, job, job_on, says, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("refused_old_libfabric".to_owned(), None, old_libfabric)];
    for (fabric, layout) in [(Fabric::Rxm, Layout::V7), (Fabric::Shm, Layout::V3a)] {
        let name = format!("refused_requests_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            job_on(fabric, "bad_requests", 2, 2, layout).run()?.check()?;
            Ok(())
        }));
    }
    trials
}

/// A libfabric from before 1.17: the symbols are there, the version is not enough.
fn old_libfabric() -> Result<(), Failed> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfabric-old.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/old_libfabric.c");
    compile(&library, Path::new(source), &["-shared", "-fPIC"]);
    let job = job("connect", 2, Layout::V7).env("NVSHMEM_DEBUG", "");
    let report = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display()).run()?;
    if let Some(pe) = report.pes.iter().find(|pe| pe.outcome == Outcome::Finished) {
        return Err(format!("PE {} started all the same:\n{report}", pe.pe).into());
    }
    // The one that fails first may end the other before it has said anything.
    let text: String = report.pes.iter().map(|pe| pe.text()).collect();
    ["libfabric-old.so.1", "1.9", "1.17"].iter().try_for_each(|part| says(&text, part))
}

/// No user thread is let onto the proxy thread's lane, however sound its call is; sound ones go on
/// working. Of what else is refused `src/abi/calls/request` and `tests/engine` have all.
pub(crate) fn requests(job: &mut Job) -> Result<(), BoxError> {
    let (me, peer) = (job.pe, 1 - job.pe);
    let host = job.init()?;
    let (target, source) = (host.alloc(4096, 4096)?, host.alloc(4096, 4096)?);
    let word = target.plus(64);
    host.local(source, 4096)?.fill(Pattern::new(me.into()), 0)?;
    host.barrier()?;
    // Such calls would go out at once where the lane has sent something before: these change
    // nothing.
    for op in [c::NVT_AMO_ADD, c::NVT_AMO_SIGNAL_ADD] {
        host.proxy.amo(peer, word, Amo::new(op, 8, 0))?;
    }
    host.proxy.quiet()?;
    let user = &host.user;
    for op in [c::NVT_AMO_SIGNAL_SET, c::NVT_AMO_INC, c::NVT_AMO_FETCH_ADD] {
        if user.amo(peer, word, Amo::new(op, 8, 1)).is_ok() {
            return Err(format!("atomic {op} of a user thread was taken").into());
        }
    }
    let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1);
    // Layout 3 has no such call.
    if job.settings.layout >= Layout::V4
        && user.put_signal(peer, target, source, 64, word, set).is_ok()
    {
        return Err("a put with signal of a user thread was taken".into());
    }
    host.barrier()?;
    if host.local(target, 4096)?.to_vec()?.iter().any(|byte| *byte != 0) {
        return Err("a refused request wrote something".into());
    }
    host.barrier()?;
    host.user.put(peer, target, source, 4096)?;
    host.barrier()?;
    host.local(target, 4096)?.verify(Pattern::new(peer.into()), 0)?;
    host.finalize()?;
    Ok(())
}
