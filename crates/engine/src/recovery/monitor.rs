//! The monitor of paths: four times a second it finds which of them stand still, what has to be
//! asked or told once more, and which are worth another try.
//!
//! It looks at peers for which something is under way, that are to answer, or of which a path is
//! out of service, and once more when that is over. The others cost nothing, however many are
//! known: what a look would have noted of one is told when there is something again.

use crate::ids::{Pe, RailId, WrId};
use crate::port::Port;
use crate::posting::Core;
use crate::recovery::Recovery;
use crate::recovery::health::{Answer, PathHealth, PeerHealth};
use crate::state::connection::Connection;
use crate::state::messages::reliable_channel::FIRST;
use crate::state::segment::Stage;
use crate::state::segment::work::{MessageSlot, Work};
use crate::wire::rails::Rails;
use crate::wire::window::Seq;

const BYTES_PER_STAMP: usize = 1 << 20;

const ROUNDS: u32 = 64;

enum Found {
    Silent { pe: Pe, rail: RailId, reason: String },
    Unheard { pe: Pe, rail: RailId },
    Ping(Pe),
}

impl Recovery {
    #[cold]
    pub(crate) fn look_at_paths<P: Port>(&mut self, core: &mut Core<P>) {
        for found in self.find_trouble(core) {
            match found {
                Found::Ping(pe) => self.tell(core, pe, Rails::Ping),
                Found::Silent { pe, rail, reason } => {
                    self.suspect(core, pe, rail, &reason, false);
                }
                Found::Unheard { pe, rail } => {
                    let reason = "messages over it are not acknowledged, and the PE is alive";
                    if !self.suspect(core, pe, rail, reason, false) {
                        self.lose_messages(core, pe, |_| true);
                    }
                }
            }
        }
        self.repeat_questions(core);
        self.check_lost(core);
        self.probe_paths(core);
        self.look_away(core);
    }

    fn watched(&self) -> Vec<Pe> {
        let mut watched = self.watched.clone();
        watched.sort_unstable();
        watched
    }

    fn begin_look(&mut self, pe: Pe, before: u32) -> &mut PeerHealth {
        let looks = self.looks;
        let peer = self.peer(pe);
        let missed = looks.wrapping_sub(std::mem::replace(&mut peer.looked, looks));
        if missed == 0 {
            return peer;
        }
        peer.is_back = missed > 1 && peer.seen.is_some();
        if peer.is_back {
            // Nothing was due then.
            peer.unheard = before;
        }
        for path in &mut peer.paths {
            (path.posted, path.survivors, path.longest) = (0, 0, 0);
        }
        peer
    }

    fn look_away<P: Port>(&mut self, core: &Core<P>) {
        let Self { watched, peers, .. } = self;
        watched.retain(|pe| {
            let Some(peer) = peers.get_mut(pe) else { return false };
            let connection = core.peers.find(*pe).filter(|connection| connection.error.is_none());
            let is_due =
                |connection: &Connection| !connection.is_quiet() || connection.has_unheard();
            peer.watched = peer.is_open() || connection.is_some_and(is_due);
            peer.watched
        });
    }

    fn find_trouble<P: Port>(&mut self, core: &mut Core<P>) -> Vec<Found> {
        // By the looks before this one.
        let judges = self.judges(core.failures.stamp());
        self.count_posted(core);
        let mut found = Vec::new();
        for pe in self.watched() {
            self.look_at(core, pe, judges, &mut found);
        }
        found
    }

    fn count_posted<P: Port>(&mut self, core: &mut Core<P>) {
        let before = self.looked;
        self.looks = self.looks.wrapping_add(1);
        // Answers are no operations of this PE's, and may be lost all the same.
        core.peers.drain_answered(|pe| {
            self.peer(pe);
        });
        for pe in self.watched() {
            self.begin_look(pe, before);
        }
        for segment in core.without_segment() {
            self.begin_look(segment.pe, before);
        }
        for segment in core.transmit.in_use_mut() {
            let peer = self.begin_look(segment.pe, before);
            if segment.stage != Stage::Posted {
                continue;
            }
            let path = &mut peer.paths[segment.rail.index()];
            path.posted += 1;
            path.longest = path.longest.max(segment.len());
            path.survivors += u32::from(segment.was_seen());
        }
    }

