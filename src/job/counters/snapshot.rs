//! A snapshot of the counters of a job's lanes, and its forms: lines of the log, and JSON.

use std::path::Path;

use log::{info, warn};
use serde_json::{Map, Value, json};

use super::fields::{self, Field};
use super::whole_file;
use crate::job::connected::Connected;
use crate::logging;
use engine::ids::{Pe, RailId};
use engine::lane::Lane;
use engine::port::Port;
use engine::rails::counters::{PeerCounters, RailCounters, StagedCounters};

/// Version of the format of files and pages: raised when a name in it changes its meaning or goes.
pub const FORMAT: u32 = 1;

/// The counters of one lane.
#[derive(Clone, Debug)]
pub(super) struct LaneCounters {
    /// `proxy` or `host`.
    pub(super) lane: &'static str,
    pub(super) me: Pe,
    /// Each rail by its name, in rail order.
    pub(super) rails: Vec<(String, RailCounters)>,
    pub(super) peers: Vec<PeerCounters>,
    pub(super) staged: StagedCounters,
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
                 {max_in_flight} in flight; {by_load} given to it by its load, \
                 {bulk_bytes} bytes moved by threads for bulk, {} MB/s lately; \
                 {failures} times out of service, {reissued} segments posted again, {resent} \
                 messages sent again, {foreign} messages of strangers",
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

    pub(super) fn to_json(&self) -> Value {
        let rail = |(name, rail): &(String, RailCounters)| {
            with_counters([("name", Value::from(name.as_str()))], fields::RAIL, rail)
        };
        let peer =
            |peer: &PeerCounters| with_counters([("pe", peer.pe.0.into())], fields::PEER, peer);
        let staged = fields::STAGED
            .iter()
            .map(|field| (String::from(field.name), Value::from((field.of)(&self.staged))));
        json!({
            "lane": self.lane,
            "staged": Value::Object(staged.collect()),
            "rails": self.rails.iter().map(rail).collect::<Vec<_>>(),
            "peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
        })
    }
}

/// An object with what something is called, and its counters.
fn with_counters<T>(called: [(&str, Value); 1], fields: &[Field<T>], of: &T) -> Value {
    let counters = fields.iter().map(|field| (field.name, Value::from((field.of)(of))));
    let named = called.into_iter().chain(counters);
    Value::Object(named.map(|(name, value)| (String::from(name), value)).collect::<Map<_, _>>())
}

/// The counters of a job's lanes at one time.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) proxy: LaneCounters,
    pub(super) host: LaneCounters,
}

impl Snapshot {
    /// Now. It waits for a thread that is at the host lane.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn of(connected: &Connected) -> Self {
        // SAFETY: the caller's promise.
        let proxy = unsafe { connected.with_proxy(|lane| LaneCounters::of("proxy", lane)) };
        Self { proxy, host: connected.host.with(|lane| LaneCounters::of("host", lane)) }
    }

    /// Now, without waiting: a host lane at which another thread is just then has the counters of
    /// before.
    ///
    /// # Safety
    /// As [`Connected::with_proxy`].
    pub(super) unsafe fn next(&self, connected: &Connected) -> Self {
        // SAFETY: the caller's promise.
        let proxy = unsafe { connected.with_proxy(|lane| LaneCounters::of("proxy", lane)) };
        let host = connected.host.try_with(|lane| LaneCounters::of("host", lane));
        Self { proxy, host: host.unwrap_or_else(|| self.host.clone()) }
    }

    /// Tells the log.
    pub(super) fn log(&self) {
        self.proxy.log();
        self.host.log();
    }

    /// What both files and pages have.
    pub(super) fn to_json(&self, provider: &str) -> Value {
        json!({
            "format": FORMAT,
            "pe": self.proxy.me.0,
            "provider": provider,
            "lanes": [self.proxy.to_json(), self.host.to_json()],
        })
    }

    /// Of whose job they are.
    pub(super) fn pe(&self) -> Pe {
        self.proxy.me
    }

    /// Writes the job's file. One that cannot be written is a warning.
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
