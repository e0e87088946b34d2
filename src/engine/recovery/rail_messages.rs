//! What a lane does about its rails at each turn while there is something to do, and what it says of them
//! to its peers.

use log::debug;

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::Lane;
use crate::engine::messages::outgoing::CONTROL;
use crate::engine::port::{Failure, Port, PortError, Posted};
use crate::engine::recovery::health::Answer;
use crate::engine::state::segment::{Kind, NIL, Stage};
use crate::engine::wire::message::{Body, Message, Packet};
use crate::engine::wire::rails::Rails;
use crate::engine::wire::window::{Seq, WINDOW};

/// How often a control message is tried at a time; it is repeated anyway, until it is answered.
const TRIES: u32 = 16;

/// How long news may take beyond twice the timeout, in the watchdog's units: some three seconds.
const NEWS: u32 = 12;

impl<P: Port> Lane<P> {
    /// Gets on with what has failed. `look` is whether it is time to look at the paths as well.
    #[cold]
    pub(in crate::engine) fn heal(&mut self, look: bool) {
        self.hear();
        if look {
            self.look_at_paths();
        }
        self.close_rails();
        self.relaunch_all();
        self.resend_all();
        self.give_answers();
        if self.health.as_deref().is_some_and(|health| health.has_work()) {
            self.watchdog.hurry();
        }
    }

    /// Takes in what has come to the control endpoints.
    fn hear(&mut self) {
        let mut packet = Packet::EMPTY;
        for rail in (0..self.rails.len()).map(|rail| RailId(rail as u8)) {
            while self.port.receive_control(rail, &mut packet) {
                self.message_at_length(rail, packet.bytes());
            }
        }
    }

    /// Says something to a peer, over every path: which of them work is what it is about.
    pub(in crate::engine) fn tell(&mut self, pe: Pe, what: Rails<'_>) {
        for rail in 0..self.rails.len() {
            self.tell_over(pe, RailId(rail as u8), what);
        }
    }

    /// Says something to a peer over one path, if it takes it.
    pub(in crate::engine) fn tell_over(&mut self, pe: Pe, rail: RailId, what: Rails<'_>) {
        self.send_over(pe, rail, Body::Rails(what));
    }

    fn send_over(&mut self, pe: Pe, rail: RailId, body: Body<'_>) {
        let gone = self.health.as_deref().and_then(|health| health.find(pe));
        let gone = gone.is_some_and(|peer| peer.paths[rail.index()].gone);
        if gone {
            return;
        }
        let Some(stream) = self.streams.open(pe, &self.paths) else { return };
        if stream.error.is_some() {
            return;
        }
        let ack = stream.link().ack();
        let mut packet = Packet::EMPTY;
        Message { from: self.me, seq: Seq(0), ack, body }.encode(&mut packet);
        let Some(to) = self.health.as_deref().and_then(|health| health.control(pe, rail)) else {
            return;
        };
        for _ in 0..TRIES {
            match self.port.send_control(rail, to, packet.bytes()) {
                Ok(Posted::Again) => {}
                Ok(Posted::Yes) => return,
                Err(error) => {
                    return debug!(target: "TRANSPORT", "{body:?} to {pe} over {rail}: {error}");
                }
            }
        }
    }

