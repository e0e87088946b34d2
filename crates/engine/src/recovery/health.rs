//! The health of paths: what a lane knows of its rails, those of its peers, and the paths between
//! them, and how it finds that one does not work.
//!
//! A *path* is one of our rails towards one peer. It is suspected when something fails on it, or
//! when nothing on it completes while the peer shows life elsewhere. Then it is taken out of
//! service, and what was on it goes over others ([`crate::recovery::reissue`]) as soon as the
//! rails' owners have seen to it that nothing of it arrives late ([`crate::recovery::reset`]).
//! After a time of cooling it is probed, from one data endpoint to the other and back, and is in
//! service again when the answer has come.
//!
//! The common ways of the lane know nothing of this. A path that is out is unlinked from the ring
//! by which connections choose, and the state of segments is looked at four times a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use log::warn;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{PeerAddr, Port};
use crate::posting::Core;
use crate::posting::failures::watchdog::Watchdog;
use crate::rails::paths::{AddressTable, RailsTo};
use crate::recovery::fallback_routes::FallbackRoutes;
use crate::state::pe_map::PeMap;
use crate::state::segment::waits::REISSUES;
use crate::wire::message::RequestId;
use crate::wire::rails::Rails;
use crate::wire::window::Seq;

/// Most time between two looks, in the watchdog's units: about two seconds. After a longer one this
/// process was not running, or in none of our calls, and what has completed meanwhile has not been
/// taken.
const MAX_PAUSE: u32 = 8;

/// When paths are declared failed and tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RailHealth {
    /// A path on which nothing completes for so long, while the peer is alive, is out of service.
    pub timeout: Duration,
    /// It is tried again so long after; none never.
    pub cooling: Option<Duration>,
}

/// What a lane knows of paths.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) timeout: u32,
    pub(crate) cooling: Option<u32>,
    rails: usize,
    /// Where the control endpoints of peers are, by PE and local rail.
    control: AddressTable,
    pub(crate) peers: PeMap<PeerHealth>,
    /// Those of them that are looked at the next time: whatever has changed of late, waits for
    /// something, or is out of service.
    pub(super) watched: Vec<Pe>,
    reach: RailsTo,
    pub(crate) mine: Box<[OwnRail]>,
    /// Segments that were in doubt, and some that have left it.
    pub(crate) lost: Vec<WrId>,
    pub(crate) lossy: Vec<Pe>,
    /// Whether those come before what is due without a number: room goes to each of them in turn.
    pub(crate) resends_first: bool,
    pub(super) answers: Vec<(Pe, Answer)>,
    /// PEs that the host lane is not to reach by itself.
    pub(crate) fallback_routes: Option<Arc<FallbackRoutes>>,
    /// Looks so far, when the last one was, and whether that was after a pause.
    pub(super) looks: u32,
    pub(super) looked: u32,
    paused: bool,
}

/// An answer to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Pong,
    RailIs(RailId),
    CannotReset(RailId, u32),
    Heard(RailId, u32),
    /// From this rail of ours, to where a peer's is.
    Probed {
        over: RailId,
        to: PeerAddr,
        rail: RailId,
        number: u32,
    },
    KeyIs {
        rail: RailId,
        key: u64,
        wanted: RailId,
        found: Option<u64>,
    },
    /// The reply to a fetch.
    Word(RequestId, u64),
}

/// One of this lane's rails.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnRail {
    pub(crate) generation: u32,
    /// Its address since it was; empty when it is closed for good.
    pub(crate) address: Vec<u8>,
    /// It cannot be opened again.
    pub(crate) fixed: bool,
    /// How often it may be closed because it has failed.
    pub(super) failures: Allowance,
    pub(crate) closing: Option<Closing>,
    /// Who caused the last time, and when that was.
    pub(crate) cause: Option<Pe>,
    pub(crate) reset: Option<u32>,
    /// Peers that have not said that they know of the address.
    pub(crate) unconfirmed: Vec<Pe>,
    pub(crate) rounds: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    pub(crate) since: u32,
    pub(crate) cause: Pe,
}

