//! Transfers that were on a path which has failed, on their way to another one.
//!
//! A segment in *limbo* was posted, or was to be, on a path that has failed. It is posted again, in its
//! slot and with its token, when nothing of the first time can happen any more. For that
//! - the fabric must not have its token ([`TOKEN`]): it has come back with an error, or the rail has
//!   been closed. A read could else land in memory that is in use for something else by then, and a
//!   token name two operations;
//! - the target must not take it ([`TARGET`]), if it is a write: the peer has closed the rail that it was
//!   sent to. It could else land late, over what others have stored since.
//!
//! If it completes after all, in the meantime, it has ended, as always.
//!
//! # Data with a signal
//! Data whose signal is a message that the peer may have applied must not be written again: the peer's
//! program has taken it, and perhaps put something else in its place. So the peer is asked, after it has
//! closed the rail, what messages it has had ([`ASK`]). If the signal is among them the data is there, and
//! the segment has ended. If not, it is not applied before the data was sent again and is there.
//!
//! Data without a signal may be written twice. Nothing tells the peer's program that it is there before
//! the second time, but the data itself.

use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::Lane;
use crate::engine::port::{Direction, Local, Port, PortError};
use crate::engine::recovery::health::REISSUES;
use crate::engine::staging::state::{Far, Near};
use crate::engine::state::segment::{Kind, NIL, Queue, Segment, Stage};
use crate::engine::wire::rails::Rails;
use crate::engine::wire::window::Seq;

/// The fabric may have the token.
pub(in crate::engine) const TOKEN: u32 = 1;

/// The target may take the write.
pub(in crate::engine) const TARGET: u32 = 2;

/// The peer may have applied the signal of the data.
const ASK: u32 = 4;

/// It has been asked.
const ASKED: u32 = 8;

/// The peer has the data.
const LANDED: u32 = 16;

/// A rail that was opened again so many timeouts ago has been lately.
const LATELY: u32 = 8;

/// What a segment waits for.
const BITS: u32 = TOKEN | TARGET | ASK;

/// How often a segment has been posted again. They are kept beside the bits.
pub(in crate::engine) fn reissues(segment: &Segment) -> u32 {
    match segment.kind {
        Kind::Reissued => segment.epoch >> 8,
        _ => 0,
    }
}

impl<P: Port> Lane<P> {
    /// Everything posted on a path is lost sight of.
    pub(in crate::engine) fn lose_path(&mut self, pe: Pe, rail: RailId) {
        let on_it = |segment: &Segment| segment.pe == pe && segment.rail == rail;
        for token in self.segments.tokens(|s| on_it(s) && s.stage == Stage::Posted) {
            self.lose(token, true);
        }
        if let Some(token) = self.segments.tokens(|s| on_it(s) && s.stage == Stage::Native).first()
        {
            let segment = &self.segments[token.0];
            let error = PortError {
                call: "an atomic of the fabric",
                code: 0,
                text: String::from(
                    "the path has failed, and whether it was carried out is unknown",
                ),
            };
            let (what, len) = (segment.what(), segment.transfer.len);
            let rail_name = self.port.rail_name(rail).to_owned();
            self.fail_stream(pe, EngineError::Segment { what, pe, len, rail, rail_name, error });
        }
    }

    /// A segment goes to limbo; `posted` if the fabric has taken it.
    pub(in crate::engine) fn lose(&mut self, token: Token, posted: bool) {
        // Its slot stays a cut's until it ends; its rail is not waited for.
        self.unload(token, false);
        let segment = &mut self.segments[token.0];
        let (pe, rail, direction) = (segment.pe, segment.rail, segment.transfer.direction);
        let is_again = segment.kind == Kind::Reissued;
        let before = if is_again { segment.epoch & !0xff } else { 0 };
        let told = segment.kind == Kind::Ordered;
        let waits = match (posted, direction) {
            (false, _) => 0,
            (true, Direction::Read) => TOKEN,
            (true, Direction::Write) if told => BITS,
            (true, Direction::Write) => TOKEN | TARGET,
        };
        let is_new = matches!(segment.kind, Kind::Transfer | Kind::Weighed | Kind::Ordered);
        if is_new {
            segment.kind = Kind::Reissued;
            segment.message = NIL;
        }
        segment.epoch = before | waits;
        segment.stage = Stage::Limbo;
        segment.born = self.watchdog.stamp();
        let remote = self.paths.get(pe, rail).remote.rail();
        let Some(health) = self.health.as_deref_mut() else { return };
        health.limbo.push(token);
        let peer = health.peer(pe);
        if waits & TARGET != 0 {
            peer.want(remote);
        }
        if is_new && direction == Direction::Write {
            peer.limbo_writes += 1;
            health.note_loss(pe);
            if let Some(stream) = self.streams.find_mut(pe) {
                stream.fence();
            }
        }
        self.watchdog.hurry();
        if reissues(&self.segments[token.0]) >= REISSUES {
            self.give_up_reissuing(token);
        }
    }

