//! The audit of staging: bounce buffers, places and copies, beside the segments of fragments.

use std::collections::HashMap;

use crate::ids::{Pe, WrId};
use crate::port::copies::CopyDirection;
use crate::staging::Staging;
use crate::staging::state::{Peer, State};
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::table::SegmentTable;
use crate::state::segment::work::Work;
use crate::state::segment::{Segment, Stage};

impl Staging {
    pub(crate) fn audit(
        &self,
        segments: &SegmentTable,
        raised: &[WrId],
    ) -> Result<u32, Discrepancy> {
        self.state.as_deref().map_or(Ok(0), |state| state.audit(segments, raised))
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Has {
    fragments: u32,
    requests: u32,
    bounces: [usize; 2],
    lists: [usize; 2],
}

impl State {
    fn audit(&self, segments: &SegmentTable, raised: &[WrId]) -> Result<u32, Discrepancy> {
        let mut found: HashMap<Pe, Has> = HashMap::new();
        let (mut peer_segments, mut staged, mut shared) = (0, 0, 0);
        for (wr_id, segment) in segments.all_in_use().filter(|(_, s)| s.work().is_staged()) {
            let Segment { pe, stage, .. } = *segment;
            let is_peers = matches!(segment.work(), Work::PeerRequest { .. });
            let fragment = self.peek(wr_id);
            let of_peer = found.entry(pe).or_default();
            of_peer.fragments += u32::from(!is_peers);
            of_peer.requests += u32::from(fragment.counts);
            let way = usize::from(fragment.role.direction() == CopyDirection::In);
            of_peer.bounces[way] += usize::from(fragment.bounce.is_some());
            of_peer.lists[way] += usize::from(fragment.list.is_some());
            peer_segments += u32::from(is_peers);
            shared += u32::from(fragment.copies_from_peer());
            staged += usize::from(stage == Stage::Staged && !raised.contains(&wr_id));
        }
        same("segments in use for peers", self.peer_segments, peer_segments)?;
        self.same_host.audit(shared)?;
        let mut waiting = self.lent.len() + self.ready.len();
        for (pe, peer) in &self.peers {
            let has = found.get(pe).copied().unwrap_or_default();
            waiting += peer.audit(segments, has).map_err(|differs| differs.of(pe))?;
            let copies = self.same_host.queued_of(*pe) + peer.behind.len();
            same(
                "puts in bounce buffers of its own that wait",
                peer.shared_waiting as usize,
                copies,
            )
            .map_err(|differs| differs.of(pe))?;
        }
        let ways = [(&self.waiting_out, 0), (&self.waiting_in, 1)];
        for (queue, way) in ways {
            waiting += queue.audit(|pe| found.get(&pe).map_or(0, |has| has.bounces[way]))?;
        }
        let lists = |way: usize| found.values().map(|has| has.lists[way]).sum::<usize>();
        for (way, in_use) in self.gathered.in_use().into_iter().enumerate() {
            same("lists of puts", in_use, lists(way))?;
        }
        if let Some(bouncing) = &self.bouncing {
            let held = |way: usize| found.values().map(|has| has.bounces[way]).sum();
            bouncing.audit([held(0), held(1)])?;
        }
        same("copies under way", self.copying as usize, staged - waiting)?;
        Ok(peer_segments)
    }
}

impl Peer {
    fn audit(&self, segments: &SegmentTable, has: Has) -> Result<usize, Discrepancy> {
        same("fragments", self.fragments, has.fragments)?;
        same("requests", self.requests, has.requests)?;
        let blocked = self.blocked.audit(segments, Stage::Staged)? as usize;
        Ok(blocked + self.keyless.len() + self.in_order.len())
    }
}
