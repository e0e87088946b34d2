//! Jobs in which something goes wrong. Each ends by itself, soon, and says why.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, Outcome};

use crate::job;

/// A trial that runs a job to its end and looks at what became of it.
type Judge = fn(&JobReport) -> bool;

pub(crate) fn add_trials(trials: &mut Vec<Trial>) {
    let mut add = |name: &str, settings: JobSettings, judge: Judge| {
        trials.push(Trial::test(format!("failures::{name}"), move || expect(&settings, judge)));
    };
    let short =
        |scenario: &str, n_pes| job(scenario, n_pes, Layout::V4).grace(Duration::from_millis(500));

    add("pe_exits_early", short("exits", 3), |r| {
        *r.outcome(1) == Outcome::Exited(3)
            && failed(r, 0, "PE 1 exited with status 3")
            && failed(r, 2, "PE 1 exited with status 3")
            && r.first_failure == Some(1)
    });
    add("pe_panics", short("panics", 3), |r| {
        let panicked = matches!(r.outcome(2), Outcome::Panicked(text)
            if text.contains("nothing but trouble") && text.contains("failures.rs"));
        panicked && failed(r, 0, "nothing but trouble") && r.first_failure == Some(2)
    });
    add("pe_dies", short("dies", 3), |r| {
        *r.outcome(1) == Outcome::Signal(libc::SIGKILL)
            && failed(r, 0, "signal")
            && failed(r, 2, "PE 1")
    });
    add("pe_hangs", short("hangs", 2).deadline(Duration::from_secs(2)), |r| {
        matches!(r.outcome(0), Outcome::TimedOut(doing) if doing.contains("barrier for PE 1"))
            && matches!(r.outcome(1), Outcome::TimedOut(doing) if doing.contains("running"))
            && r.cause.as_deref().is_some_and(|cause| cause.contains("deadline"))
    });
    add("pe_hangs_after_another_failed", short("hangs", 2).param("fail", 1), |r| {
        failed(r, 0, "on purpose") && matches!(r.outcome(1), Outcome::Stopped(_))
    });
    add("collective_times_out", short("hangs", 2).step_deadline(Duration::from_secs(1)), |r| {
        failed(r, 0, "barrier is not complete after 1s")
    });
    add("collectives_that_disagree", short("disagrees", 2), |r| {
        failed(r, 0, "barrier with 0 bytes") && failed(r, 1, "allgather with 4 bytes")
    });
    add("pe_leaves_before_a_collective", short("leaves", 2), |r| {
        failed(r, 0, "PE 1 has finished") && *r.outcome(1) == Outcome::Finished && !r.succeeded()
    });
    add("unknown_scenario", short("no such thing", 2), |r| failed(r, 0, "no such thing"));
    let mut nowhere = short("cycle", 2);
    nowhere.plugin_dir = "/nonexistent".into();
    add("no_plugin", nowhere, |r| {
        failed(r, 0, "/nonexistent/nvshmem_transport_libfabric.so.4")
            && failed(r, 0, "No such file")
    });
    let mut wrapped = short("cycle", 2);
    wrapped.prefix_of_pe.insert(1, vec!["/nonexistent/wrapper".into()]);
    add("pe_does_not_start", wrapped, |r| {
        matches!(r.outcome(1), Outcome::NotStarted(text) if text.contains("/nonexistent/wrapper"))
            && failed(r, 0, "PE 1 could not be started")
    });

    let with = |fail: &str| short("cycle", 2).env_of_pe(1, "TEST_PLUGIN_FAIL", fail);
    add("init_fails_everywhere", short("cycle", 2).env("TEST_PLUGIN_FAIL", "init"), |r| {
        failed(r, 0, "nvshmemt_init with api_version 40000 returned 3 (not supported)")
            && r.pes[0].text().contains("told to fail in nvshmemt_init")
    });
    add("init_fails_on_one_pe", with("init"), |r| {
        failed(r, 1, "nvshmemt_init") && failed(r, 0, "PE 1 failed: nvshmemt_init")
    });
    for layout in [Layout::V3a, Layout::V3b, Layout::V4, Layout::V7] {
        let mut settings = with("connect");
        settings.layout = layout;
        add(&format!("connect_fails_on_one_pe::layout_{layout}"), settings, |r| {
            failed(r, 1, "connect_endpoints returned 7 (internal error)")
                && r.first_failure.is_some()
                && (failed(r, 0, "PE 1 failed: connect_endpoints") || failed(r, 0, "joined"))
        });
    }
    add("registration_fails_on_one_pe", with("register"), |r| {
        failed(r, 1, "get_mem_handle for 131072 bytes")
            && failed(r, 0, "PE 1 has no handle for chunk 0")
    });
    add("table_without_quiet", with("null-quiet"), |r| failed(r, 1, "quiet is NULL"));
    add("proxy_error", short("proxy-error", 2).env("TEST_PLUGIN_FAIL", "rma"), |r| r.succeeded());
    add("quiet_hangs", with("quiet-hangs").step_deadline(Duration::from_secs(1)), |r| {
        failed(r, 1, "the proxy thread did not complete a quiet within 1s; it is in quiet for PE 1")
    });
    add("killed_pe_leaves_shared_memory", short("shared-memory", 2), |r| {
        // Both files of PE 1, and nothing else.
        r.leftovers.len() == 2 && r.leftovers.iter().all(|path| !path.exists())
    });
    trials.push(Trial::test("failures::no_job_without_pes", || {
        let error = job("cycle", 0, Layout::V4).run().err().map(|e| e.to_string());
        if error.is_some_and(|text| text.contains("at least one PE")) {
            return Ok(());
        }
        Err("a job without PEs was started".into())
    }));
}

