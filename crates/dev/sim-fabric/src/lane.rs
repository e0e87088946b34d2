//! What lanes on the fake are opened with, unless a test says otherwise.

use std::sync::Arc;
use std::time::Duration;

use engine::Watchdog;
use engine::channel::counts::TAGS;
use engine::ids::LaneKind;
use engine::lane::{LaneConfig, SignalChoice};
use engine::port::packet::MAX_LONG_MESSAGE;
use engine::rails::Spread;
use engine::rails::paths::{Path, PathTable};
use engine::regions::RegionDirectory;
use engine::wire::cookie::Cookie;

use crate::prelude::*;

pub const SHARE: [u8; 16] = *b"0123456789abcdef";

pub const RAIL: RailLimits = RailLimits {
    max_segment: 1 << 20,
    depth: 16,
    needs_desc: false,
    immediate_data: true,
    longest_message: MAX_MESSAGE,
    bulk: 0,
};

/// Paths by which each rail of every PE leads to the rail of the same number.
pub fn straight_paths(n_pes: u32, rails: u8) -> PathTable {
    let all = (0..n_pes).flat_map(|pe| (0..rails).map(move |rail| (Pe(pe), RailId(rail))));
    let to = |(pe, remote)| Path { to: FakeFabric::address(pe, remote), remote };
    PathTable::new(&all.map(to).collect::<Vec<_>>(), rails.into())
}

pub fn lane_config(me: Pe, paths: PathTable, regions: Arc<RegionDirectory>) -> LaneConfig {
    LaneConfig {
        me,
        cookie: Cookie::of([SHARE]),
        kind: LaneKind::Proxy,
        paths,
        regions,
        watchdog: Watchdog::new(Some(Duration::from_secs(10)), Some(Duration::from_secs(60))),
        signals: SignalChoice::Auto,
        counted: TAGS,
        immediate_bytes: 8,
        spread: Spread::ROUND_ROBIN,
        devices: false,
        longest_message: MAX_LONG_MESSAGE,
    }
}