    /// Takes in what a peer says. Answers are noted, as with all messages.
    #[cold]
    pub(in crate::engine) fn heard_of_rails(&mut self, pe: Pe, what: Rails<'_>) {
        let now = self.watchdog.stamp();
        let Some(health) = self.health.as_deref_mut() else { return };
        let rails = self.rails.len();
        let exists = |rail: RailId| rail.index() < rails;
        let mut answer = None;
        health.peer(pe).alive = now;
        match what {
            Rails::Ping => answer = Some(Answer::Pong),
            Rails::Pong => {}
            Rails::Reset { rail, generation } if exists(rail) => {
                if health.mine[rail.index()].generation > generation {
                    answer = Some(Answer::RailIs(rail));
                } else if self.port.can_reset(rail) && !health.mine[rail.index()].fixed {
                    self.close_rail(rail, pe);
                } else {
                    answer = Some(Answer::CannotReset(rail, generation));
                }
            }
            Rails::RailIs { rail, generation, cause, address } => {
                self.learn_rail(pe, rail, generation, cause, address);
                answer = Some(Answer::Heard(rail, generation));
            }
            Rails::Heard { rail, generation } if exists(rail) => {
                let mine = &mut health.mine[rail.index()];
                if mine.generation == generation {
                    mine.unconfirmed.retain(|other| *other != pe);
                }
            }
            Rails::ReplyAgain { ticket, place } => {
                let link = self.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
                let replies = link.and_then(|link| link.replies.as_deref());
                let reply = replies.and_then(|replies| *replies.get(usize::from(place))?);
                if let Some((_, value)) = reply.filter(|(of, _)| *of == ticket) {
                    answer = Some(Answer::Word(ticket, value));
                }
            }
            Rails::Probe { rail, number } => answer = Some(Answer::Probed(rail, number)),
            Rails::Probed { rail, number } if exists(rail) => {
                let path = &health.peer(pe).paths[rail.index()];
                if path.out.is_some() && !path.gone && path.probe == number {
                    self.reinstate(pe, rail);
                }
            }
            Rails::KeyWanted { rail, key, wanted } => {
                self.regions.sync();
                let found = self.regions.other_key(rail, key, wanted);
                answer = Some(Answer::KeyIs { rail, key, wanted, found });
            }
            Rails::KeyIs { rail, key, wanted, found } => {
                let (peer, asked) = (health.peer(pe), (rail, key, wanted));
                if peer.asked.contains(&asked) {
                    peer.asked.retain(|other| *other != asked);
                    peer.keys.insert(asked, found);
                }
            }
            Rails::Settle { number } => answer = Some(Answer::Settled(number)),
            Rails::Settled { number, prefix, seen } => {
                if health.peer(pe).settling == (number, false) {
                    health.peer(pe).settling.1 = true;
                    let has = |seq: Seq| {
                        let at = seq.0 as usize % (8 * seen.len());
                        let bit = seen[at / 8] >> (at % 8) & 1 != 0;
                        seq.is_before(prefix) || bit && seq.after(prefix) < WINDOW
                    };
                    self.settled(pe, has);
                }
            }
            // Of a rail that is none.
            Rails::Reset { .. } | Rails::Heard { .. } | Rails::Probed { .. } => {}
        }
        if let (Some(answer), Some(health)) = (answer, self.health.as_deref_mut()) {
            health.answers.push((pe, answer));
        }
        self.watchdog.hurry();
    }

    fn give_answers(&mut self) {
        let Some(health) = self.health.as_deref_mut() else { return };
        let me = self.me;
        for (pe, answer) in std::mem::take(&mut health.answers) {
            let what = match answer {
                Answer::Pong => Rails::Pong,
                Answer::Heard(rail, generation) => Rails::Heard { rail, generation },
                Answer::Probed(rail, number) => Rails::Probed { rail, number },
                Answer::KeyIs { rail, key, wanted, found } => {
                    Rails::KeyIs { rail, key, wanted, found }
                }
                Answer::CannotReset(rail, generation) => {
                    Rails::RailIs { rail, generation, cause: me, address: &[] }
                }
                Answer::RailIs(rail) => {
                    self.tell_of_rail(pe, rail);
                    continue;
                }
                Answer::Word(ticket, value) => {
                    for rail in 0..self.rails.len() {
                        self.send_over(pe, RailId(rail as u8), Body::Reply { ticket, value });
                    }
                    continue;
                }
                Answer::Settled(number) => {
                    let Some(stream) = self.streams.open(pe, &self.paths) else { continue };
                    let link = stream.link();
                    let (prefix, seen) = (link.received.prefix(), link.received.seen());
                    self.tell(pe, Rails::Settled { number, prefix, seen: &seen });
                    continue;
                }
            };
            self.tell(pe, what);
        }
    }

