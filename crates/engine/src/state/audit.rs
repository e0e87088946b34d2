//! The tools of an audit: what is counted beside the things themselves is counted anew, and
//! compared. See [`Lane::audit`](crate::lane::Lane::audit).

use std::collections::HashMap;
use std::fmt::Debug;

use crate::ids::{Pe, WrId};
use crate::port::Direction;
use crate::state::segment::table::SegmentTable;
use crate::state::segment::waits::Waits;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage, WriteClass};

/// What the segments in use say, by what is kept beside them.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) peers: HashMap<Pe, OfPeer>,
    /// By rail: in flight; bytes ahead.
    pub(crate) rails: Vec<(u32, u64)>,
    pub(crate) all: OfAll,
}

/// Those of all peers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OfAll {
    pub(crate) ready: u32,
    pub(crate) messages: u32,
    pub(crate) acknowledged: u32,
    pub(crate) stripes: u32,
    pub(crate) pooled: u32,
    pub(crate) peer_requests: u32,
    pub(crate) chained: u32,
}

/// Those of one peer.
#[derive(Clone, Default, Debug)]
pub(crate) struct OfPeer {
    pub(crate) under_way: [u32; 2],
    pub(crate) words: u32,
    pub(crate) even_puts: u32,
    pub(crate) odd_puts: u32,
    pub(crate) lost_writes: u32,
    pub(crate) held: u32,
    pub(crate) held_back: u32,
    pub(crate) windowed: u32,
    /// Writes that have left as messages, and pulls among them.
    pub(crate) placed: u32,
    pub(crate) pulls: u32,
    /// Messages that have not left.
    pub(crate) unsent: u32,
    pub(crate) fetches: u16,
    pub(crate) tags: u16,
    pub(crate) fragments: u32,
    pub(crate) ahead: Vec<u64>,
}

pub(crate) fn tally(
    segments: &SegmentTable,
    messages: impl Iterator<Item = Segment>,
    rails: usize,
    raised: &[WrId],
) -> Found {
    let mut found =
        Found { peers: HashMap::new(), rails: vec![(0, 0); rails], all: OfAll::default() };
    for (wr_id, segment) in segments.all_in_use() {
        let is_listed = !raised.contains(&wr_id);
        found.all.add(segment, is_listed);
        let of_peer = found.peers.entry(segment.pe).or_default();
        of_peer.ahead.resize(rails, 0);
        of_peer.add(segment, is_listed);
        let at = segment.rail.index();
        let has_wr_id = match segment.stage {
            Stage::Posted => true,
            Stage::Lost => segment.waits().has(Waits::FABRIC),
            _ => false,
        };
        found.rails[at].0 += u32::from(has_wr_id);
        if segment.in_load {
            found.rails[at].1 += segment.len() as u64;
            of_peer.ahead[at] += segment.len() as u64;
        }
    }
    for message in messages {
        let of_peer = found.peers.entry(message.pe).or_default();
        of_peer.ahead.resize(rails, 0);
        of_peer.add(&message, false);
    }
    found
}

impl OfAll {
    fn add(&mut self, segment: &Segment, is_listed: bool) {
        let (stage, work) = (segment.stage, segment.work());
        let count = |count: &mut u32, so: bool| *count += u32::from(so);
        count(&mut self.ready, is_listed && stage == Stage::Ready);
        count(&mut self.messages, work.is_message());
        let is_fetch = matches!(work, Work::Fetch { .. });
        let is_acknowledged = is_fetch && segment.message().is_none();
        count(&mut self.acknowledged, is_acknowledged);
        count(&mut self.stripes, segment.is_stripe);
        count(&mut self.pooled, matches!(work, Work::Pooled { .. }));
        count(&mut self.peer_requests, matches!(work, Work::PeerRequest { .. }));
        count(&mut self.chained, stage == Stage::Chained);
    }
}

impl OfPeer {
    fn add(&mut self, segment: &Segment, is_listed: bool) {
        let Segment { stage, direction, class, .. } = *segment;
        let is_fragment = matches!(segment.work(), Work::Fragment { .. });
        if matches!(segment.work(), Work::PeerRequest { .. }) {
            return;
        }
        let is_write = direction == Direction::Write;
        let count = |count: &mut u32, so: bool| *count += u32::from(so);
        if !matches!(stage, Stage::Held | Stage::Chained) {
            self.under_way[direction as usize] += 1;
            count(&mut self.words, is_write && class == WriteClass::Word);
            count(&mut self.even_puts, is_write && class == WriteClass::EvenPut);
            count(&mut self.odd_puts, is_write && class == WriteClass::OddPut);
        }
        count(&mut self.lost_writes, segment.is_reissued_write());
        count(&mut self.held, is_listed && stage == Stage::Held);
        count(&mut self.held_back, is_listed && stage == Stage::BehindPuts);
        count(&mut self.windowed, is_listed && stage == Stage::Windowed);
        count(&mut self.placed, is_write && stage == Stage::Sent);
        count(&mut self.pulls, is_write && stage == Stage::Sent && is_fragment);
        count(&mut self.fragments, is_fragment);
        if segment.work().is_message() || is_fragment {
            count(&mut self.unsent, stage != Stage::Sent && segment.message().is_some());
        }
        match *segment.work() {
            Work::Fetch { place, .. } => self.fetches |= 1 << place,
            Work::CountedSignal { tag, .. } => self.tags |= 1 << tag.slot(),
            _ => {}
        }
    }
}