    fn look_at<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        judges: bool,
        found: &mut Vec<Found>,
    ) {
        let now = core.failures.stamp();
        let Core { transmit, peers: known, .. } = core;
        let Recovery { timeout, peers, mine, .. } = self;
        let Some(peer) = peers.get_mut(&pe) else { return };
        let missing = known.first_missing(pe);
        let Some(connection) = known.find_mut(pe).filter(|connection| connection.error.is_none())
        else {
            return;
        };
        for (at, path) in peer.paths.iter_mut().enumerate() {
            // What waits for the peer, and does not leave though there is room, is on a silent path
            // too.
            let rail = transmit.rail(RailId(at as u8));
            let front = rail.blocked.front(pe).copied().filter(|_| !rail.is_full());
            // By the time as well: another one may be in its slot.
            let front = front.map(|front| (front, transmit.segment(WrId(front)).born));
            if path.look(front, now) {
                peer.alive = now;
            }
        }
        let mut pings = false;
        let mut unheard = None;
        let mut asks = false;
        if let Some(channel) = connection.channel.as_deref_mut() {
            // What is there, and waits for what it comes behind, is not lost, however long.
            let waits = missing.is_some() && connection.lost_writes == 0;
            let stands = peer.look((channel.heard(), channel.received.prefix()), waits, now);
            asks = stands || missing.is_none() && channel.has_unacked();
            if asks {
                channel.ask_again();
            }
            if let Some(rail) = missing {
                pings = now - peer.unheard >= *timeout / 2;
                if judges && peer.is_unheard(rail, now, *timeout) {
                    peer.unheard = now;
                    unheard = Some(rail);
                }
            }
        }
        if asks {
            // The question, or its answer, may have gone over a path that does not work.
            transmit.rotate(connection);
            known.queue_control(pe);
        }
        for (at, path) in peer.paths.iter().enumerate() {
            let rail = RailId(at as u8);
            if transmit.is_out(pe, rail) || mine[at].closing.is_some() {
                continue;
            }
            let (still, patience) = (now - path.stands_since(), path.patience(*timeout));
            pings |= still >= patience / 2;
            if judges && path.is_silent(peer.alive, now, *timeout) {
                let seconds = (u64::from(still) << 28) / 1_000_000_000;
                let reason =
                    format!("nothing has completed on it for {seconds} s, and the PE is alive");
                found.push(Found::Silent { pe, rail, reason });
            }
        }
        found.extend(unheard.map(|rail| Found::Unheard { pe, rail }));
        found.extend(pings.then_some(Found::Ping(pe)));
    }

    fn repeat_questions<P: Port>(&mut self, core: &mut Core<P>) {
        let now = core.failures.stamp();
        let timeout = self.timeout;
        let mut failed = Vec::new();
        let mut ask = Vec::new();
        for pe in self.watched() {
            let Some(peer) = self.peers.get_mut(&pe) else { continue };
            let resets = peer.wants.iter();
            ask.extend(resets.map(|&(rail, generation)| (pe, Rails::Reset { rail, generation })));
            let keys = peer.asked.iter();
            ask.extend(
                keys.map(|&(rail, key, wanted)| (pe, Rails::KeyWanted { rail, key, wanted })),
            );
            if peer.grace.as_ref().is_some_and(|(until, _)| *until <= now) {
                failed.extend(peer.grace.take().map(|(_, error)| (pe, *error)));
            }
        }
        let mut rails = Vec::new();
        for (at, rail) in self.mine.iter_mut().enumerate() {
            if rail.rounds >= ROUNDS {
                rail.unconfirmed.clear();
            }
            rail.rounds = if rail.unconfirmed.is_empty() { 0 } else { rail.rounds + 1 };
            let to = rail.unconfirmed.iter();
            rails.extend(to.map(|pe| (*pe, Answer::RailIs(RailId(at as u8)))));
        }
        rails.into_iter().for_each(|(pe, answer)| self.add_answer(pe, answer));
        for (wr_id, segment) in core.transmit.all_in_use() {
            let Work::Fetch { slot: MessageSlot::NONE, place, .. } = *segment.work() else {
                continue;
            };
            if segment.stage == Stage::Sent && now - segment.born >= timeout / 2 {
                let request_id = segment.request_id(wr_id);
                ask.push((segment.pe, Rails::ReplyAgain { request_id, place }));
            }
        }
        for (pe, question) in ask {
            self.tell(core, pe, question);
        }
        for (pe, error) in failed {
            let last = core.peers.find(pe).map(|connection| connection.next.rail);
            let reason = "it has failed, and the PE has not opened its rail again";
            if !last.is_some_and(|rail| self.suspect(core, pe, rail, reason, true)) {
                core.fail_connection(pe, error);
            }
        }
    }

    fn probe_paths<P: Port>(&mut self, core: &mut Core<P>) {
        let now = core.failures.stamp();
        let Some(cooling) = self.cooling else { return };
        let mut probes = Vec::new();
        for pe in self.watched() {
            let Some(peer) = self.peers.get_mut(&pe) else { continue };
            for (rail, path) in peer.paths.iter_mut().enumerate() {
                let Some(since) = path.out.filter(|_| !path.gone) else { continue };
                let cooled = now - since >= cooling && self.mine[rail].closing.is_none();
                if cooled && now - path.probed >= 2 {
                    path.probe = path.probe.wrapping_add(1);
                    path.probed = now;
                    probes.push((pe, RailId(rail as u8), path.probe));
                }
            }
        }
        for (pe, rail, number) in probes {
            // If it is not where this PE thinks, the probe goes nowhere.
            self.tell(core, pe, Rails::Ping);
            self.probe(core, pe, rail, number);
        }
    }
}

