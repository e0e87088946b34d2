//! Counters that each PE reports at its end: the numbers of both ends of a path agree.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, PrivateDir};
use serde_json::Value;

use crate::fabric::{Fabric, job_on, says, trial};
use crate::matrix::run;

const PES: u32 = 3;
const RAILS: u8 = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("counters_of_both_ends_agree".to_owned(), Some(Fabric::Rxm), both_ends),
        trial("counters_without_finalize".to_owned(), Some(Fabric::Rxm), || {
            let job = job_on(Fabric::Rxm, "leave", PES, RAILS, Layout::V7);
            let (_, all) = counted(job)?;
            for (pe, one) in all.iter().enumerate() {
                let proxy = &one["lanes"][0];
                if with(proxy, (pe + 1) % PES as usize, "writes") != Some(1) {
                    return Err(format!("PE {pe} wrote once: {proxy}").into());
                }
            }
            Ok(())
        }),
    ]
}

pub(crate) fn counted(job: JobSettings) -> Result<(JobReport, Vec<Value>), Failed> {
    let (directory, n_pes) = (PrivateDir::new("nvshmem-counters")?, job.n_pes);
    let pattern = directory.path().join("%p.json");
    let report = run(job.env("NVSHMEM_LIBFABRIC_COUNTERS", pattern.display()))?;
    let of = |pe: u32| {
        let text = std::fs::read_to_string(directory.path().join(format!("{pe}.json")))?;
        Ok(serde_json::from_str(&text)?)
    };
    let all = (0..n_pes).map(of).collect::<Result<_, Failed>>()?;
    Ok((report, all))
}

/// Writes once, and ends with the transport as it is.
pub(crate) fn leave(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let (target, source) = (host.alloc(64, 64)?, host.alloc(64, 64)?);
    host.proxy.put((job.pe + 1) % job.n_pes(), target, source, 64)?;
    host.barrier()?;
    // Its proxy thread goes on, as NVSHMEM's does until the process is gone.
    std::mem::forget(host);
    Ok(())
}

fn both_ends() -> Result<(), Failed> {
    let job = job_on(Fabric::Rxm, "atomics", PES, RAILS, Layout::V7);
    let (report, all) = counted(job)?;
    for (at, one) in all.iter().enumerate() {
        let proxy = &one["lanes"][0];
        let expected = (Some(at as u64), "tcp;ofi_rxm", "proxy", usize::from(RAILS));
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let (provider, lane) = (text(&one["provider"]), text(&proxy["lane"]));
        let rails = proxy["rails"].as_array().map_or(0, Vec::len);
        if (one["pe"].as_u64(), provider.as_str(), lane.as_str(), rails) != expected {
            return Err(format!("not {expected:?}: {one}").into());
        }
        // What `gpu-run` adds up to show whose traffic it was.
        let bytes = proxy["rails"][0]["bytes"].as_u64();
        if bytes.is_none()
            || with(proxy, at, "writes").is_none()
            || with(proxy, at, "reads").is_none()
        {
            return Err(format!("bytes, writes or reads are missing: {one}").into());
        }
        for (lane, rail) in [("proxy", 0), ("proxy", 1), ("host", 0)] {
            let of = &one["lanes"][usize::from(lane == "host")]["rails"][rail];
            let (name, posted, bytes) = (text(&of["name"]), &of["posted"], &of["bytes"]);
            let line = format!(
                "PE {at}, {lane} lane, rail {rail} ({name}): {posted} segments posted of {bytes} bytes"
            );
            says(&report.pes[at].text(), &line)?;
        }
        for to in (0..PES as usize).filter(|to| *to != at) {
            let sent = with(proxy, to, "sent");
            let received = with(&all[to]["lanes"][0], at, "received");
            if sent.is_none_or(|sent| sent == 0) || sent != received {
                let told = format!("PE {at} sent {sent:?}, PE {to} received {received:?}");
                return Err(told.into());
            }
        }
    }
    Ok(())
}

fn with(lane: &Value, pe: usize, what: &str) -> Option<u64> {
    let peer = lane["peers"].as_array()?.iter().find(|peer| peer["pe"] == pe)?;
    peer[what].as_u64()
}
