//! Counters that each PE reports at its end: the numbers of both ends of a path agree.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, Layout};
use serde_json::Value;

use crate::fabric::{Fabric, says, trial};

const PES: u32 = 3;
const RAILS: u8 = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("counters_of_both_ends_agree".to_owned(), Some(Fabric::Rxm), both_ends),
        trial("counters_of_a_process_that_does_not_finalize".to_owned(), Some(Fabric::Rxm), || {
            in_directory("leave", |directory| {
                let pages = directory.join("pages");
                let report = Fabric::Rxm
                    .job("leave", PES, RAILS, Layout::V7)
                    .env("NVSHMEM_LIBFABRIC_COUNTERS", pattern(directory))
                    .env("NVSHMEM_LIBFABRIC_COUNTERS_PAGE", pages.display())
                    .run()?;
                report.check().map_err(|failed| failed.to_string())?;
                if std::fs::read_dir(&pages)?.next().is_some() {
                    return Err("the page of a process that has ended by itself is left".into());
                }
                for pe in 0..PES {
                    let proxy = &read(directory, pe)?["lanes"][0];
                    let writes = with(proxy, (pe as usize + 1) % PES as usize, "writes");
                    if writes != Some(1) {
                        return Err(format!("PE {pe} wrote once: {proxy}").into());
                    }
                }
                Ok(())
            })
        }),
        trial("counters_that_cannot_be_written".to_owned(), Some(Fabric::Rxm), || {
            let report = Fabric::Rxm
                .job("atomics", 2, RAILS, Layout::V7)
                .env("NVSHMEM_LIBFABRIC_COUNTERS", "/nowhere/at/all")
                .run()?;
            let report = report.check().map_err(|failed| failed.to_string())?;
            let said = "NVSHMEM_LIBFABRIC_COUNTERS: /nowhere/at/all cannot be written";
            match report.pes.iter().find(|pe| !pe.text().contains(said)) {
                None => Ok(()),
                Some(pe) => Err(format!("PE {} does not say so:\n{report}", pe.pe).into()),
            }
        }),
    ]
}

fn both_ends() -> Result<(), Failed> {
    in_directory("both-ends", run_and_compare)
}

/// Runs in a fresh directory.
fn in_directory(name: &str, run: impl FnOnce(&Path) -> Result<(), Failed>) -> Result<(), Failed> {
    let name = format!("nvshmem-counters-{name}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory)?;
    let checked = run(&directory);
    std::fs::remove_dir_all(&directory)?;
    checked
}

/// Where PEs are to write.
fn pattern(directory: &Path) -> String {
    directory.join("pe-%p.json").to_string_lossy().into_owned()
}

fn read(directory: &Path, pe: u32) -> Result<Value, Failed> {
    let text = std::fs::read_to_string(directory.join(format!("pe-{pe}.json")))?;
    Ok(serde_json::from_str(&text)?)
}

/// Writes once, and ends with the transport as it is.
pub(crate) fn leave(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let (target, source) = (host.alloc(64, 64)?, host.alloc(64, 64)?);
    host.proxy().put((job.pe() + 1) % job.n_pes(), target, source, 64)?;
    host.barrier()?;
    // Its proxy thread goes on, as NVSHMEM's does until the process is gone.
    std::mem::forget(host);
    Ok(())
}

fn run_and_compare(directory: &Path) -> Result<(), Failed> {
    let report = Fabric::Rxm
        .job("atomics", PES, RAILS, Layout::V7)
        .env("NVSHMEM_LIBFABRIC_COUNTERS", pattern(directory))
        .run()?;
    let report = report.check().map_err(|failed| failed.to_string())?;
    let all = (0..PES).map(|pe| read(directory, pe)).collect::<Result<Vec<Value>, Failed>>()?;
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
        // The log has the same numbers, of both lanes.
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

/// A number that a lane has of a peer.
fn with(lane: &Value, pe: usize, what: &str) -> Option<u64> {
    let peer = lane["peers"].as_array()?.iter().find(|peer| peer["pe"] == pe)?;
    peer[what].as_u64()
}