impl PathHealth {
    fn look(&mut self, front: Option<(u32, u32)>, now: u32) -> bool {
        if front.is_none() || front != self.front.0 {
            self.front = (front, now);
        }
        let has_moved = self.survivors < self.total;
        if has_moved || self.total == 0 {
            self.moved = now;
        }
        self.total = self.posted;
        has_moved
    }

    fn stands_since(&self) -> u32 {
        self.moved.min(self.front.1)
    }

    fn is_silent(&self, alive: u32, now: u32, timeout: u32) -> bool {
        let since = self.stands_since();
        now - since >= self.patience(timeout) && alive > since
    }

    fn patience(&self, timeout: u32) -> u32 {
        timeout + (self.longest / BYTES_PER_STAMP) as u32
    }
}

impl PeerHealth {
    fn is_open(&self) -> bool {
        let is_open = |path: &PathHealth| {
            path.total != 0 || path.front.0.is_some() || path.out.is_some() && !path.gone
        };
        let asked = !self.wants.is_empty() || !self.asked.is_empty();
        asked || self.grace.is_some() || self.paths.iter().any(is_open)
    }

    /// Takes in what the peer is known to have had, and which messages of it are here. Whether
    /// nothing was heard of some that may be lost.
    fn look(&mut self, seen: (Seq, Seq), waits: bool, now: u32) -> bool {
        let before = self.seen.replace(seen);
        if before.unwrap_or((FIRST, FIRST)) != seen {
            // What has changed while nobody looked may have done so long ago.
            self.alive = if self.is_back { self.alive.max(self.unheard) } else { now };
        }
        let stands = waits && before.is_some_and(|before| before.0 == seen.0);
        if !stands {
            self.unheard = now;
        }
        stands
    }

    fn is_unheard(&self, rail: RailId, now: u32, timeout: u32) -> bool {
        let still = |path: &PathHealth| now - path.moved;
        // Not for ever: it may be one that stays in service, as the last.
        let is_dead = |path: &PathHealth| still(path) >= 2 * timeout;
        // A signal is acknowledged when its data is there, which may be on a path that stands
        // still: then it is not the signal's. Nor is it where data moves.
        let path = &self.paths[rail.index()];
        now - self.unheard >= timeout
            && self.alive > self.unheard
            && (path.total == 0 || is_dead(path))
            && self.paths.iter().all(|path| still(path) < 2 || is_dead(path))
    }
}