    /// Tells a peer where a rail of ours is.
    pub(in crate::engine) fn tell_of_rail(&mut self, pe: Pe, rail: RailId) {
        let Some(health) = self.health.as_deref() else { return };
        let mine = &health.mine[rail.index()];
        let (generation, address) = (mine.generation, mine.address.clone());
        let cause = mine.cause.unwrap_or(self.me);
        self.tell(pe, Rails::RailIs { rail, generation, cause, address: &address });
    }

    /// What is sent to the peer next takes another path than the last: that one may not work.
    #[cold]
    pub(in crate::engine) fn take_turns(&mut self, pe: Pe) {
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.rotate(&self.paths);
        }
    }

    /// A segment was refused or has failed: whether it goes another way, and its peer is not given up.
    /// It is none of the rail's segments in flight any more.
    pub(in crate::engine) fn rescue(&mut self, token: Token, error: &PortError) -> bool {
        if self.health.is_none() || error.blames_operation() {
            return false;
        }
        let segment = &self.segments[token.0];
        let (pe, rail, stage, kind) = (segment.pe, segment.rail, segment.stage, segment.kind);
        if self.check_stream(pe).is_err() || kind == Kind::Native {
            return false;
        }
        let is_message = segment.message != NIL && kind.is_noted();
        let others = self.suspect(pe, rail, &error.to_string(), true);
        if is_message {
            if others && stage != Stage::Sent {
                let rail = self.streams.find(pe).map_or(rail, |stream| stream.next.rail);
                self.segments[token.0].rail = rail;
                self.queue(token, rail);
            }
            return others || stage == Stage::Sent;
        }
        let again = crate::engine::recovery::reissue::reissues(&self.segments[token.0]);
        if again >= crate::engine::recovery::health::REISSUES {
            return false;
        }
        if !others && !self.wait_for_peer(token, error) {
            return false;
        }
        if self.segments[token.0].stage != Stage::Limbo {
            self.lose(token, stage == Stage::Posted);
        }
        self.token_is_back(token);
        true
    }

    /// The only path to a peer has failed. It may be that the peer has opened its rail again, and the news
    /// are on their way.
    fn wait_for_peer(&mut self, token: Token, error: &PortError) -> bool {
        let now = self.watchdog.stamp();
        let segment = &self.segments[token.0];
        let (pe, rail) = (segment.pe, segment.rail);
        let failed = EngineError::Segment {
            what: segment.what(),
            pe,
            len: segment.transfer.len,
            rail,
            rail_name: self.port.rail_name(rail).to_owned(),
            error: error.clone(),
        };
        let remote = self.paths.get(pe, rail).remote.rail();
        let Some(health) = self.health.as_deref_mut() else { return false };
        let until = now + 2 * health.timeout + NEWS;
        let peer = health.peer(pe);
        peer.grace.get_or_insert_with(|| (until, Box::new(failed)));
        peer.want(remote);
        true
    }

    /// A message has failed that had left. The peer's window knows whether it is missed.
    pub(in crate::engine) fn failed_message(&mut self, rail: RailId, failure: &Failure) {
        let error = &failure.error;
        debug!(target: "TRANSPORT", "a message over {rail}: {error}");
        let Some(token) = failure.token.filter(|token| *token != CONTROL) else { return };
        let Some(segment) = self.segments.away(token) else { return };
        if segment.stage == Stage::Sent && segment.message != NIL && segment.rail == rail {
            let pe = segment.pe;
            if !self.suspect(pe, rail, &error.to_string(), true) {
                self.lose_messages(pe, |over| over == rail);
            }
        }
    }
}
