//! A fabric that does nothing: what is posted is complete at the next poll. What is left of an
//! operation's cost is ours.

use std::sync::Arc;

use engine::Watchdog;
use engine::atomic::Atomic;
use engine::ids::{LaneKind, Pe, RailId, WrId};
use engine::lane::{Lane, LaneConfig, SignalEngine};
use engine::port::copies::Reach;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::port::{
    Access, Addressing, Clock, Completions, DataPath, LocalMemory, MemoryPort, Messaging,
    Operation, POLL_BATCH, PeerAddr, Polled, PortError, Posted, RailControl, RailLimits,
    Registered, hand_over,
};
use engine::rails::balance::Spread;
use engine::rails::paths::{Path, PathTable};
use engine::state::regions::{RegionIndex, RegionTable};
use engine::wire::cookie::Cookie;
use engine::wire::handle::{Handle, HandleBytes, HandleError};

/// The handle of the same memory, as if it were this PE's.
pub(crate) fn of_peer(owner: Pe, handle: &HandleBytes) -> Result<HandleBytes, HandleError> {
    Ok(Handle { owner, ..Handle::decode(handle)? }.encode())
}

/// What a rail takes.
pub(super) const RAIL: RailLimits = RailLimits {
    max_segment: 1 << 20,
    depth: 256,
    needs_desc: false,
    immediate_data: false,
    longest_message: MAX_MESSAGE,
    bulk: 0,
};

/// The job's key.
pub(super) fn cookie() -> Cookie {
    Cookie::of([*b"0123456789abcdef"])
}

/// PE 0's proxy lane in a job of so many PEs, each behind one rail.
pub(super) fn config(regions: Arc<RegionIndex>, n_pes: u32) -> LaneConfig {
    let path = Path { to: PeerAddr(0), remote: RailId(0) };
    LaneConfig {
        me: Pe(0),
        cookie: cookie(),
        kind: LaneKind::Proxy,
        paths: PathTable::new(&vec![path; n_pes as usize], 1),
        regions,
        watchdog: Watchdog::new(None, None),
        signals: SignalEngine::Auto,
        counted: 0,
        mark_bytes: 8,
        spread: Spread::ROUND_ROBIN,
        devices: false,
        longest_message: MAX_LONG_MESSAGE,
    }
}

#[derive(Debug)]
pub(crate) struct Null {
    limits: [RailLimits; 1],
    posted: Vec<WrId>,
    now: u64,
    /// How memory is reached that is registered.
    reach: Reach,
}

impl Null {
    pub(crate) fn new() -> Self {
        Self::reaching(Reach::Direct, false)
    }

    /// For memory that is reached like this, and whose local side needs descriptors or not.
    pub(crate) fn reaching(reach: Reach, needs_desc: bool) -> Self {
        let rail = RailLimits { needs_desc, ..RAIL };
        Self { limits: [rail], posted: Vec::with_capacity(256), now: 0, reach }
    }
}

impl Null {
    /// PE 0's proxy lane over it, in a job of so many PEs.
    pub(crate) fn lane(regions: &RegionTable<Null>, n_pes: u32) -> Lane<Null> {
        Self::new().open(regions, n_pes)
    }

    /// The same over this one.
    pub(crate) fn open(self, regions: &RegionTable<Null>, n_pes: u32) -> Lane<Null> {
        let devices = self.reach != Reach::Direct;
        let config = LaneConfig { devices, ..config(regions.index(), n_pes) };
        Lane::new(self, config)
    }
}

impl DataPath for Null {
    type Fast = ();

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, _rail: RailId) -> &str {
        "null"
    }

    fn post(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        wr_id: WrId,
        _operation: Operation<'_>,
    ) -> Result<Posted, PortError> {
        self.posted.push(wr_id);
        Ok(Posted::Yes)
    }

    fn has_fast_path(&self) -> bool {
        true
    }

    fn fast(&self, _rail: RailId) {}

    fn drain(&mut self, _rail: RailId, completions: &mut impl Completions) -> Polled {
        let count = self.posted.len().min(POLL_BATCH);
        hand_over(completions, &self.posted[..count], |wr_id| wr_id.index(), |_| 1);
        self.posted.drain(..count);
        if count == 0 { Polled::Empty } else { Polled::Completed(count) }
    }
}

impl Messaging for Null {
    fn has_message(&self, _rail: RailId) -> bool {
        false
    }
}

impl RailControl for Null {}

/// No message comes in that would ask for any of it.
impl LocalMemory for Null {
    fn apply(&mut self, _addr: usize, _atomic: &Atomic) -> Result<u64, PortError> {
        unreachable!("a word changes")
    }

    fn load(&mut self, _addr: usize, _into: &mut [u8]) -> Result<(), PortError> {
        unreachable!("bytes are loaded")
    }

    fn store(&mut self, _addr: usize, _bytes: &[u8]) -> Result<(), PortError> {
        unreachable!("bytes are stored")
    }

    fn store_flag(&mut self, _addr: usize, _flag: u64) -> Result<(), PortError> {
        unreachable!("a flag is stored")
    }
}

impl Clock for Null {
    fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn relax(&mut self) {}
}

impl MemoryPort for Null {
    type Region = ();

    fn register(
        &self,
        _addr: usize,
        _len: usize,
        _access: Access,
    ) -> Result<Registered<()>, PortError> {
        let region = Registered::without_descs((), vec![1], Addressing::Virtual);
        Ok(Registered { reach: self.reach, ..region })
    }

    fn reaches_devices(&self) -> bool {
        false
    }
}
