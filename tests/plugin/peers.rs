//! PEs whose peers fail: an error with the reason, never a hang.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, Outcome};
use test_support::needs;

use crate::fabric::{Fabric, job, says, trial};
use crate::matrix::run;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("connect_with_different_providers".to_owned(), None, || {
            let report = job("connect", 3, Layout::V7)
                .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
                .env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1")
                .env_of_pe(2, "NVSHMEM_LIBFABRIC_PROVIDER", "shm")
                .env_of_pe(2, "NVSHMEM_LIBFABRIC_DEVICES", "shm")
                .grace(Duration::from_secs(120))
                .run()?;
            all_say(&report, &["PE 2 uses libfabric provider \"shm, ", "tcp;ofi_rxm"])
        }),
        trial("connect_shm_across_hosts".to_owned(), None, || {
            let report = job("connect", 2, Layout::V4)
                .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")
                .pes_per_node(1)
                .grace(Duration::from_secs(120))
                .run()?;
            all_say(&report, &["only 1 of this job's 2 PEs are on this host"])
        }),
        trial("connect_without_rails_on_one_pe".to_owned(), None, || {
            // Enough file descriptors to load the plugin, too few for an endpoint. Which of
            // libfabric's calls comes to find none left, and what error it makes of that, differs.
            let mut job = job("connect", 3, Layout::V7)
                .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
                .env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1")
                .param("descriptors_of_pe_1", 2)
                .grace(Duration::from_secs(120));
            job.deadline = Duration::from_secs(60);
            let report = job.run()?;
            all_say(&report, &["PE 1: no rail could be opened:", "127.0.0.1: ", " failed: "])
        }),
        trial("connect_when_one_pe_dies".to_owned(), None, || {
            let report = job("connect", 3, Layout::V7)
                .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
                .env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1")
                .param("dies", 1)
                .grace(Duration::from_secs(120))
                .run()?;
            for pe in [0, 2] {
                match report.outcome(pe) {
                    Outcome::Failed(_) => {}
                    other => return Err(format!("PE {pe} {other}:\n{report}").into()),
                }
            }
            Ok(())
        }),
        connect_in_other_shared_memory(),
        connect_with_different_libfabrics(),
        different_rails(),
        dead_peer(Fabric::Rxm),
        dead_peer(Fabric::Tcp2),
        dead_peer(Fabric::Shm),
    ]
}

/// PEs over shm whose files are not in one place, as in two containers of a host.
fn connect_in_other_shared_memory() -> Trial {
    needs::trial("connect_in_other_shared_memory", needs::own_shm(256), |prefix| {
        let mut job = Fabric::Shm.job("connect", 2, 1, Layout::V7).grace(Duration::from_secs(120));
        job.prefix_of_pe.insert(1, prefix.into_iter().map(Into::into).collect());
        all_say(&job.run()?, &["PE 1 uses libfabric provider \"shm, libfabric", ", /dev/shm "])
    })
}

fn connect_with_different_libfabrics() -> Trial {
    needs::trial("connect_with_different_libfabrics", needs::libfabric2(), |library| {
        let job = Fabric::Shm.job("connect", 2, 1, Layout::V7).grace(Duration::from_secs(120));
        let library = library.to_string_lossy();
        let report = job.env_of_pe(1, "NVSHMEM_LIBFABRIC_LIBRARY", library).run()?;
        all_say(
            &report,
            &["PE 1 uses libfabric provider \"shm, libfabric 2.", "\"shm, libfabric 1."],
        )
    })
}

/// PEs with one rail, two and four: each reaches every other, and signals are counted where every
/// PE can count them.
fn different_rails() -> Trial {
    let fabric = Fabric::Tcp2;
    trial(String::from("pes_with_different_rails_tcp2"), Some(fabric), move || {
        let job = fabric.job("signals", 3, 2, Layout::V7).heap(96 << 20, 1 << 20);
        let job = job.param("rounds", 40).param("most", 300_000);
        let rails = |job: JobSettings, pe, rails| {
            job.env_of_pe(pe, "NVSHMEM_LIBFABRIC_DEVICES", fabric.devices(rails))
        };
        let job = rails(rails(job, 1, 1), 2, 4);
        let report = run(job)?;
        for (pe, rails) in report.pes.iter().zip([2, 1, 4]) {
            let text = pe.text();
            says(&text, &format!("a host lane and {rails} proxy rail(s)"))?;
            says(&text, "targets can count the segments of a put")?;
        }
        Ok(())
    })
}

/// A peer that dies in the middle is named, within the deadline that was set.
fn dead_peer(fabric: Fabric) -> Trial {
    trial(format!("a_dead_peer_is_named_{}", fabric.name()), Some(fabric), move || {
        let report = fabric
            .job("wait_for_ever", 2, 2, Layout::V7)
            .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 4)
            .grace(Duration::from_secs(120))
            .run()?;
        match report.outcome(0) {
            Outcome::Failed(_) => {}
            other => return Err(format!("PE 0 {other}:\n{report}").into()),
        }
        let text = report.pes[0].text();
        let named = text.lines().any(|line| line.contains("ERROR") && line.contains("PE 1"));
        if named { Ok(()) } else { Err(format!("PE 1 is not named:\n{report}").into()) }
    })
}

pub(crate) fn all_say(report: &JobReport, parts: &[&str]) -> Result<(), Failed> {
    for pe in &report.pes {
        if pe.outcome == Outcome::Finished {
            return Err(format!("PE {} connected all the same:\n{report}", pe.pe).into());
        }
        let text = pe.text();
        for part in parts {
            says(&text, part)?;
        }
    }
    Ok(())
}

pub(crate) fn connect(job: &mut Job) -> Result<(), BoxError> {
    if job.param_or("dies", u32::MAX)? == job.pe() {
        std::process::abort();
    }
    if let (1, Ok(spare)) = (job.pe(), job.param::<u64>("descriptors_of_pe_1")) {
        limit_descriptors(spare)?;
    }
    job.init()?.finalize()?;
    Ok(())
}

/// Leaves this process so many file descriptors beyond those that are open.
fn limit_descriptors(spare: u64) -> Result<(), BoxError> {
    let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
    let limit = libc::rlimit { rlim_cur: open + spare, rlim_max: open + spare };
    // SAFETY: the structure is valid for the duration of the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// PE 1 dies after connecting; PE 0 goes on sending to it until it is told.
pub(crate) fn wait_for_the_dead(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let target = host.alloc(1 << 20, 4096)?;
    let source = host.alloc(1 << 20, 4096)?;
    host.proxy().put(1 - job.pe(), target, source, 1 << 20)?;
    host.barrier()?;
    if job.pe() == 1 {
        std::process::abort();
    }
    loop {
        host.proxy().put(1, target, source, 1 << 20)?;
        host.proxy().quiet()?;
    }
}
