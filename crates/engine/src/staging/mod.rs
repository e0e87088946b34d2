//! Staging: memory that the fabric does not reach, through bounce buffers that it does.
//!
//! # How bytes get there
//! Each process touches its own staged memory only, through bounce buffers of its own, and reads
//! what it is to store from the other process. So there are no credits to give out, and no memory
//! is set aside per peer:
//!
//! - A *put* to staged memory: the source is *exposed* (where it is in registered host memory; else
//!   it is copied into a bounce buffer, which is registered), the owner of the target is told
//!   to *pull* it, reads it into a bounce buffer of its own, copies it to its place, and says so.
//!   Where messages are long enough, the one that tells of it *brings* the bytes as well. They go
//!   to the bounce buffer if one is free, and are read like all others if none is.
//! - A *get* from staged memory: the owner is *asked*, copies the bytes into a bounce buffer and
//!   says where they are; they are read, and the bounce buffer is *released*.
//! - Between staged local memory and memory that the fabric reaches at the peer: by a bounce
//!   buffer, with an ordinary write or read.
//! - A few bytes go in one message each way, with no bounce buffer.
//! - Puts that wait for a bounce buffer share one: see [`gathered`].
//! - PEs of one host that share their bounce memory read from the other's bounce buffer by copy,
//!   not through the fabric: see [`same_host`].
//!
//! Long operations are cut into *fragments* of a bounce buffer's length, which overlap.
//!
//! # Why it cannot deadlock
//! Bounce buffers for bytes on their way in are taken when the bytes can be read at once, and given
//! back after a read and a copy, both of which end whatever else is full. So they always come back.
//! Bounce buffers for bytes on their way out are held until the reader has read them, for which it
//! needs a bounce buffer for its own way in at most. What a peer asks for has segments set aside
//! ([`PEER_SEGMENTS`](state::PEER_SEGMENTS)), and a peer asks for
//! [`PEER_REQUESTS`](state::PEER_REQUESTS) things at a time at most. A peer that has stopped gives
//! no bounce buffer back; it has a [share](state::waiting) of them.

#[cfg(any(test, feature = "audit"))]
mod audit;
mod copying;
pub(crate) mod fragments;
pub(crate) mod gathered;
pub(crate) mod memory;
pub(crate) mod peer_requests;
pub(crate) mod same_host;
pub(crate) mod state;
pub(crate) mod submit;

use crate::ids::WrId;
use crate::port::Port;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::posting::Core;
use crate::rails::counters::StagedCounters;
use crate::request::Touched;
use crate::staging::state::{Bouncing, State};
use crate::wire::staged::most_brought;

/// What a lane stages with. Nothing, as long as no memory is staged here or at a peer.
#[derive(Debug)]
pub(crate) struct Staging {
    segments: u32,
    /// Most bytes of a put that go with the message that tells of them.
    most_brought: usize,
    /// How bytes have got from one process to the other.
    counters: StagedCounters,
    state: Option<Box<State>>,
}

impl Staging {
    /// For a lane with so many segments, and messages of at most so many bytes.
    pub(crate) fn new(segments: u32, longest_message: usize) -> Self {
        let most_brought = match longest_message.min(MAX_LONG_MESSAGE) {
            // There is no room for more than goes without a pull.
            ..=MAX_MESSAGE => 0,
            longest => most_brought(longest),
        };
        Self { segments, most_brought, counters: StagedCounters::default(), state: None }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.state.as_deref().is_some_and(State::has_work)
    }

    #[inline]
    pub(crate) fn goes_on(&mut self) -> bool {
        self.state.as_deref_mut().is_some_and(|state| state.influx.goes_on())
    }

    pub(crate) fn is_copying(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.copying != 0)
    }

    pub(crate) fn moved(&self) -> u32 {
        self.state.as_deref().map_or(0, |state| state.moved)
    }

    /// How bytes have got from one process to the other.
    pub(crate) fn counters(&self) -> StagedCounters {
        let bouncing = self.state.as_deref().and_then(|state| state.bouncing.as_ref());
        let by_cpu = bouncing.map_or(0, |bouncing| bouncing.copies.bytes_by_cpu());
        StagedCounters { by_cpu, ..self.counters }
    }

    pub(crate) fn state(&mut self) -> &mut State {
        let segments = self.segments;
        self.state.get_or_insert_with(|| Box::new(State::new(segments)))
    }

    pub(crate) fn memory_of(&self, wr_id: WrId) -> Option<(usize, usize)> {
        let fragment = self.state.as_deref()?.peek(wr_id);
        // Of several puts the list tells, until they are copied.
        (!fragment.has_list()).then_some((fragment.memory, fragment.len))
    }

    pub(crate) fn waiting_memory(&self) -> impl Iterator<Item = Touched> + '_ {
        let state = self.state.as_deref().into_iter();
        state.flat_map(|state| {
            state
                .waiting_out
                .memory()
                .chain(state.waiting_in.memory())
                .chain(state.waiting_memory())
                .chain(state.gathered.memory())
        })
    }

    pub(crate) fn bouncing(&mut self) -> Option<&mut Bouncing> {
        self.state.as_deref_mut()?.bouncing.as_mut()
    }

    pub(crate) fn sync_regions<P: Port>(&mut self, core: &mut Core<P>) {
        core.transmit.regions_mut().sync();
        if core.transmit.regions().has_stager() {
            self.install(core);
        }
    }

    #[cold]
    fn install<P: Port>(&mut self, core: &mut Core<P>) {
        if let Some(installed) = core.transmit.regions_mut().take_stager() {
            self.state().install(installed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pe;
    use crate::port::copies::CopyDirection;
    use crate::staging::state::waiting::Waiter;

    #[test]
    fn there_is_work_while_something_is_copied_or_waits_for_it() {
        let mut staging = Staging::new(4, 0);
        assert!(!staging.has_work() && staging.memory_of(WrId(0)).is_none());
        assert_eq!(staging.moved(), 0);
        let state = staging.state();
        state.moved = 7;
        assert!(!staging.has_work() && staging.moved() == 7);
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let waiting = staging.state().waiting(direction);
            waiting.push(Pe(1), Waiter::Mine(WrId(2)));
            assert!(staging.has_work());
            staging.state().waiting(direction).pop(Pe(1));
            assert!(!staging.has_work());
        }
        staging.state().copying = 1;
        assert!(staging.has_work() && staging.is_copying());
        staging.state().copying = 0;
        staging.state().ready(CopyDirection::In).push_back(WrId(2));
        assert!(staging.has_work() && !staging.is_copying());
    }
}
