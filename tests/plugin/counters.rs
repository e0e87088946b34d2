//! Counters that each PE reports at its end: the numbers of both ends of a path agree.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::Layout;
use serde_json::Value;

use crate::fabric::{Fabric, trial};

const PES: u32 = 3;
const RAILS: u8 = 2;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("counters_of_both_ends_agree".to_owned(), Some(Fabric::Rxm), both_ends),
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
    let name = format!("nvshmem-counters-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory)?;
    let checked = run_and_compare(&directory);
    std::fs::remove_dir_all(&directory)?;
    checked
}

fn run_and_compare(directory: &Path) -> Result<(), Failed> {
    let report = Fabric::Rxm
        .job("atomics", PES, RAILS, Layout::V7)
        .env("NVSHMEM_LIBFABRIC_COUNTERS", directory.join("pe-%p.json").to_string_lossy())
        .run()?;
    report.check().map_err(|failed| failed.to_string())?;
    let read = |pe: u32| -> Result<Value, Failed> {
        let text = std::fs::read_to_string(directory.join(format!("pe-{pe}.json")))?;
        Ok(serde_json::from_str(&text)?)
    };
    let all = (0..PES).map(read).collect::<Result<Vec<Value>, Failed>>()?;
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
