//! Messages about rails: what a lane says of its rails to its peers, and what it does about what they say.

use log::debug;

use crate::engine::ids::{Pe, RailId};
use crate::engine::port::{Port, Posted};
use crate::engine::posting::Core;
use crate::engine::recovery::Recovery;
use crate::engine::recovery::health::Answer;
use crate::engine::staging::Staging;
use crate::engine::wire::message::{Body, Message, Packet};
use crate::engine::wire::rails::Rails;
use crate::engine::wire::window::{Seq, WINDOW};

/// How often a control message is tried at a time; it is repeated anyway, until it is answered.
const TRIES: u32 = 16;

impl Recovery {
    /// Gets on with what has failed: posts and sends again what may be, and answers.
    pub(in crate::engine) fn go_on<P: Port>(&mut self, core: &mut Core<P>, staging: &mut Staging) {
        self.relaunch_all(core, staging);
        self.resend_all(core);
        self.give_answers(core);
        if self.has_work() {
            core.watchdog.hurry();
        }
    }

    /// Says something to a peer, over every path: which of them work is what it is about.
    pub(in crate::engine) fn tell<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, what: Rails<'_>) {
        for rail in 0..core.rails.len() {
            self.tell_over(core, pe, RailId(rail as u8), what);
        }
    }

    /// Says something to a peer over one path, if it takes it.
    pub(in crate::engine) fn tell_over<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
        what: Rails<'_>,
    ) {
        self.send_over(core, pe, rail, Seq(0), Body::Rails(what));
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
        let Some(stream) = core.streams.open(pe, &mut core.paths) else { return };
        if stream.error.is_some() {
            return;
        }
        let ack = stream.link().ack();
        let mut packet = Packet::EMPTY;
        Message { from: core.me, seq, ack, body }.encode(&mut packet);
        let Some(to) = self.control(pe, rail) else { return };
        for _ in 0..TRIES {
            match core.port.send_control(rail, to, packet.bytes()) {
                Ok(Posted::Again) => {}
                Ok(Posted::Yes) => return,
                Err(error) => {
                    return debug!(target: "TRANSPORT", "{body:?} to {pe} over {rail}: {error}");
                }
            }
        }
    }

    /// Takes in what a peer says. Answers are queued, as with all messages.
    #[cold]
    pub(in crate::engine) fn heard_of_rails<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        what: Rails<'_>,
    ) {
        // What was lost before belongs to the generations that were known then.
        self.adopt(core);
        let now = core.watchdog.stamp();
        let rails = core.rails.len();
        let exists = |rail: RailId| rail.index() < rails;
        let mut answer = None;
        self.peer(pe).alive = now;
        match what {
            Rails::Ping => answer = Some(Answer::Pong),
            Rails::Pong => {}
            Rails::Reset { rail, generation } if exists(rail) => {
                if self.mine[rail.index()].generation > generation {
                    answer = Some(Answer::RailIs(rail));
                } else if core.port.can_reset(rail) && !self.mine[rail.index()].fixed {
                    self.close_rail(core, rail, pe);
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
                }
            }
            Rails::ReplyAgain { ticket, place } => {
                let link = core.streams.find_mut(pe).and_then(|stream| stream.link.as_deref_mut());
                let replies = link.and_then(|link| link.replies.as_deref());
                let reply = replies.and_then(|replies| *replies.get(usize::from(place))?);
                if let Some((_, value)) = reply.filter(|(of, _)| *of == ticket) {
                    answer = Some(Answer::Word(ticket, value));
                }
            }
            Rails::Probe { rail, number } => answer = Some(Answer::Probed(rail, number)),
            Rails::Probed { rail, number } if exists(rail) => {
                let path = &self.peer(pe).paths[rail.index()];
                if path.out.is_some() && !path.gone && path.probe == number {
                    self.reinstate(core, pe, rail);
                }
            }
            Rails::KeyWanted { rail, key, wanted } => {
                core.regions.sync();
                let found = core.regions.other_key(rail, key, wanted);
                answer = Some(Answer::KeyIs { rail, key, wanted, found });
            }
            Rails::KeyIs { rail, key, wanted, found } => {
                let (peer, asked) = (self.peer(pe), (rail, key, wanted));
                if peer.asked.contains(&asked) {
                    peer.asked.retain(|other| *other != asked);
                    peer.keys.insert(asked, found);
                }
            }
            Rails::Settle { number } => answer = Some(Answer::Settled(number)),
            Rails::Settled { number, prefix, seen } => {
                if self.peer(pe).settling == (number, false) {
                    self.peer(pe).settling.1 = true;
                    let has = |seq: Seq| {
                        let at = seq.0 as usize % (8 * seen.len());
                        let bit = seen[at / 8] >> (at % 8) & 1 != 0;
                        seq.is_before(prefix) || bit && seq.after(prefix) < WINDOW
                    };
                    self.settled(core, pe, has);
                }
            }
            // Of a rail that is none.
            Rails::Reset { .. } | Rails::Heard { .. } | Rails::Probed { .. } => {}
        }
        if let Some(answer) = answer {
            self.answers.push((pe, answer));
        }
        core.watchdog.hurry();
    }

    fn give_answers<P: Port>(&mut self, core: &mut Core<P>) {
        let me = core.me;
        for (pe, answer) in std::mem::take(&mut self.answers) {
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
                    self.tell_of_rail(core, pe, rail);
                    continue;
                }
                Answer::Word(ticket, value) => {
                    for rail in core.rail_ids() {
                        self.send_over(core, pe, rail, ticket.seq, Body::Reply { ticket, value });
                    }
                    continue;
                }
                Answer::Settled(number) => {
                    let Some(stream) = core.streams.open(pe, &mut core.paths) else { continue };
                    let link = stream.link();
                    let (prefix, seen) = (link.received.prefix(), link.received.seen());
                    self.tell(core, pe, Rails::Settled { number, prefix, seen: &seen });
                    continue;
                }
            };
            self.tell(core, pe, what);
        }
    }

    /// Tells a peer where a rail of ours is.
    pub(in crate::engine) fn tell_of_rail<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        rail: RailId,
    ) {
        let mine = &self.mine[rail.index()];
        let (generation, address) = (mine.generation, mine.address.clone());
        let cause = mine.cause.unwrap_or(core.me);
        self.tell(core, pe, Rails::RailIs { rail, generation, cause, address: &address });
    }
}
