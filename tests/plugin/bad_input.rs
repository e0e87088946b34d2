//! Bad input of every kind: each is refused with a message that helps, and harms nothing else.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Host, Job, Layout, Outcome, Pattern, RawRma, SymAddr};

use crate::fabric::{Fabric, job, says, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |case: Case| trial(format!("refused_{}", case.0), None, move || refused(case));
    let mut trials: Vec<Trial> = SETTINGS.map(case).into();
    trials.push(trial("refused_old_libfabric".to_owned(), None, old_libfabric));
    for (fabric, layout) in [(Fabric::Rxm, Layout::V7), (Fabric::Shm, Layout::V3a)] {
        let name = format!("refused_requests_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            let report = fabric.job("bad_requests", 2, 2, layout).run()?.check()?;
            // Once from either thread.
            for pe in &report.pes {
                let text = pe.text();
                let told = text.matches("PE -1").count();
                if told < 2 || text.contains("PE 4294967295") {
                    return Err(format!("a PE of -1 was named {told} times:\n{text}").into());
                }
            }
            Ok(())
        }));
    }
    trials
}

/// Settings that cannot be used, by a name, and what the user must be told. The tool's tests see
/// more of them.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const SETTINGS: [Case; 3] = [
    (
        "provider_without_hardware",
        // Also where there is such a NIC.
        &[("NVSHMEM_LIBFABRIC_PROVIDER", "cxi"), ("FI_PROVIDER", "^cxi")],
        &["cxi", "this libfabric does not have it on this machine"],
    ),
    (
        "two_errors_at_once",
        &[("NVSHMEM_LIBFABRIC_YIELD", "perhaps"), ("NVSHMEM_LIBFABRIC_DEBUG", "threadin=safe")],
        &["NVSHMEM_LIBFABRIC_YIELD", "no key \"threadin\". Accepted: threading"],
    ),
    (
        "library_that_is_not_libfabric",
        &[("NVSHMEM_LIBFABRIC_LIBRARY", "libc.so.6")],
        &["libc.so.6", "fi_"],
    ),
];

fn refused((_, env, parts): Case) -> Result<(), Failed> {
    let mut job = job("connect", 2, Layout::V7).env("NVSHMEM_DEBUG", "");
    for (name, value) in env {
        job = job.env(*name, value);
    }
    let report = job.run()?;
    if let Some(pe) = report.pes.iter().find(|pe| pe.outcome == Outcome::Finished) {
        return Err(format!("PE {} started all the same:\n{report}", pe.pe).into());
    }
    // The one that fails first may end the other before it has said anything.
    let text: String = report.pes.iter().map(|pe| pe.text()).collect();
    parts.iter().try_for_each(|part| says(&text, part))
}

/// A libfabric from before 1.17: the symbols are there, the version is not enough.
fn old_libfabric() -> Result<(), Failed> {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libfabric-old.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/old_libfabric.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .status()
        .map_err(|error| format!("cc: {error}"))?;
    if !built.success() {
        return Err(format!("cc: {built}").into());
    }
    let library = library.to_string_lossy().into_owned();
    let report = job("connect", 1, Layout::V7)
        .env("NVSHMEM_LIBFABRIC_LIBRARY", &library)
        .env("NVSHMEM_DEBUG", "")
        .run()?;
    let text = report.pes[0].text();
    for part in [library.as_str(), "1.9", "1.17"] {
        says(&text, part)?;
    }
    Ok(())
}

const SUCCESS: i32 = c::NVT_STATUS_SUCCESS;
const INVALID: i32 = c::NVT_STATUS_INVALID_VALUE;
const NOT_SUPPORTED: i32 = c::NVT_STATUS_NOT_SUPPORTED;

