//! Messages about rails: what a lane says of its rails to its peers, and what it does about what
//! they say.

use log::debug;

use crate::ids::{Pe, RailId};
use crate::port::{PeerAddr, Port, Posted};
use crate::posting::Core;
use crate::posting::failures::CONTROL;
use crate::recovery::Recovery;
use crate::recovery::health::{Answer, OwnRail, WayBack};
use crate::staging::Staging;
use crate::state::messages::reliable_channel::{FIRST, ReliableChannel};
use crate::wire::handle::MAX_RAILS;
use crate::wire::message::{Body, Message, Packet};
use crate::wire::rails::Rails;
use crate::wire::window::Seq;

const TRIES: u32 = 16;

const ANSWERS: usize = 64;

const OWED: u32 = 512;

/// Most addresses that are taken in from a peer. Each time that one of its rails is opened again it
/// has another one there, and providers keep them all.
const ADDRESSES: u32 = 1 << 16;

impl Recovery {
    pub(crate) fn go_on<P: Port>(&mut self, core: &mut Core<P>, staging: &mut Staging) {
        self.relaunch_all(core, staging);
        self.resend_all(core);
        self.give_answers(core);
        if self.has_work() {
            core.failures.hurry();
        }
    }

    /// Says something to a peer, over every path: which of them work is what it is about. What
    /// arrives more than once has the same number, so that it is answered once.
    pub(crate) fn tell<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, what: Rails<'_>) {
        let said = &mut self.peer(pe).said;
        *said = said.wrapping_add(1).max(1);
        let number = Seq(*said);
        for rail in core.transmit.rail_ids() {
            self.send_over(core, pe, rail, number, Body::Rails(what));
        }
    }

    fn send_over<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        seq: Seq,
        body: Body<'_>,
    ) {
        let gone = self.find(pe).is_some_and(|peer| peer.paths[rail.index()].gone);
        if gone {
            return;
        }
        if core.peers.check(pe).is_err() {
            return;
        }
        let ack = self.ack_for(core, pe);
        let mut packet = Packet::EMPTY;
        Message { from: core.peers.me(), seq, ack, behind: 0, body }.encode(&mut packet);
        core.peers.seal(pe, &mut packet);
        let Some(to) = self.control(pe, rail) else { return };
        for _ in 0..TRIES {
            match core.transmit.port_mut().send_control(rail, to, packet.bytes()) {
                Ok(Posted::Again) => {}
                Ok(Posted::Yes) => return,
                Err(error) => {
                    return debug!(target: "TRANSPORT", "{body:?} to {pe} over {rail}: {error}");
                }
            }
        }
    }

    #[cold]
    pub(crate) fn heard_of_rails<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        number: Seq,
        what: Rails<'_>,
    ) {
        if number != Seq(0) && self.peer(pe).heard.has(number.0) {
            return;
        }
        // What was lost before belongs to the generations that were known then.
        self.adopt(core);
        let now = core.failures.stamp();
        let rails = core.transmit.rails().len();
        let exists = |rail: RailId| rail.index() < rails;
        let mut answer = None;
        self.peer(pe).alive = now;
        match what {
            Rails::Ping => {
                // Or else the news: who hears nothing but that this PE lives knows all of its
                // rails.
                let news = self.news_for(pe);
                answer = news.is_empty().then_some(Answer::Pong);
                for rail in news {
                    self.owe(pe, Answer::RailIs(rail));
                }
            }
            Rails::Pong => {
                if let Some(fallback_routes) = self.fallback_routes.as_deref() {
                    fallback_routes.settle(pe);
                }
            }
            Rails::Reset { rail, generation } if exists(rail) => {
                if self.mine[rail.index()].generation > generation {
                    answer = Some(Answer::RailIs(rail));
                } else if core.transmit.port().can_reset(rail) && !self.mine[rail.index()].fixed {
                    // One that has asked too often has no answer yet, and asks again.
                    if self.mine[rail.index()].closing.is_none()
                        && self.peer(pe).may_reset(rail, now)
                    {
                        self.close_rail(core, rail, pe);
                    }
                } else {
                    answer = Some(Answer::CannotReset(rail, generation));
                }
            }
            Rails::RailIs { rail, generation, cause, address } => {
                self.learn_rail(core, pe, rail, generation, cause, address);
                answer = Some(Answer::Heard(rail, generation));
            }
            Rails::Heard { rail, generation } if exists(rail) => {
                let mine = &mut self.mine[rail.index()];
                if mine.generation == generation {
                    mine.unconfirmed.retain(|other| *other != pe);
                    self.peer(pe).knows[rail.index()] = generation;
                }
            }
            Rails::ReplyAgain { request_id, place } => {
                let channel = core.peers.channel_mut(pe);
                let replies = channel.and_then(|channel| channel.replies.as_deref());
                let reply = replies.and_then(|replies| *replies.get(usize::from(place))?);
                if let Some((_, value)) = reply.filter(|(of, _)| *of == request_id) {
                    answer = Some(Answer::Word(request_id, value));
                }
            }
            Rails::Probe { rail, remote: over, number, address }
                if exists(over) && rail.index() < MAX_RAILS =>
            {
                let to = self.way_back(core, pe, (over, rail), address);
                answer = to.map(|to| Answer::Probed { over, to, rail, number });
            }
            Rails::Probed { rail, number } if exists(rail) => {
                if self.peer(pe).paths[rail.index()].is_probed_by(number) {
                    self.reinstate(core, pe, rail);
                }
            }
            Rails::KeyWanted { rail, key, wanted } => {
                core.transmit.regions_mut().sync();
                let found = core.transmit.regions().other_key(rail, key, wanted);
                answer = Some(Answer::KeyIs { rail, key, wanted, found });
            }
            Rails::KeyIs { rail, key, wanted, found } => {
                let (peer, asked) = (self.peer(pe), (rail, key, wanted));
                if peer.asked.contains(&asked) {
                    peer.asked.retain(|other| *other != asked);
                    peer.keys.insert(asked, found);
                }
            }
            // Of a rail that is none.
            Rails::Reset { .. }
            | Rails::Heard { .. }
            | Rails::Probe { .. }
            | Rails::Probed { .. } => {}
        }
        if let Some(answer) = answer {
            self.owe(pe, answer);
        }
        core.failures.hurry();
    }

    /// An answer is due to a peer, unless as many are as may be: all questions are repeated until
    /// they are answered, so a peer that keeps the rules loses nothing by it.
    pub(crate) fn owe(&mut self, pe: Pe, answer: Answer) {
        if self.peer(pe).owed < OWED {
            self.add_answer(pe, answer);
        }
    }

    pub(super) fn add_answer(&mut self, pe: Pe, answer: Answer) {
        self.peer(pe).owed += 1;
        self.answers.push((pe, answer));
    }

    /// A user thread has an operation for a peer: it may go its own way from the next one on, if
    /// the peer's rails are where they were.
    pub(crate) fn greet<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        if self
            .fallback_routes
            .as_deref()
            .is_some_and(|fallback_routes| fallback_routes.is_unsettled(pe))
            && core.peers.check_pe(pe).is_ok()
        {
            self.tell(core, pe, Rails::Ping);
        }
    }

    fn news_for(&mut self, pe: Pe) -> Vec<RailId> {
        let knows = self.peer(pe).knows.clone();
        let mine = self.mine.iter().zip(knows).enumerate();
        let news = mine.filter(|(_, (mine, known))| mine.generation > *known);
        news.map(|(rail, _)| RailId(rail as u8)).collect()
    }

    fn give_answers<P: Port>(&mut self, core: &mut Core<P>) {
        let me = core.peers.me();
        let now = self.answers.len().min(ANSWERS);
        let later = self.answers.split_off(now);
        for (pe, answer) in std::mem::replace(&mut self.answers, later) {
            self.peer(pe).owed -= 1;
            let what = match answer {
                Answer::Pong => Rails::Pong,
                Answer::Heard(rail, generation) => Rails::Heard { rail, generation },
                Answer::KeyIs { rail, key, wanted, found } => {
                    Rails::KeyIs { rail, key, wanted, found }
                }
                Answer::CannotReset(rail, generation) => {
                    Rails::RailIs { rail, generation, cause: me, address: &[] }
                }
                Answer::Probed { over, to, rail, number } => {
                    self.send_data(core, pe, (over, to), Rails::Probed { rail, number });
                    continue;
                }
                Answer::RailIs(rail) => {
                    self.tell_of_rail(core, pe, rail);
                    continue;
                }
                Answer::Word(request_id, value) => {
                    for rail in core.transmit.rail_ids() {
                        self.send_over(
                            core,
                            pe,
                            rail,
                            request_id.seq,
                            Body::Reply { request_id, value },
                        );
                    }
                    continue;
                }
            };
            self.tell(core, pe, what);
        }
    }

    pub(crate) fn probe<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId, number: u32) {
        let OwnRail { generation, address, .. } = &self.mine[rail.index()];
        let address = if *generation == 0 {
            core.transmit.port().first_address(rail)
        } else {
            address.clone()
        };
        let hop = core.transmit.path(pe, rail);
        let remote = hop.remote_key.rail();
        let what = Rails::Probe { rail, remote, number, address: &address };
        self.send_data(core, pe, (rail, hop.to), what);
    }

    fn way_back<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rails: (RailId, RailId),
        address: &[u8],
    ) -> Option<PeerAddr> {
        if let Some(known) = self.peer(pe).ways_back.get(&rails) {
            if *known.address == *address {
                return Some(known.to);
            }
        }
        if !self.takes_address(pe) {
            return None;
        }
        match core.transmit.port_mut().insert_address(rails.0, address) {
            Ok(to) => {
                let known = WayBack { address: address.into(), to };
                self.peer(pe).ways_back.insert(rails, known);
                Some(to)
            }
            Err(error) => {
                debug!(target: "TRANSPORT", "the way back to {} of {pe}: {error}", rails.1);
                None
            }
        }
    }

    pub(crate) fn takes_address(&mut self, pe: Pe) -> bool {
        let count = &mut self.peer(pe).addresses;
        *count = count.saturating_add(1);
        *count < ADDRESSES
    }

    fn send_data<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        (rail, to): (RailId, PeerAddr),
        what: Rails<'_>,
    ) {
        if core.transmit.rail(rail).is_paused() || core.peers.check(pe).is_err() {
            return;
        }
        let mut packet = Packet::EMPTY;
        let (seq, ack) = (Seq(0), self.ack_for(core, pe));
        Message { from: core.peers.me(), seq, ack, behind: 0, body: Body::Rails(what) }
            .encode(&mut packet);
        core.peers.seal(pe, &mut packet);
        if let Err(error) = core.transmit.port_mut().send(rail, to, CONTROL, packet.bytes()) {
            debug!(target: "TRANSPORT", "{what:?} to {pe} over {rail}: {error}");
        }
    }

    fn ack_for<P: Port>(&self, core: &Core<P>, pe: Pe) -> Seq {
        let channel = core.peers.channel(pe);
        channel.map_or(FIRST, ReliableChannel::ack)
    }

    pub(crate) fn tell_of_rail<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, rail: RailId) {
        let mine = &self.mine[rail.index()];
        let (generation, address) = (mine.generation, mine.address.clone());
        let cause = mine.cause.unwrap_or(core.peers.me());
        self.tell(core, pe, Rails::RailIs { rail, generation, cause, address: &address });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::rails::paths::{AddressTable, Path, PathTable};
    use crate::recovery::health::RailHealth;

    #[test]
    fn a_peer_that_asks_for_ever_has_no_endless_queue_here() {
        let paths = [Path { to: PeerAddr(0), remote: RailId(0) }; 3];
        let reach = PathTable::new(&paths, 1).reach().clone();
        let config = RailHealth { timeout: Duration::from_secs(1), cooling: None };
        let mut recovery = Recovery::new(&config, AddressTable::new(&[], 1), reach, 1);
        for _ in 0..2 * OWED {
            recovery.owe(Pe(1), Answer::Pong);
        }
        assert_eq!(recovery.answers.len(), OWED as usize);
        recovery.owe(Pe(2), Answer::Pong);
        recovery.owe(Pe(2), Answer::Heard(RailId(0), 1));
        recovery.owe(Pe(1), Answer::Pong);
        assert_eq!(recovery.answers.len(), OWED as usize + 2, "others have what is due to them");
        let taken = (0..2 * ADDRESSES).filter(|_| recovery.takes_address(Pe(1))).count();
        assert_eq!(taken, ADDRESSES as usize - 1);
        assert!(!recovery.takes_address(Pe(1)) && recovery.takes_address(Pe(2)));
    }
}