/// What is known of the paths to one peer, and of its rails.
#[derive(Debug)]
pub(crate) struct PeerHealth {
    pub(crate) paths: Box<[PathHealth]>,
    /// Generations of our rails, as the peer has said to know them.
    pub(crate) knows: Box<[u32]>,
    generations: HashMap<RailId, u32>,
    /// Rails of the peer, with the generation that has to be over before what was sent to them may
    /// be sent another way.
    pub(crate) wants: Vec<(RailId, u32)>,
    /// Keys of the peer's regions: by a rail, the key there, and another rail.
    pub(crate) keys: HashMap<(RailId, u64, RailId), Option<u64>>,
    pub(crate) asked: Vec<(RailId, u64, RailId)>,
    /// The ways to rails of the peer that were probed from, by our rail and theirs.
    pub(crate) ways_back: HashMap<(RailId, RailId), WayBack>,
    pub(crate) addresses: u32,
    /// How often it may have rails of ours closed and opened again, by our rail.
    resets: Box<[Allowance]>,
    /// Its only path has failed, with this: until when it may come back.
    pub(crate) grace: Option<(u32, Box<EngineError>)>,
    /// It is among those that are looked at, and the number of the last look at it.
    pub(super) watched: bool,
    pub(super) looked: u32,
    /// It was not looked at at the look before.
    pub(super) is_back: bool,
    pub(super) owed: u32,
    /// The number of what was last said to it, and what it has said.
    pub(super) said: u32,
    pub(super) heard: Heard,
    pub(crate) alive: u32,
    /// The acknowledgement and the prefix at the last look, if there was one, and since when the
    /// former has been due.
    pub(crate) seen: Option<(Seq, Seq)>,
    pub(crate) unheard: u32,
}

/// Where a rail of a peer is that was probed from, and what to send to.
#[derive(Debug)]
pub(crate) struct WayBack {
    pub(crate) address: Box<[u8]>,
    pub(crate) to: PeerAddr,
}

/// The numbers of what a peer has said of rails, the latest and those shortly before. It says each
/// thing over every path, and is answered once: over every path as well.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    latest: u32,
    /// Those before, a bit each; the lowest one is of the latest.
    before: u64,
}

impl Heard {
    /// Something with this number has come. Whether it had come before, over another path; of what
    /// is too old to tell, that it has not: to answer again does no harm.
    pub(super) fn has(&mut self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.latest) as i32;
        if ahead > 0 {
            self.before = self.before.checked_shl(ahead as u32).unwrap_or(0) | 1;
            self.latest = number;
            return false;
        }
        let Some(bit) = 1u64.checked_shl(ahead.unsigned_abs()) else { return false };
        let has = self.before & bit != 0;
        self.before |= bit;
        has
    }
}

/// Most resets of a rail that a peer has at once, as many as an operation that each of them cuts
/// off takes, and time until it has one more. A peer that asks for ever costs what providers keep
/// of a rail that was closed (decision 20) no more often.
const RESETS: u32 = REISSUES;
const RESET_EVERY: Duration = Duration::from_secs(30);

/// How often something may be done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    used: u32,
    /// Since when the next use comes back.
    since: u32,
}

impl Allowance {
    pub(super) fn take(&mut self, now: u32) -> bool {
        let every = Watchdog::stamps(RESET_EVERY);
        let back = now.wrapping_sub(self.since) / every;
        self.used = self.used.saturating_sub(back);
        self.since = if self.used == 0 { now } else { self.since.wrapping_add(back * every) };
        let left = self.used < RESETS;
        self.used += u32::from(left);
        left
    }
}

/// One path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathHealth {
    /// Since when it is out of service.
    pub(crate) out: Option<u32>,
    pub(crate) by_error: bool,
    /// When it came back without being probed.
    pub(crate) returned: Option<u32>,
    /// It never comes back.
    pub(crate) gone: bool,
    pub(crate) probe: u32,
    pub(crate) probed: u32,
    pub(crate) total: u32,
    /// Segments posted on it now, and those of them that were at the last look.
    pub(crate) posted: u32,
    pub(crate) survivors: u32,
    pub(crate) longest: usize,
    /// When something has last completed on it, or nothing was posted.
    pub(crate) moved: u32,
    /// The segment that was next to be posted at the last look and when it began, and since when it
    /// is next.
    pub(crate) front: (Option<(u32, u32)>, u32),
}