/// Calls no sound host makes. Each is refused, from both threads, and sound ones go on working.
pub(crate) fn requests(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let target = host.alloc(4096, 4096)?;
    let source = host.alloc(4096, 4096)?;
    let scratch = host.alloc(4096, 4096)?;
    host.local(source, 4096)?.fill(Pattern::new(me.into()), 0)?;
    host.barrier()?;

    answered(&host, target, source, INVALID, "no such PE", move |raw| raw.pe = 2)?;
    answered(&host, target, source, INVALID, "a negative PE", move |raw| raw.pe = u32::MAX)?;
    // Of what else is refused the plugin's own tests have all.
    answered(&host, target, source, INVALID, "an unknown operation", move |raw| raw.verb.desc = 3)?;
    answered(&host, target, source, NOT_SUPPORTED, "strides", move |raw| raw.bytes.deststride = 2)?;
    answered(&host, target, source, INVALID, "no remote handle", move |raw| {
        raw.remote_handle = None
    })?;
    answered(&host, target, source, INVALID, "more than the chunk holds", move |raw| {
        raw.bytes.nelems = 1 << 30;
    })?;
    answered(&host, target, source, INVALID, "no local address", move |raw| {
        raw.local.ptr = std::ptr::null_mut();
    })?;
    refuse_of_user_threads(&host, target, source)?;
    // 3a has none.
    if job.layout() != Layout::V3a {
        refuse_with_signal(&host, target, source)?;
    }

    // Nothing of that has arrived anywhere, and the transport still works.
    host.barrier()?;
    if host.local(target, 4096)?.to_vec()?.iter().any(|byte| *byte != 0) {
        return Err("a refused request wrote something".into());
    }
    host.barrier()?;
    host.user().put((me + 1) % n, target, source, 4096)?;
    host.proxy().get((me + 1) % n, source, scratch, 4096)?;
    host.barrier()?;
    host.local(target, 4096)?.verify(Pattern::new(((me + n - 1) % n).into()), 0)?;
    host.local(scratch, 4096)?.verify(Pattern::new(((me + 1) % n).into()), 0)?;
    host.finalize()?;
    Ok(())
}

/// Makes an odd call on the user thread and one on the proxy thread, which answer so.
fn answered(
    host: &Host<'_>,
    to: SymAddr,
    from: SymAddr,
    status: i32,
    what: &str,
    edit: impl Fn(&mut RawRma) + Clone + Send + 'static,
) -> Result<(), BoxError> {
    let peer = 1 - host.user().pe();
    // SAFETY: should the plugin take the call after all, 64 bytes of this PE's heap are sent, or
    // what `edit` made of it: the test fails then, and the process with it.
    let user = unsafe { host.user().raw_put(peer, (to, from), 64, None, &edit)? };
    let on_proxy = edit.clone();
    let proxy = host.proxy().run(move |ops| {
        // SAFETY: as above.
        unsafe { ops.raw_put(peer, (to, from), 64, None, on_proxy) }
    })??;
    for (thread, answer) in [("user", user), ("proxy", proxy)] {
        if answer != status {
            return Err(format!("{what}, {thread} thread: {answer:?} instead of {status}").into());
        }
    }
    Ok(())
}

/// No user thread is let onto the proxy thread's lane, however sound its call is.
fn refuse_of_user_threads(host: &Host<'_>, to: SymAddr, from: SymAddr) -> Result<(), BoxError> {
    let (user, peer) = (host.user(), 1 - host.user().pe());
    let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1);
    // Such calls would go out at once where the lane has sent something before: these change
    // nothing.
    for op in [c::NVT_AMO_ADD, c::NVT_AMO_SIGNAL_ADD] {
        host.proxy().amo(peer, SymAddr(to.0 + 64), Amo::new(op, 8, 0))?;
    }
    host.proxy().quiet()?;
    for op in [c::NVT_AMO_SIGNAL_SET, c::NVT_AMO_INC, c::NVT_AMO_FETCH_ADD] {
        if user.amo(peer, SymAddr(to.0 + 64), Amo::new(op, 8, 1)).is_ok() {
            return Err(format!("atomic {op} of a user thread was taken").into());
        }
    }
    // SAFETY: a sound call.
    let answer =
        unsafe { user.raw_put(peer, (to, from), 64, Some((SymAddr(to.0 + 64), &set)), |_| {}) };
    match answer {
        Ok(answer) if answer == SUCCESS => {
            Err("a put with signal of a user thread was taken".into())
        }
        _ => Ok(()),
    }
}

/// The same for the put of a put with signal, whose signal must not come either.
fn refuse_with_signal(host: &Host<'_>, to: SymAddr, from: SymAddr) -> Result<(), BoxError> {
    let (peer, signal) = (1 - host.user().pe(), SymAddr(to.0 + 64));
    let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 1);
    // NVSHMEM has user threads put first and signal then.
    let answer = host.proxy().run(move |ops| {
        // SAFETY: should the plugin take the call after all, nothing at null is read: the test
        // fails with the process.
        unsafe {
            ops.raw_put(peer, (to, from), 64, Some((signal, &set)), |raw| {
                raw.local.ptr = std::ptr::null_mut();
            })
        }
    })??;
    if answer != INVALID {
        return Err(format!("a put with signal from null: {answer:?}").into());
    }
    Ok(())
}