    /// A segment has been cut off too often.
    #[cold]
    fn give_up_reissuing(&mut self, token: Token) {
        let segment = &self.segments[token.0];
        let (what, pe, len, rail) =
            (segment.what(), segment.pe, segment.transfer.len, segment.rail);
        let text = format!("its path has failed {REISSUES} times");
        let error = PortError { call: "posting again", code: 0, text };
        let rail_name = self.port.rail_name(rail).to_owned();
        self.fail_stream(pe, EngineError::Segment { what, pe, len, rail, rail_name, error });
    }

    /// The fabric does not have the token of a segment in limbo.
    pub(in crate::engine) fn token_is_back(&mut self, token: Token) {
        self.segments[token.0].epoch &= !TOKEN;
    }

    /// The target does not take a segment in limbo any more.
    pub(in crate::engine) fn target_is_safe(&mut self, token: Token) {
        self.segments[token.0].epoch &= !TARGET;
    }

    /// A segment in limbo has completed: whether the fabric had its token. It counts as posted then.
    pub(in crate::engine) fn came_back(&mut self, token: Token) -> bool {
        let segment = &mut self.segments[token.0];
        let had = segment.epoch & TOKEN != 0;
        if had {
            segment.stage = Stage::Posted;
        }
        had
    }

    /// A write that was lost sight of has ended.
    pub(in crate::engine) fn reissued_ended(&mut self, pe: Pe) {
        if let Some(health) = self.health.as_deref_mut() {
            let peer = health.peer(pe);
            peer.limbo_writes = peer.limbo_writes.saturating_sub(1);
            health.note_loss(pe);
            self.watchdog.hurry();
        }
    }

    /// Takes what is for a peer out of a rail's queue: bytes wait for another path, and messages go to
    /// the queue of one. What waits in the pool of [`crate::engine::striping::pool`] is in no rail's queue, and has none yet.
    pub(in crate::engine) fn unqueue(&mut self, pe: Pe, rail: RailId) {
        let mut rest = Queue::EMPTY;
        let mut messages = Vec::new();
        while let Some(index) = self.rails[rail.index()].pop(&self.segments) {
            self.ready -= 1;
            let segment = &self.segments[index];
            if segment.pe != pe || segment.kind == Kind::Native {
                rest.push(&mut self.segments, index);
            } else if segment.kind.is_noted() && segment.message != NIL {
                messages.push(Token(index));
            } else {
                self.lose(Token(index), false);
            }
        }
        while let Some(index) = rest.pop(&self.segments) {
            self.rails[rail.index()].push(&mut self.segments, index);
            self.ready += 1;
        }
        let next = self.streams.find(pe).map_or(rail, |stream| stream.next.rail);
        for token in messages {
            self.segments[token.0].rail = next;
            self.queue(token, next);
        }
    }