impl Recovery {
    /// Over so many rails, which lead where `reach` says. `control` has, for each PE, the address
    /// of the control endpoint at the end of each local rail's path.
    pub(crate) fn new(
        config: &RailHealth,
        control: AddressTable,
        reach: RailsTo,
        rails: usize,
    ) -> Self {
        Self {
            timeout: Watchdog::stamps(config.timeout),
            cooling: config.cooling.map(Watchdog::stamps),
            rails,
            control,
            peers: PeMap::default(),
            watched: Vec::new(),
            reach,
            mine: vec![OwnRail::default(); rails].into(),
            lost: Vec::new(),
            lossy: Vec::new(),
            answers: Vec::new(),
            fallback_routes: None,
            looks: 0,
            looked: 0,
            paused: false,
            resends_first: false,
        }
    }

    pub(crate) fn peer(&mut self, pe: Pe) -> &mut PeerHealth {
        let (rails, reach) = (self.rails, &self.reach);
        let peer = self.peers.entry(pe).or_insert_with(|| PeerHealth::new(rails, reach.of(pe)));
        if !std::mem::replace(&mut peer.watched, true) {
            self.watched.push(pe);
        }
        peer
    }

    pub(crate) fn control(&self, pe: Pe, rail: RailId) -> Option<PeerAddr> {
        let leads = self.reach.of(pe) >> rail.0 & 1 != 0;
        self.control.get(pe, rail).filter(|_| leads)
    }

    pub(crate) fn find(&self, pe: Pe) -> Option<&PeerHealth> {
        self.peers.get(&pe)
    }

    pub(crate) fn has_work(&self) -> bool {
        !(self.lost.is_empty() && self.lossy.is_empty() && self.answers.is_empty())
            || self.mine.iter().any(|rail| rail.closing.is_some())
    }

    pub(crate) fn judges(&mut self, now: u32) -> bool {
        let pause = now - std::mem::replace(&mut self.looked, now) > MAX_PAUSE;
        let again = std::mem::replace(&mut self.paused, pause);
        !pause || again
    }

    pub(crate) fn note_loss(&mut self, pe: Pe) {
        if !self.lossy.contains(&pe) {
            self.lossy.push(pe);
        }
    }
}

impl PeerHealth {
    pub(super) fn new(rails: usize, reach: u32) -> Self {
        let path =
            |rail: usize| PathHealth { gone: reach >> rail & 1 == 0, ..PathHealth::default() };
        Self {
            paths: (0..rails).map(path).collect(),
            knows: vec![0; rails].into(),
            generations: HashMap::new(),
            wants: Vec::new(),
            keys: HashMap::new(),
            asked: Vec::new(),
            ways_back: HashMap::new(),
            addresses: 0,
            resets: vec![Allowance::default(); rails].into(),
            grace: None,
            watched: false,
            looked: 0,
            is_back: false,
            owed: 0,
            said: 0,
            heard: Heard::default(),
            alive: 0,
            seen: None,
            unheard: 0,
        }
    }

    pub(crate) fn generation(&self, rail: RailId) -> u32 {
        self.generations.get(&rail).copied().unwrap_or(0)
    }

    pub(crate) fn set_generation(&mut self, rail: RailId, generation: u32) {
        self.generations.insert(rail, generation);
    }

    /// The path that has been out of service for longest, if the peer has shown life since: the
    /// last one in service has failed, too, so it may be better than that.
    fn other(&self, now: u32) -> Option<RailId> {
        let out = |(at, path): (usize, &PathHealth)| {
            let since = path.out.filter(|since| !path.gone && *since < now)?;
            (self.alive > since).then_some((since, at))
        };
        let (_, at) = self.paths.iter().enumerate().filter_map(out).min()?;
        Some(RailId(at as u8))
    }

    pub(crate) fn may_reset(&mut self, rail: RailId, now: u32) -> bool {
        self.resets[rail.index()].take(now)
    }

    pub(crate) fn sent_again(&mut self, now: u32) {
        self.unheard = now;
    }