fn expect(settings: &JobSettings, judge: Judge) -> Result<(), Failed> {
    let report = settings.run()?;
    if judge(&report) { Ok(()) } else { Err(format!("not as expected:\n{report}").into()) }
}

/// Whether a PE's scenario returned an error with that text.
fn failed(report: &JobReport, pe: u32, text: &str) -> bool {
    matches!(report.outcome(pe), Outcome::Failed(found) if found.contains(text))
}

pub(crate) fn cycle(job: &mut Job) -> Result<(), BoxError> {
    job.init()?.finalize()?;
    Ok(())
}

pub(crate) fn exits(job: &mut Job) -> Result<(), BoxError> {
    if job.pe() == 1 {
        std::process::exit(3);
    }
    Ok(job.bootstrap().barrier()?)
}

pub(crate) fn panics(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    assert!(job.pe() != 2, "nothing but trouble");
    host.barrier()?;
    Ok(host.finalize()?)
}

pub(crate) fn dies(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    if job.pe() == 1 {
        // SAFETY: raise has no precondition.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    host.barrier()?;
    Ok(host.finalize()?)
}

pub(crate) fn hangs(job: &mut Job) -> Result<(), BoxError> {
    if job.pe() == 1 {
        loop {
            std::thread::park();
        }
    }
    if job.param_or("fail", 0)? == 1 {
        return Err("on purpose".into());
    }
    Ok(job.bootstrap().barrier()?)
}

pub(crate) fn disagrees(job: &mut Job) -> Result<(), BoxError> {
    if job.pe() == 0 {
        return Ok(job.bootstrap().barrier()?);
    }
    job.bootstrap().allgather(&[1; 4])?;
    Ok(())
}

pub(crate) fn leaves(job: &mut Job) -> Result<(), BoxError> {
    if job.pe() == 0 {
        job.bootstrap().barrier()?;
    }
    Ok(())
}

/// An error of the plugin's on the proxy thread comes back as an error with its text.
pub(crate) fn proxy_error(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let at = host.alloc(8, 8)?;
    host.proxy().put(0, at, at, 8)?;
    for result in [host.proxy().quiet(), host.barrier(), job.bootstrap().barrier()] {
        let text = result.err().map(|e| e.to_string()).unwrap_or_default();
        if !text.contains("rma(PUT) of 8 bytes for PE 0 returned 7 (internal error)") {
            return Err(format!("instead of the plugin's error: {text:?}").into());
        }
    }
    Ok(())
}

/// One PE is killed with a file in /dev/shm that bears its number, and one that it has mapped.
pub(crate) fn shared_memory(job: &mut Job) -> Result<(), BoxError> {
    let pid = std::process::id();
    if job.pe() == 0 {
        job.bootstrap().barrier()?;
        return Err("on purpose".into());
    }
    fs::write(format!("/dev/shm/nvshmem-sim-test-{pid}:0"), [0; 64])?;
    // A name without the number as such; unique all the same.
    let mapped = format!("/dev/shm/nvshmem-sim-test-x{:x}x", u64::from(pid) << 8 | 0xab);
    fs::write(&mapped, [0; 64])?;
    map(Path::new(&mapped))?;
    job.bootstrap().barrier()?;
    loop {
        std::thread::park();
    }
}

fn map(path: &Path) -> Result<(), BoxError> {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path)?;
    // SAFETY: a new read-only mapping that is never looked at.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), 64, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}
