//! Counters of the lanes, told at the end: to the log, and to a file if the user has named one.

use std::fs;
use std::sync::atomic::Ordering;

use log::{info, warn};
use serde_json::{Value, json};

use super::connected::{Connected, Job};
use super::exit;
use crate::engine::ids::{Pe, RailId};
use crate::engine::lane::Lane;
use crate::engine::port::Port;
use crate::engine::rails::counters::{PeerCounters, RailCounters};
use crate::logging;

/// Version of the file's format: raised when a name in it changes its meaning or goes.
const FORMAT: u32 = 1;

/// The counters of one lane.
#[derive(Debug)]
struct LaneCounters {
    /// `proxy` or `host`.
    lane: &'static str,
    me: Pe,
    /// Each rail by its name, in rail order.
    rails: Vec<(String, RailCounters)>,
    peers: Vec<PeerCounters>,
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
        }
    }

    fn log(&self) {
        let Self { lane, me, rails, peers } = self;
        for (at, (name, rail)) in rails.iter().enumerate() {
            let RailCounters {
                posted,
                bytes,
                completed,
                again,
                queued,
                by_load,
                rate,
                failures,
                reissued,
                resent,
                max_in_flight,
                foreign,
            } = rail;
            info!(
                target: logging::TRANSPORT,
                "{me}, {lane} lane, {} ({name}): {posted} segments posted of {bytes} bytes, \
                 {completed} completed, {queued} queued, {again} times no room, at most \
                 {max_in_flight} in flight; {by_load} given to it by its load, {} MB/s lately; \
                 {failures} times out of service, {reissued} segments posted again, {resent} \
                 messages sent again, {foreign} messages of strangers",
                RailId(at as u8),
                rate / 1_000_000,
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
            json!({
                "name": name,
                "posted": rail.posted,
                "bytes": rail.bytes,
                "completed": rail.completed,
                "queued": rail.queued,
                "again": rail.again,
                "max_in_flight": rail.max_in_flight,
                "by_load": rail.by_load,
                "bytes_per_second": rail.rate,
                "failures": rail.failures,
                "reissued": rail.reissued,
                "resent": rail.resent,
                "foreign": rail.foreign,
            })
        };
        let peer = |peer: &PeerCounters| {
            json!({
                "pe": peer.pe.0,
                "writes": peer.writes,
                "reads": peer.reads,
                "sent": peer.sent,
                "received": peer.received,
            })
        };
        json!({
            "lane": self.lane,
            "rails": self.rails.iter().map(rail).collect::<Vec<_>>(),
            "peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
        })
    }
}

/// Tells what the lanes of a transport have carried, once. Nothing if it was never connected. A file that
/// cannot be written is a warning.
///
/// # Safety
/// As [`Connected::with_proxy`].
pub(crate) unsafe fn tell(job: &Job) {
    let Some(connected) = job.connection() else { return };
    if job.counters_are_told.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller's promise.
    let lanes = unsafe { lanes(connected) };
    lanes.iter().for_each(LaneCounters::log);
    let Some(pattern) = &job.settings.counters else { return };
    let me = lanes[0].me;
    let path = pattern.replace("%p", &me.0.to_string());
    let report = json!({
        "format": FORMAT,
        "pe": me.0,
        "provider": connected.report.provider,
        "lanes": lanes.iter().map(LaneCounters::to_json).collect::<Vec<_>>(),
    });
    if let Err(error) = fs::write(&path, format!("{report:#}\n")) {
        warn!(
            target: logging::TRANSPORT,
            "NVSHMEM_LIBFABRIC_COUNTERS: {path} cannot be written: {error}"
        );
    }
    exit::one_is_told();
}

/// # Safety
/// As [`Connected::with_proxy`].
unsafe fn lanes(connected: &Connected) -> [LaneCounters; 2] {
    // SAFETY: the caller's promise.
    let proxy = unsafe { connected.with_proxy(|lane| LaneCounters::of("proxy", lane)) };
    [proxy, connected.host.with(|lane| LaneCounters::of("host", lane))]
}