    /// Own rails whose closing would bring back tokens that do not come by themselves.
    pub(in crate::engine) fn check_limbo(&mut self) {
        let now = self.watchdog.stamp();
        let Some(health) = self.health.as_deref() else { return };
        let timeout = health.timeout;
        let lately = |rail: RailId| {
            let before = health.mine[rail.index()].reset;
            before.is_some_and(|before| now - before < LATELY * timeout)
        };
        let overdue = |token: &&Token| {
            let segment = &self.segments[token.0];
            let waits = segment.stage == Stage::Limbo && segment.epoch & TOKEN != 0;
            // Not the next one before it would have been found that a path is silent.
            let patience = if lately(segment.rail) { 2 * timeout + 2 } else { timeout / 2 };
            waits && now - segment.born >= patience
        };
        let rails = health.limbo.iter().filter(overdue);
        let mut rails: Vec<RailId> = rails.map(|token| self.segments[token.0].rail).collect();
        rails.sort_unstable();
        rails.dedup();
        for rail in rails {
            if self.port.can_reset(rail) {
                self.close_rail(rail, self.me);
            }
        }
    }

    /// Posts again what may be.
    pub(in crate::engine) fn relaunch_all(&mut self) {
        let Some(health) = self.health.as_deref_mut() else { return };
        let mut waiting = std::mem::take(&mut health.limbo);
        waiting.retain(|token| self.segments[token.0].stage == Stage::Limbo && self.waits(*token));
        if let Some(health) = self.health.as_deref_mut() {
            health.limbo.append(&mut waiting);
        }
        self.ask_what_has_landed();
    }

    /// Asks peers whether they have had the signals of data that they do not take any more.
    fn ask_what_has_landed(&mut self) {
        let Self { health, segments, .. } = self;
        let Some(health) = health.as_deref_mut() else { return };
        let mut peers: Vec<Pe> = Vec::new();
        for token in &health.limbo {
            let segment = &mut segments[token.0];
            let due = segment.epoch & (TARGET | ASK | ASKED) == ASK;
            if segment.stage == Stage::Limbo && due {
                segment.epoch |= ASKED;
                if !peers.contains(&segment.pe) {
                    peers.push(segment.pe);
                }
            }
        }
        for pe in peers {
            let Some(health) = self.health.as_deref_mut() else { return };
            let peer = health.peer(pe);
            peer.settling = (peer.settling.0.wrapping_add(1), false);
            let number = peer.settling.0;
            self.tell(pe, Rails::Settle { number });
        }
    }

    /// A peer has said which messages it has had.
    pub(in crate::engine) fn settled(&mut self, pe: Pe, has: impl Fn(Seq) -> bool) {
        let asked = |s: &Segment| s.stage == Stage::Limbo && s.pe == pe && s.epoch & ASKED != 0;
        for token in self.segments.tokens(asked) {
            let landed = self.has_landed(pe, token, &has);
            let segment = &mut self.segments[token.0];
            segment.epoch &= !(ASK | ASKED);
            segment.epoch |= if landed { LANDED } else { 0 };
        }
    }

    /// Whether the signal of data in limbo was applied.
    fn has_landed(&self, pe: Pe, token: Token, has: impl Fn(Seq) -> bool) -> bool {
        let data = self.segments[token.0].data;
        let is_signal = |s: &Segment| s.kind == Kind::OrderedSignal && s.data == data;
        let signal = self.segments.in_use().find(|s| s.pe == pe && is_signal(s));
        match signal {
            Some(signal) if signal.stage == Stage::Sent => {
                self.messages.number_of(signal.message).is_some_and(has)
            }
            // It has not left.
            Some(_) => false,
            // It is acknowledged, or not submitted yet.
            None => self.health.as_deref().is_none_or(|health| health.ordering != Some(data)),
        }
    }

