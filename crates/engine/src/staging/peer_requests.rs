//! Peer requests: what peers ask for about staged memory of this process. How it goes on from there
//! is in [`crate::staging::fragments`], with the lane's own fragments.

use std::sync::Arc;
use std::time::Duration;

use log::error;

use crate::error::EngineError;
use crate::ids::{Pe, WrId};
use crate::port::copies::Reach;
use crate::port::{Direction, Port};
use crate::posting::Core;
use crate::rate_limit::RateLimit;
use crate::staging::Staging;
use crate::staging::state::role::Role;
use crate::staging::state::waiting::{Waiter, Wanted};
use crate::staging::state::{Fragment, Listed, PEER_REQUESTS, PEER_SEGMENTS, RemoteEnd};
use crate::state::messages::unnumbered::{NO_TICKET, Owed};
use crate::state::regions::Place;
use crate::state::segment::work::Work;
use crate::wire::message::{RequestId, Spot};
use crate::wire::staged::{
    Exposure, KEYS_PER_MESSAGE, Keys, LIST_ENTRY, MAX_PAYLOAD, MOST_LISTED, Staged,
};
use crate::wire::window::Seq;

impl Staging {
    pub(crate) fn asked_for<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        staged: &Staged<'_>,
        mark: Option<Seq>,
    ) -> Result<(), String> {
        self.sync_regions(core);
        match *staged {
            Staged::Put { to, payload } => {
                let place = core
                    .transmit
                    .regions_mut()
                    .locate(to, payload.len())
                    .map_err(|e| e.to_string())?;
                self.store_soon(core, place, payload, mark.is_some()).map_err(|e| e.to_string())
            }
            Staged::Pull { to, from, len, request_id, brought } => {
                self.want(
                    core,
                    pe,
                    Role::Pull(request_id),
                    to,
                    (from, mark, brought),
                    len as usize,
                );
                Ok(())
            }
            Staged::Ask { from, len, request_id } => {
                let nothing = Exposure { slot: 0, stamp: 0, offset: 0 };
                self.want(
                    core,
                    pe,
                    Role::Ask(request_id),
                    from,
                    (nothing, None, None),
                    len as usize,
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn take_answer<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        staged: &Staged<'_>,
    ) -> Result<(), String> {
        match *staged {
            Staged::Put { .. } | Staged::Pull { .. } | Staged::Ask { .. } => {}
            Staged::Pulled { request_id } => {
                let is_put = |asked: &Fragment| asked.role == Role::Put;
                if let Some(wr_id) = self.answered_as(core, pe, request_id, "pulled", is_put)? {
                    self.drop_fragment(core, wr_id);
                }
            }
            Staged::Exposed { request_id, from } => {
                // What is shorter comes in the answer itself.
                let fits = |asked: &Fragment| asked.role == Role::Get && asked.len > MAX_PAYLOAD;
                if let Some(wr_id) = self.answered_as(core, pe, request_id, "exposed", fits)? {
                    self.exposed(core, wr_id, from);
                }
            }
            Staged::Loaded { request_id, payload } => {
                let fits = |asked: &Fragment| asked.role == Role::Get && asked.len == payload.len();
                if let Some(wr_id) = self.answered_as(core, pe, request_id, "loaded", fits)? {
                    self.loaded(core, wr_id, payload);
                }
            }
            Staged::Refused { request_id, why } => self.was_refused(core, pe, request_id, why),
            Staged::Release { request_id } => self.released(core, pe, request_id),
            Staged::Keys(keys) => self.learn_keys(core, pe, &keys),
        }
        Ok(())
    }

    fn find<P: Port>(
        core: &mut Core<P>,
        role: Role,
        spot: Spot,
        len: usize,
    ) -> Result<(Place, Listed), String> {
        let Some(count) = spot.count_listed() else {
            let place = core.transmit.regions_mut().locate(spot, len);
            return place
                .map(|place| (place, Listed::default()))
                .map_err(|fault| fault.to_string());
        };
        let in_order = spot.is_in_order();
        let fits = (1..=MOST_LISTED as u64).contains(&count) && len / LIST_ENTRY > count as usize;
        if !fits || !matches!(role, Role::Pull(_)) {
            return Err(format!("a list of {count} puts in {len} bytes"));
        }
        let listed = Listed { count: count as u16, in_order };
        Ok((Place { addr: 0, reach: Reach::Staged }, listed))
    }

    /// A peer wants bytes stored or exposed.
    fn want<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        role: Role,
        spot: Spot,
        (from, mark, brought): (Exposure, Option<Seq>, Option<&[u8]>),
        len: usize,
    ) {
        let (Role::Pull(request_id) | Role::Ask(request_id)) = role else { return };
        let (place, listed) = match Self::find(core, role, spot, len) {
            Ok(found) => found,
            Err(why) => return self.refuse(core, pe, role, request_id, &why),
        };
        if from.is_in_bounce() {
            return self.want_shared(core, Wanted { pe, role, place, listed, len, from, mark });
        }
        if let (Role::Ask(_), true) = (role, len <= MAX_PAYLOAD) {
            let mut bytes = [0; MAX_PAYLOAD];
            self.counters.in_messages += len as u64;
            return match self.load_at(core, place, &mut bytes[..len]) {
                Ok(()) => core.queue_unnumbered(pe, Owed::Loaded { request_id, bytes, len }),
                Err(error) => self.refuse(core, pe, role, request_id, &error.to_string()),
            };
        }
        let most = self.bouncing().map_or(0, |bouncing| bouncing.bounce.bounce_len);
        if len > most {
            let why =
                format!("{len} bytes at once, and the bounce memory's bounce buffers have {most}");
            return self.refuse(core, pe, role, request_id, &why);
        }
        if self.state().waiting(role.direction()).asked_by(pe) >= PEER_REQUESTS {
            let why = format!("a PE has at most {PEER_REQUESTS} requests under way");
            return self.refuse(core, pe, role, request_id, &why);
        }
        if let (Role::Pull(_), Some(connection)) = (role, core.peers.find_mut(pe)) {
            connection.channel().begin_pull(request_id.seq);
        }
        let wanted = Wanted { pe, role, place, listed, len, from, mark };
        let is_first = self.state().waiting(role.direction()).is_empty();
        self.state().waiting(role.direction()).push(pe, Waiter::Peer(wanted));
        if let (true, Some(bytes)) = (is_first, brought) {
            self.take_brought(core, &wanted, bytes);
        }
        self.start_waiting(core);
    }

    /// Puts what a message has brought into a bounce buffer, for the only one who waits for one, if
    /// it may have one now. Else it goes on waiting, and reads the bytes.
    fn take_brought<P: Port>(&mut self, core: &mut Core<P>, wanted: &Wanted, bytes: &[u8]) {
        let Wanted { pe, role, len, .. } = *wanted;
        let direction = role.direction();
        if self.next_waiter(direction).is_none() {
            return;
        }
        let Some(wr_id) = self.begin_peer_request(core, wanted) else { return };
        let taken = self.bouncing().and_then(|bouncing| {
            let bounce = bouncing.bounces(direction).take()?;
            Some((bounce, bouncing.addr(role, bounce)))
        });
        let Some((bounce, place)) = taken else { return self.release_peer_request(core, wr_id) };
        self.state().waiting(direction).pop(pe);
        self.state().waiting(direction).hold(pe);
        let fragment = self.state().fragment(wr_id);
        (fragment.bounce, fragment.moved) = (Some(bounce), len);
        match core.transmit.port_mut().store(place, bytes) {
            Ok(()) => self.copy_in(core, wr_id),
            Err(error) => self.fail_fragment(core, wr_id, error),
        }
    }

    pub(crate) fn begin_peer_request<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wanted: &Wanted,
    ) -> Option<WrId> {
        let Wanted { pe, role, place, listed, len, from, mark } = *wanted;
        // It may be in the middle of a submission, to whose batch this does not belong.
        let wr_id = core.transmit.take_reserved()?;
        let Some(path) = core.fragment_path(pe) else {
            core.transmit.give_unused(wr_id);
            core.transmit.unreserve();
            return None;
        };
        let rail = path.rail;
        self.state().peer_segments += 1;
        let segment = core.transmit.segment_mut(wr_id);
        segment.pe = pe;
        segment.born = core.failures.stamp();
        segment.direction = Direction::Read;
        segment.set_work(Work::peer_request(Direction::Read, len));
        segment.step();
        segment.rail = rail;
        let remote_end = RemoteEnd::Exposed(from);
        let (memory, next) = (place.addr, listed.in_order.then_some(0));
        *self.state().fragment(wr_id) =
            Fragment { role, len, memory, remote_end, mark, listed, next, ..Fragment::NONE };
        Some(wr_id)
    }

    pub(crate) fn release_peer_request<P: Port>(&mut self, core: &mut Core<P>, wr_id: WrId) {
        self.leave_list(wr_id);
        self.leave_bounce(core, wr_id);
        self.leave_shared(wr_id);
        core.transmit.give_reserved(wr_id);
        core.is_no_orphan(wr_id);
        self.state().peer_segments -= 1;
    }

    pub(crate) fn answer_peer_request<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        answer: Owed,
    ) {
        let pe = core.transmit.segment(wr_id).pe;
        let role = self.state().fragment(wr_id).role;
        self.end_pull(core, pe, role, matches!(answer, Owed::Pulled { .. }));
        self.release_peer_request(core, wr_id);
        core.queue_unnumbered(pe, answer);
    }

    /// What a peer wanted is over. What comes behind it may go on; or never does, if it was not
    /// executed.
    pub(crate) fn end_pull<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        role: Role,
        executed: bool,
    ) {
        if let (Role::Pull(request_id), Some(connection)) = (role, core.peers.find_mut(pe)) {
            connection.channel().end_pull(request_id.seq, executed);
            core.peers.note_due(pe);
        }
    }

    pub(crate) fn go_on_in_order<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        let Some(state) = self.state.as_deref_mut() else { return };
        for _ in 0..state.peer(pe).in_order.len() {
            // Those that still wait come back to the end.
            let Some(wr_id) = self.state().peer(pe).in_order.pop_front() else { return };
            self.copy_in(core, wr_id);
        }
        self.go_on_behind(core, pe);
    }

    pub(crate) fn expose<P: Port>(
        &mut self,
        core: &mut Core<P>,
        wr_id: WrId,
        request_id: RequestId,
    ) {
        let pe = core.transmit.segment(wr_id).pe;
        let bounce = self.state().fragment(wr_id).bounce;
        let Some(bounce) = bounce else { return };
        let from = self.exposure_to(pe, bounce);
        self.tell_keys(core, pe, from);
        core.queue_unnumbered(pe, Owed::Exposed { request_id, from });
        self.state().lent.push(wr_id);
    }

    fn released<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, request_id: RequestId) {
        let Some(state) = self.state.as_deref_mut() else { return };
        let same = |wr_id: &WrId| {
            core.transmit.segment(*wr_id).pe == pe
                && state.peek(*wr_id).role == Role::Ask(request_id)
        };
        let Some(at) = state.lent.iter().position(same) else { return };
        let wr_id = state.lent.swap_remove(at);
        self.release_peer_request(core, wr_id);
        self.start_waiting(core);
    }

    /// Tells a peer the keys of a region of ours, unless it knows them.
    pub(crate) fn tell_keys<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, of: Exposure) {
        if of.is_in_bounce() || !self.state().peer(pe).exposures.tell(of.slot, of.stamp) {
            return;
        }
        let Some(view) = core.transmit.regions().named(of.slot, of.stamp) else { return };
        for first in (0..view.keys.len()).step_by(KEYS_PER_MESSAGE) {
            core.queue_unnumbered(pe, Owed::Keys { view: Arc::clone(&view), first: first as u8 });
        }
    }

    fn learn_keys<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, keys: &Keys<'_>) {
        if !self.state().peer(pe).exposures.learn(keys) {
            let why = String::from("it tells of more regions than a PE may have");
            return core.fail_connection(pe, EngineError::BadMessage { pe, why });
        }
        let peer = self.state().peer(pe);
        // Those that still lack theirs come back to the end.
        for _ in 0..peer.keyless.len() {
            let Some(wr_id) = self.state().peer(pe).keyless.pop_front() else { return };
            self.next_part(core, wr_id);
        }
    }

    #[cold]
    fn was_refused<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        request_id: RequestId,
        why: &str,
    ) {
        use EngineError::PeerRefused;
        let why = why.to_owned();
        match self.answered(core, pe, request_id) {
            Some(wr_id) => {
                let segment = core.transmit.segment(wr_id);
                let (what, len) = (segment.what(), segment.len());
                core.fail_connection(pe, PeerRefused { what, pe, len, why });
                self.drop_fragment(core, wr_id);
            }
            None if request_id == NO_TICKET => {
                let what = "a put, signal or atomic";
                core.fail_connection(pe, PeerRefused { what, pe, len: 0, why });
            }
            None => {}
        }
    }

    pub(crate) fn refuse<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        role: Role,
        request_id: RequestId,
        why: &str,
    ) {
        let refusal = refusal(pe, request_id, why);
        core.queue_unnumbered(pe, refusal);
        self.end_pull(core, pe, role, false);
    }
}

#[cold]
pub(crate) fn refusal(pe: Pe, request_id: RequestId, why: &str) -> Owed {
    static LIMIT: RateLimit = RateLimit::most(32, Duration::from_secs(10));
    if let Some(unsaid) = LIMIT.admit() {
        error!(target: "TRANSPORT", "{pe} asks for something that cannot be done: {why}{unsaid}");
    }
    Owed::Refused { request_id, why: why.into() }
}

const _: () = assert!(PEER_REQUESTS <= PEER_SEGMENTS);