    /// What was sent to a rail of the peer so far must not arrive any more.
    pub(crate) fn want(&mut self, rail: RailId) {
        let want = (rail, self.generation(rail));
        if !self.wants.contains(&want) {
            self.wants.push(want);
        }
    }
}

impl PathHealth {
    pub(crate) fn is_probed_by(&self, number: u32) -> bool {
        self.out.is_some() && !self.gone && self.probe == number
    }
}

impl Recovery {
    /// A path has failed: takes it out of service, and what is on it goes another way. False if it
    /// is the only one to the peer: then nothing has happened.
    #[cold]
    pub(crate) fn suspect<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        reason: &str,
        by_error: bool,
    ) -> bool {
        let now = core.failures.stamp();
        let (bit, in_service) = (1 << rail.0, core.transmit.in_service(pe));
        if in_service & bit != 0 {
            if in_service == bit {
                let Some(other) = self.peer(pe).other(now) else { return false };
                self.reinstate(core, pe, other);
                return self.suspect(core, pe, rail, reason, by_error);
            }
            let path = &mut self.peer(pe).paths[rail.index()];
            (path.out, path.by_error) = (Some(now), by_error);
            if let Some(fallback_routes) = self.fallback_routes.as_deref() {
                fallback_routes.set(pe);
            }
            core.transmit.count_failure(rail);
            let remote = core.transmit.remote_rail(pe, rail);
            if let Some(unsaid) = core.may_say() {
                let name = core.transmit.port().rail_name(rail);
                warn!(
                    target: "TRANSPORT",
                    "{rail} ({name}) to {remote} of {pe} is out of service: {reason}; what was on it goes \
                     over other rails{unsaid}"
                );
            }
            self.serve(core, pe, in_service & !bit);
            // It may have opened its rail again, and not have known that this PE minds.
            self.tell(core, pe, Rails::Ping);
        }
        self.unqueue(core, pe, rail);
        self.lose_path(core, pe, rail);
        self.lose_messages(core, pe, |over| over == rail);
        true
    }

    pub(crate) fn reinstate<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId) {
        if self.peer(pe).paths[rail.index()].out.take().is_none() {
            return;
        }
        let remote = core.transmit.remote_rail(pe, rail);
        if let Some(unsaid) = core.may_say() {
            let name = core.transmit.port().rail_name(rail);
            warn!(
                target: "TRANSPORT",
                "{rail} ({name}) to {remote} of {pe} is in service again{unsaid}"
            );
        }
        self.serve(core, pe, core.transmit.in_service(pe) | 1 << rail.0);
    }

    pub(crate) fn serve<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, in_service: u32) {
        core.transmit.serve(pe, in_service);
        if let Some(connection) = core.peers.find_mut(pe) {
            let rail = connection.next.rail;
            connection.next = core.transmit.path(pe, rail);
            if in_service >> rail.0 & 1 == 0 {
                core.transmit.rotate(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rails::paths::{Path, PathTable};

    #[test]
    fn the_first_look_after_a_pause_judges_nothing() {
        let config = RailHealth { timeout: Duration::from_secs(5), cooling: None };
        let mut recovery = Recovery::new(&config, AddressTable::new(&[], 2), RailsTo::all(2), 2);
        assert!(recovery.judges(1));
        assert!(recovery.judges(2));
        assert!(!recovery.judges(20), "stopped, and what has completed since is not taken yet");
        assert!(recovery.judges(21));
        assert!(!recovery.judges(40));
        assert!(recovery.judges(60), "that is how often it looks");
        assert!(recovery.judges(80));
        assert!(recovery.judges(81));
        assert!(recovery.judges(81 + MAX_PAUSE));
        assert!(!recovery.judges(82 + 2 * MAX_PAUSE));
    }

    #[test]
    fn the_path_to_try_last_is_the_longest_out_after_which_the_peer_has_shown_life() {
        let mut peer = PeerHealth::new(4, 0b1011);
        assert!(peer.paths[2].gone, "it never led there");
        peer.alive = 10;
        assert_eq!(peer.other(20), None, "all are in service");
        let outs = [Some(7), Some(5), Some(1), Some(10)];
        for (path, out) in peer.paths.iter_mut().zip(outs) {
            path.out = out;
        }
        assert_eq!(peer.other(20), Some(RailId(1)));
        peer.paths[1].gone = true;
        assert_eq!(peer.other(20), Some(RailId(0)));
        assert_eq!(peer.other(8), Some(RailId(0)));
        assert_eq!(peer.other(7), None, "it has only just failed");
        peer.alive = 7;
        assert_eq!(peer.other(20), None, "no life since");
        peer.alive = 8;
        assert_eq!(peer.other(20), Some(RailId(0)));
    }

    #[test]
    fn a_path_returns_by_the_answer_to_its_latest_probe_alone() {
        let out = PathHealth { out: Some(3), probe: 7, ..PathHealth::default() };
        assert!(out.is_probed_by(7) && !out.is_probed_by(6));
        assert!(!PathHealth { gone: true, ..out }.is_probed_by(7));
        assert!(!PathHealth { out: None, ..out }.is_probed_by(7));
    }

    #[test]
    fn what_is_said_over_several_paths_is_heard_once() {
        let mut heard = Heard::default();
        let has: Vec<bool> =
            [1, 1, 3, 1, 2, 2, 3, 67, 67, 4, 4, 3, 66].map(|number| heard.has(number)).into();
        let once = [false, true, false, true, false, true, true];
        assert_eq!(has[..7], once);
        assert_eq!(has[7..], [false, true, false, true, false, false], "3 is too old to tell");
        let mut heard = Heard { latest: u32::MAX, before: 1 };
        assert_eq!(
            [u32::MAX, 1, u32::MAX, 1].map(|number| heard.has(number)),
            [true, false, true, true]
        );
        assert!(!heard.has(1 << 31) && !heard.has(1 << 30), "whatever it is");
    }

    #[test]
    fn there_is_work_as_long_as_something_is_lost_unanswered_or_to_be_closed() {
        let config = RailHealth { timeout: Duration::from_secs(5), cooling: None };
        let new = || Recovery::new(&config, AddressTable::new(&[], 2), RailsTo::all(2), 2);
        assert!(!new().has_work());
        let mut recovery = new();
        recovery.lost.push(WrId(0));
        assert!(recovery.has_work());
        let mut recovery = new();
        recovery.note_loss(Pe(1));
        recovery.note_loss(Pe(1));
        assert!(recovery.has_work() && recovery.lossy == [Pe(1)]);
        let mut recovery = new();
        recovery.answers.push((Pe(1), Answer::Pong));
        assert!(recovery.has_work());
        let mut recovery = new();
        let cause = Pe(0);
        recovery.mine[1].closing = Some(Closing { since: 0, cause });
        assert!(recovery.has_work());
    }

    #[test]
    fn peers_are_known_once_asked_for() {
        let config = RailHealth { timeout: Duration::from_secs(5), cooling: None };
        let at = PeerAddr;
        // Not in steps, so that each has to be kept.
        let ends = [5, 9, 1, 2, 7, 3].map(at);
        let control = AddressTable::new(&ends, 2);
        let mut recovery = Recovery::new(&config, control, RailsTo::all(2), 2);
        assert!(recovery.find(Pe(1)).is_none());
        recovery.peer(Pe(1)).want(RailId(1));
        recovery.peer(Pe(1)).want(RailId(1));
        recovery.peer(Pe(1)).set_generation(RailId(1), 1);
        recovery.peer(Pe(1)).want(RailId(1));
        let peer = recovery.find(Pe(1)).unwrap();
        assert_eq!(peer.wants, [(RailId(1), 0), (RailId(1), 1)]);
        let leads = PathTable::new(&[Path { to: at(0), remote: RailId(0) }; 6], 2);
        let reach = leads.without(Pe(1), RailId(0)).reach().clone();
        let partly = Recovery::new(&config, AddressTable::new(&ends, 2), reach, 2);
        let to = |pe, rail| partly.control(Pe(pe), RailId(rail));
        assert_eq!((to(1, 0), to(1, 1), to(2, 0)), (None, Some(at(2)), Some(at(7))));
        let ends = [0, 1, 2, 3].map(|pe| recovery.control(Pe(pe), RailId(1)));
        assert_eq!(ends, [Some(at(9)), Some(at(2)), Some(at(3)), None], "there is no PE 3");
    }
}
