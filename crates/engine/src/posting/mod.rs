//! The core of a lane: what posts, queues, holds, completes and ends segments.
//!
//! It has three parts, each with its own state, which nobody else touches:
//! - [`transmit`]: the port, the rails and their queues, the segments on them, and the room that
//!   there is for more.
//! - [`peers`]: the connections to peers, the messages on their way to them, and what is owed to
//!   them.
//! - [`failures`]: the watchdog, what has failed, and what mechanisms have to see to.
//!
//! What takes one part is a method of that part. What takes several is a method of [`Core`], in the
//! folder of the part whose state it changes most; it asks the others.
//!
//! Mechanisms (signals, striping, staging, recovery) stand above it and use it. What one of them
//! has to see to is raised as an [`Event`](failures::Event), which the lane gives to it in the same
//! iteration; nothing here calls up.
//!
//! # Why it cannot deadlock
//! Posting never blocks and never recurses. A segment that cannot go out at once waits in its
//! rail's queue, or for its peer where the fabric takes nothing for that one (`transmit/blocked`);
//! a write behind a fence waits in its connection's held queue. Handling a completion only moves
//! segments between queues, it never posts. One loop does everything, in this order: poll
//! completions, apply them, post from the rails' queues, and only then take new work. A segment
//! waits for nothing but (a) room on its rail, which completions make, and (b) if held, older
//! segments of its own connection, which already own a slot. So whatever the bounds are, the oldest
//! segment of each connection can always move, and only the submitter is ever held back, in a call
//! that keeps running the loop.

pub(crate) mod failures;
pub(crate) mod peers;
pub(crate) mod transmit;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::Port;
use crate::posting::failures::Failures;
use crate::posting::failures::watchdog::Watchdog;
use crate::posting::peers::Peers;
use crate::posting::transmit::{Sizes, Transmit};
use crate::rails::balance::Spread;
use crate::rails::paths::PathTable;
use crate::state::connection::Connection;
use crate::state::regions::RegionCache;
use crate::wire::cookie::Cookie;

/// What a lane does with segments, whatever they are for.
#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) transmit: Transmit<P>,
    pub(crate) peers: Peers,
    pub(crate) failures: Failures,
}

/// What became of an attempt to submit an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    /// All of it is submitted.
    Submitted,
    /// There is no room at present, or its peer has no place for another of its kind.
    NoRoom,
}

impl<P: Port> Core<P> {
    #[expect(clippy::too_many_arguments, reason = "what a lane is opened with")]
    pub(crate) fn new(
        port: P,
        (me, cookie, mark_bytes): (Pe, Cookie, u8),
        paths: PathTable,
        regions: RegionCache,
        watchdog: Watchdog,
        spread: Spread,
        sizes: Sizes,
        devices: bool,
    ) -> Self {
        let n_pes = paths.n_pes();
        let transmit = Transmit::new(port, me, paths, regions, spread, sizes, devices);
        let rails = transmit.rail_ids().len() as u8;
        let identity = (me, cookie, mark_bytes);
        let peers = Peers::new(identity, n_pes, rails, transmit.fast_limit(), sizes.messages);
        Self { transmit, peers, failures: Failures::new(watchdog) }
    }

    pub(crate) fn monitor_rails(&mut self, messages: u32, answers: u32) {
        self.failures.set_recovers(true);
        self.peers.keep_answers(messages, answers);
    }

    #[inline]
    pub(crate) fn open_connection(&mut self, pe: Pe) -> Option<&mut Connection> {
        self.transmit.open(&mut self.peers, pe)
    }

    pub(crate) fn connection_to(&mut self, pe: Pe) -> Result<&mut Connection, EngineError> {
        self.peers.check_pe(pe)?;
        let n_pes = self.peers.n_pes();
        let connection = self.open_connection(pe).ok_or(EngineError::NoSuchPe { pe, n_pes })?;
        connection.check()?;
        Ok(connection)
    }
}

#[cfg(test)]
pub(crate) mod tests;