    /// Posts a segment again if it may be; whether it still waits.
    fn waits(&mut self, token: Token) -> bool {
        let segment = self.segments[token.0];
        let (pe, kind, bits) = (segment.pe, segment.kind, segment.epoch & BITS);
        if self.check_stream(pe).is_err() {
            // It ends with its stream, as soon as the fabric has done with it.
            if bits & TOKEN == 0 {
                self.segments[token.0].stage = Stage::Ready;
                self.drop_segment(token);
            } else {
                self.segments[token.0].stage = Stage::Posted;
            }
            return false;
        }
        let Some(health) = self.health.as_deref_mut() else { return false };
        if bits != 0 || health.peer(pe).grace.is_some() {
            return true;
        }
        if segment.epoch & LANDED != 0 {
            self.segments[token.0].epoch |= TOKEN;
            self.completed(token);
            return false;
        }
        let old = self.paths.get(pe, segment.rail);
        let mut hop = old;
        if health.is_out(pe, segment.rail) {
            self.paths.advance(&mut hop);
        }
        if self.rails[hop.rail.index()].is_paused() {
            return true;
        }
        let (from, to) = (old.remote.rail(), hop.remote.rail());
        let far = kind.is_staged().then(|| self.staging().piece(token).far);
        let key = match far {
            None => Some(segment.transfer.key),
            Some(Far::Fabric { key, .. }) => Some(key),
            Some(_) => None,
        };
        let key = match key {
            Some(key) if from != to => match self.key_on(pe, from, key, to) {
                None => return true,
                Some(None) => {
                    let why = format!("it has no region any more with key {key:#x} on its {from}");
                    let (what, len) = (segment.what(), segment.transfer.len);
                    self.fail_stream(pe, EngineError::PeerRefused { what, pe, len, why });
                    return true;
                }
                Some(found) => found,
            },
            key => key,
        };
        if let Err(error) = self.put_on(token, hop.rail, key) {
            let (what, len, rail) = (segment.what(), segment.transfer.len, hop.rail);
            let rail_name = self.port.rail_name(rail).to_owned();
            self.fail_stream(pe, EngineError::Segment { what, pe, len, rail, rail_name, error });
            return true;
        }
        self.rails[hop.rail.index()].counters.reissued += 1;
        if kind.is_staged() {
            self.segments[token.0].stage = Stage::Staged;
            self.next_part(token);
        } else {
            if segment.cut {
                let now = self.port.now();
                self.weigh(token, now);
            }
            self.queue(token, hop.rail);
        }
        false
    }

    /// The key of a peer's region on one rail, from that on another: none as long as the peer has not
    /// told it.
    fn key_on(&mut self, pe: Pe, rail: RailId, key: u64, wanted: RailId) -> Option<Option<u64>> {
        let asked = (rail, key, wanted);
        let peer = self.health.as_deref_mut()?.peer(pe);
        let known = peer.keys.get(&asked).copied();
        if known.is_none() && !peer.asked.contains(&asked) {
            peer.asked.push(asked);
            self.tell(pe, Rails::KeyWanted { rail, key, wanted });
        }
        known
    }

    /// Makes a segment one of another rail's.
    fn put_on(&mut self, token: Token, rail: RailId, key: Option<u64>) -> Result<(), PortError> {
        let refused = |text: String| PortError { call: "posting again", code: 0, text };
        let most = self.rails[rail.index()].max_segment;
        let len = self.segments[token.0].transfer.len;
        let staged = self.segments[token.0].kind.is_staged();
        if len > most && !staged {
            return Err(refused(format!("the rail takes {most} bytes at once")));
        }
        let memory = match self.segments[token.0].transfer.local {
            _ if staged => match self.staging().piece(token) {
                piece if matches!(piece.near, Near::Fabric { .. }) => {
                    Some((piece.memory, piece.len))
                }
                _ => None,
            },
            Local::Memory { addr, .. } => Some((addr, len)),
            Local::Inline(_) => None,
        };
        let mut local = None;
        if let (Some((addr, len)), true) = (memory, self.needs_desc) {
            self.regions.sync();
            local = self.regions.desc_at(addr, len, rail);
            if local.is_none() && !self.port.takes_unregistered() {
                return Err(refused(String::from("its local memory is not registered any more")));
            }
        }
        if staged {
            let piece = self.staging().piece(token);
            if let (Far::Fabric { key: old, .. }, Some(key)) = (&mut piece.far, key) {
                *old = key;
            }
            if let (Near::Fabric { desc, .. }, Some(new)) = (&mut piece.near, local) {
                *desc = new;
            }
        }
        let segment = &mut self.segments[token.0];
        if let (Local::Memory { desc, .. }, Some(new), false) =
            (&mut segment.transfer.local, local, staged)
        {
            *desc = new;
        }
        segment.transfer.key = key.unwrap_or(segment.transfer.key);
        segment.rail = rail;
        segment.epoch = ((segment.epoch >> 8) + 1) << 8;
        Ok(())
    }
}
