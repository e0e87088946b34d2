//! A snapshot of the counters of a job's lanes, and its forms: lines of the log, and JSON.

use std::path::Path;

use log::{info, warn};
use serde_json::{Value, json};

use super::whole_file;
use crate::job::connected::Connected;
use crate::logging;
use engine::ids::{Pe, RailId};
use engine::lane::Lane;
use engine::port::Port;
use engine::rails::counters::{PeerCounters, RailCounters, StagedCounters};

const FORMAT: u32 = 1;

#[derive(Debug)]
struct LaneCounters {
    /// `proxy` or `host`.
    lane: &'static str,
    me: Pe,
    /// Name and counters of each rail, in rail order.
    rails: Vec<(String, RailCounters)>,
    peers: Vec<PeerCounters>,
    staged: StagedCounters,
}

impl LaneCounters {
    fn of<P: Port>(lane: &'static str, of: &Lane<P>) -> Self {
        let name = |at: usize| of.port().rail_name(RailId(at as u8)).to_owned();
        let mut peers: Vec<PeerCounters> = of.peers().collect();
        peers.sort_unstable_by_key(|peer| peer.pe);
        Self {
            lane,
            me: of.me(),
            rails: of.counters().enumerate().map(|(at, rail)| (name(at), rail)).collect(),
            peers,
            staged: of.staged_counters(),
        }
    }

    fn log(&self) {
        let Self { lane, me, rails, peers, staged } = self;
        for (at, (name, rail)) in rails.iter().enumerate() {
            let RailCounters {
                posted,
                bytes,
                completed,
                again,
                queued,
                by_load,
                bulk_bytes,
                rate,
                max_in_flight,
                foreign,
            } = rail;
            info!(
                target: logging::TRANSPORT,
                "{me}, {lane} lane, {} ({name}): {posted} segments posted of {bytes} bytes, \
                 {completed} completed, {queued} queued, {again} times no room, at most \
                 {max_in_flight} in flight; {by_load} given to it by its load, \
                 {bulk_bytes} bytes moved by threads for bulk, {} MB/s lately; \
                 {foreign} messages of strangers",
                RailId(at as u8),
                rate / 1_000_000,
            );
        }
        if *staged != StagedCounters::default() {
            let StagedCounters { by_fabric, in_messages, shared, by_cpu } = staged;
            info!(
                target: logging::TRANSPORT,
                "{me}, {lane} lane, staged: {shared} bytes from bounce buffers that peers share, {by_fabric} through the \
                 fabric, {in_messages} in messages, {by_cpu} copied by the processor"
            );
        }
        for PeerCounters { pe, writes, reads, sent, received } in peers {
            info!(
                target: logging::TRANSPORT,
                "{me}, {lane} lane, with {pe}: {writes} writes, {reads} reads, {sent} messages sent, \
                 {received} received"
            );
        }
    }

    fn to_json(&self) -> Value {
        let rail = |(name, rail): &(String, RailCounters)| {
            // Destructured, so that a new counter has to be named here and in the log.
            let RailCounters {
                posted,
                bytes,
                completed,
                queued,
                again,
                max_in_flight,
                by_load,
                bulk_bytes,
                rate,
                foreign,
            } = rail;
            json!({
                "name": name,
                "posted": posted,
                "bytes": bytes,
                "completed": completed,
                "queued": queued,
                "again": again,
                "max_in_flight": max_in_flight,
                "by_load": by_load,
                "bulk_bytes": bulk_bytes,
                "bytes_per_second": rate,
                "foreign": foreign,
            })
        };
        let peer = |PeerCounters { pe, writes, reads, sent, received }: &PeerCounters| {
            json!({
                "pe": pe.0, "writes": writes, "reads": reads, "sent": sent, "received": received,
            })
        };
        let StagedCounters { by_fabric, in_messages, shared, by_cpu } = self.staged;
        json!({
            "lane": self.lane,
            "staged": {
                "by_fabric": by_fabric,
                "in_messages": in_messages,
                "shared": shared,
                "by_cpu": by_cpu,
            },
            "rails": self.rails.iter().map(rail).collect::<Vec<_>>(),
            "peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
        })
    }
}

#[derive(Debug)]
pub(super) struct Snapshot {
    proxy: LaneCounters,
    host: LaneCounters,
}

impl Snapshot {
    /// Reads the counters. Waits for a thread that holds the host lane.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn of(connected: &Connected) -> Self {
        // SAFETY: the caller's promise.
        let proxy = unsafe { connected.with_proxy(|lane| LaneCounters::of("proxy", lane)) };
        Self { proxy, host: connected.host.with(|lane| LaneCounters::of("host", lane)) }
    }

    pub(super) fn log(&self) {
        self.proxy.log();
        self.host.log();
    }

    fn to_json(&self, provider: &str) -> Value {
        json!({
            "format": FORMAT,
            "pe": self.proxy.me.0,
            "provider": provider,
            "lanes": [self.proxy.to_json(), self.host.to_json()],
        })
    }

    pub(super) fn write_file(&self, path: &Path, provider: &str) {
        let report = self.to_json(provider);
        if let Err(error) = whole_file::write(path, &format!("{report:#}\n")) {
            warn!(
                target: logging::TRANSPORT,
                "NVSHMEM_LIBFABRIC_COUNTERS: {} cannot be written: {error}",
                path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(lane: &'static str) -> LaneCounters {
        let rail = RailCounters {
            posted: 1,
            bytes: 2,
            completed: 3,
            queued: 4,
            again: 5,
            max_in_flight: 6,
            by_load: 7,
            bulk_bytes: 8,
            rate: 9_000_000,
            foreign: 13,
        };
        LaneCounters {
            lane,
            me: Pe(3),
            rails: vec![(String::from("eth0"), rail)],
            peers: vec![PeerCounters { pe: Pe(7), writes: 1, reads: 2, sent: 3, received: 4 }],
            staged: StagedCounters::default(),
        }
    }

    #[test]
    fn file_names_every_counter() {
        let mut proxy = lane("proxy");
        proxy.staged = StagedCounters { by_fabric: 1, in_messages: 2, shared: 3, by_cpu: 4 };
        let report = Snapshot { proxy, host: lane("host") }.to_json("some");
        assert_eq!((&report["format"], &report["pe"]), (&json!(1), &json!(3)));
        assert_eq!(
            (&report["provider"], &report["lanes"][1]["lane"]),
            (&json!("some"), &json!("host"))
        );
        let expected = json!({
            "name": "eth0", "posted": 1, "bytes": 2, "completed": 3, "queued": 4, "again": 5,
            "max_in_flight": 6, "by_load": 7, "bulk_bytes": 8, "bytes_per_second": 9_000_000,
            "foreign": 13,
        });
        assert_eq!(report["lanes"][0]["rails"], json!([expected]));
        let peer = json!({ "pe": 7, "writes": 1, "reads": 2, "sent": 3, "received": 4 });
        assert_eq!(report["lanes"][0]["peers"], json!([peer]));
        let staged = json!({ "by_fabric": 1, "in_messages": 2, "shared": 3, "by_cpu": 4 });
        assert_eq!(report["lanes"][0]["staged"], staged);
    }
}
