//! The monitor of paths: four times a second it finds which of them stand still, what has to be asked or told once
//! more, and which are worth another try.

use crate::engine::ids::{Pe, RailId};
use crate::engine::port::Port;
use crate::engine::posting::Core;
use crate::engine::recovery::Recovery;
use crate::engine::recovery::health::{Answer, PathHealth};
use crate::engine::state::segment::{Kind, NIL, Stage};
use crate::engine::wire::rails::Rails;

/// Bytes of one segment for which it gets another unit of time: some 4 MiB a second.
const BYTES_PER_STAMP: usize = 1 << 20;

/// How often a peer is told of a rail's new address while it does not say that it has heard.
const ROUNDS: u32 = 64;

/// What a look has found.
enum Found {
    Silent { pe: Pe, rail: RailId, reason: String },
    Unheard { pe: Pe, rail: RailId },
    Ping(Pe),
}

impl Recovery {
    /// Looks at all paths, four times a second.
    #[cold]
    pub(in crate::engine) fn look_at_paths<P: Port>(&mut self, core: &mut Core<P>) {
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
    }

    fn find_trouble<P: Port>(&mut self, core: &mut Core<P>) -> Vec<Found> {
        let now = core.watchdog.stamp();
        let Core { segments, streams, messages, rails, paths, control, .. } = &mut *core;
        let judges = self.judges(now);
        for path in self.peers.values_mut().flat_map(|peer| peer.paths.iter_mut()) {
            (path.posted, path.survivors, path.longest) = (0, 0, 0);
        }
        for stream in streams.iter().filter(|stream| !stream.is_quiet()) {
            self.peer(stream.pe);
        }
        for (_, segment) in segments.in_use_mut() {
            if !matches!(segment.stage, Stage::Posted | Stage::AtomicPosted) {
                continue;
            }
            let path = &mut self.peer(segment.pe).paths[segment.rail.index()];
            path.posted += 1;
            path.longest = path.longest.max(segment.transfer.len);
            path.survivors += u32::from(segment.was_seen());
        }
        let mut found = Vec::new();
        let Recovery { timeout, peers, mine, .. } = self;
        for (&pe, peer) in peers {
            let Some(stream) = streams.find_mut(pe).filter(|stream| stream.error.is_none()) else {
                continue;
            };
            for (at, path) in peer.paths.iter_mut().enumerate() {
                // What waits first, and does not leave though there is room, is on a silent path too.
                let front = rails[at].front().filter(|front| segments[*front].pe == pe);
                let front = front.or(stream.first_blocked(RailId(at as u8)));
                if front.is_none() || front != path.front.0 || rails[at].is_full() {
                    path.front = (front, now);
                }
                if path.total == 0 || path.survivors < path.total {
                    if path.total != 0 {
                        peer.alive = now;
                    }
                    path.moved = now;
                }
                path.total = path.posted;
            }
            let mut pings = false;
            let mut unheard = None;
            // A signal is acknowledged when its data is there, which may be on a path that stands still: then
            // it is not the signal's.
            let stands = |path: &PathHealth| path.total != 0 && now - path.moved > 1;
            // Not for ever: it may be one that stays in service, as the last.
            let soon_out = |path: &PathHealth| now - path.moved < 2 * *timeout;
            let stands_still = peer.paths.iter().any(|path| stands(path) && soon_out(path));
            if let Some(link) = stream.link.as_deref_mut() {
                let seen = (link.ack_received, link.received.prefix());
                if seen != peer.seen {
                    peer.alive = now;
                }
                let waits = link.oldest != NIL && stream.lost_writes == 0;
                if seen.0 != peer.seen.0 || !waits {
                    peer.unheard = now;
                } else {
                    link.ask_again();
                }
                peer.seen = seen;
                if let Some((rail, _)) = messages.rail_of(link.oldest) {
                    let path = &peer.paths[rail.index()];
                    let moves = path.total != 0 && now - path.moved < *timeout;
                    let still = now - peer.unheard;
                    pings |= still >= *timeout / 2;
                    let over = judges && still >= *timeout && peer.alive > peer.unheard;
                    if over && !moves && !stands_still {
                        peer.unheard = now;
                        unheard = Some(rail);
                    }
                }
            }
            if peer.unheard != now && stream.link.is_some() {
                // The question, or its answer, may have gone over a path that does not work.
                stream.rotate(paths);
                if stream
                    .link
                    .as_deref_mut()
                    .is_some_and(crate::engine::state::link::Link::enters_control)
                {
                    control.push_back(pe);
                }
            }
            for (at, path) in peer.paths.iter().enumerate() {
                let rail = RailId(at as u8);
                if paths.is_out(pe, rail) || mine[at].closing.is_some() {
                    continue;
                }
                let patience = *timeout + (path.longest / BYTES_PER_STAMP) as u32;
                let (front, since) = path.front;
                let still = if path.total > 0 { now - path.moved } else { 0 };
                let stuck = if front.is_some() { now - since } else { 0 };
                let (still, since) =
                    if stuck > still { (stuck, since) } else { (still, path.moved) };
                pings |= still > 0 && still >= patience / 2;
                if judges && still >= patience && peer.alive > since {
                    let seconds = (u64::from(still) << 28) / 1_000_000_000;
                    let reason =
                        format!("nothing has completed on it for {seconds} s, and the PE is alive");
                    found.push(Found::Silent { pe, rail, reason });
                }
            }
            if let Some(rail) = unheard {
                found.push(Found::Unheard { pe, rail });
            }
            if pings {
                found.push(Found::Ping(pe));
            }
        }
        found
    }

    /// Asks again what was not answered, and gives up what was not answered in time.
    fn repeat_questions<P: Port>(&mut self, core: &mut Core<P>) {
        let now = core.watchdog.stamp();
        let timeout = self.timeout;
        let mut failed = Vec::new();
        let mut ask = Vec::new();
        for (&pe, peer) in &mut self.peers {
            let resets = peer.wants.iter();
            ask.extend(resets.map(|&(rail, generation)| (pe, Rails::Reset { rail, generation })));
            if let (number, false) = peer.settling {
                ask.push((pe, Rails::Settle { number }));
            }
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
        self.answers.extend(rails);
        let fetches = core.segments.tokens(|segment| {
            segment.kind == Kind::Fetch
                && segment.stage == Stage::Sent
                && segment.message().is_none()
                && now - segment.born >= timeout / 2
        });
        for token in fetches {
            let segment = &core.segments[token.0];
            let (ticket, place) = (segment.ticket(token), segment.fetch_place());
            ask.push((segment.pe, Rails::ReplyAgain { ticket, place }));
        }
        for (pe, question) in ask {
            self.tell(core, pe, question);
        }
        for (pe, error) in failed {
            let last = core.streams.find(pe).map(|stream| stream.next.rail);
            let reason = "it has failed, and the PE has not opened its rail again";
            if !last.is_some_and(|rail| self.suspect(core, pe, rail, reason, true)) {
                core.fail_stream(pe, error);
            }
        }
    }

    /// Tries paths that have cooled down.
    fn probe_paths<P: Port>(&mut self, core: &mut Core<P>) {
        let now = core.watchdog.stamp();
        let Some(cooling) = self.cooling else { return };
        let mut probes = Vec::new();
        for (&pe, peer) in &mut self.peers {
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
