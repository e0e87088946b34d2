//! Staging: memory that the fabric does not reach.
//!
//! Not written yet: what is here answers as if nothing could be copied. What the rest of the engine
//! asks of it, and what it has in return:
//!
//! - `submit` takes an operation whose local or remote memory is staged, puts with signal whose
//!   payload is not short among them, in the order of its peer's queue. It may take a part of it
//!   (and advance `op.sent`), answer [`Step::Held`] (it waits for an order group of the peer: see
//!   [`crate::group`]), [`Step::NoPlace`] or [`Step::NoRoom`]; it is called again with the same
//!   operation. Whatever it has taken it counts itself: in the peer's order group by messages that
//!   it sends (`Core::send`) or by `Order::begin`, and in `op.completion` by `Groups::begin`.
//! - Its messages are numbered ones with a [`Purpose::Staged`](crate::channel::slots::Purpose), and
//!   the token of its segments is below [`STRIPE`](crate::segments::STRIPE); both name a transfer
//!   by a number. Their ends, and those of peers, come as [`StagedEvent`]s, which `pump` takes.
//! - A message of a kind from [`KIND_STAGED`](crate::wire::message::KIND_STAGED) on that is to be
//!   executed by staging is added to a channel's `waiting` as `WaitsFor::Staging`, with a `due` of
//!   its own from the message's mark. Staging may read its bytes at once, and changes memory when
//!   `executed.next()` has reached `due`, which [`StagedEvent::Advanced`] tells. Then it calls
//!   `Core::note_executed`, or `Core::refuse`.
//! - `load`, `store`, `apply` and `store_result` reach memory of any kind for what messages carry;
//!   `flush` is called once all messages of a poll are executed, so that words for a device go
//!   there together.
//! - `memory` tells for the release of regions what is touched; `moved` when anything has moved,
//!   for the watchdog; `ended_peers` which neighbours' processes have ended.

use crate::atomic::Atomic;
use crate::core::Core;
#[cfg(doc)]
use crate::core::StagedEvent;
use crate::error::EngineError;
use crate::op::{Op, Step};
use crate::port::copies::Reach;
use crate::port::{Port, PortError};
use crate::rails::counters::StagedCounters;
use crate::regions::Place;
use crate::request::Request;

/// What a lane has of staged memory.
#[derive(Debug)]
pub(crate) struct Staging {}

fn missing() -> PortError {
    let text = String::from("this lane has nothing that copies");
    PortError { call: "reaching staged memory", code: 0, text }
}

impl Staging {
    pub(crate) fn new() -> Self {
        Self {}
    }

    /// How local memory is reached that nobody has registered.
    pub(crate) fn reach<P: Port>(
        &mut self,
        _core: &mut Core<P>,
        _addr: usize,
        _len: usize,
    ) -> Result<Reach, EngineError> {
        Ok(Reach::Direct)
    }

    /// Whether unregistered host memory is staged where the fabric wants descriptors.
    pub(crate) fn stages_host(&self) -> bool {
        false
    }

    /// Submits an operation on staged memory as far as there is room.
    pub(crate) fn submit<P: Port>(
        &mut self,
        _core: &mut Core<P>,
        _at: u32,
        _op: &mut Op,
        request: &Request<'_>,
    ) -> Result<Step, EngineError> {
        let (what, pe, len) = (request.what(), request.pe, request.len);
        Err(EngineError::Staging { what, pe, len, error: missing() })
    }

    /// Loads bytes of local memory.
    pub(crate) fn load<P: Port>(
        &mut self,
        core: &mut Core<P>,
        addr: usize,
        reach: Reach,
        into: &mut [u8],
    ) -> Result<(), PortError> {
        if reach == Reach::Direct { core.port.load(addr, into) } else { Err(missing()) }
    }

    /// Stores bytes that a message carries.
    pub(crate) fn store<P: Port>(
        &mut self,
        core: &mut Core<P>,
        place: Place,
        bytes: &[u8],
    ) -> Result<(), PortError> {
        if place.reach == Reach::Direct {
            core.port.store(place.addr, bytes)
        } else {
            Err(missing())
        }
    }

    /// Applies an operation to a word. Returns the word before.
    pub(crate) fn apply<P: Port>(
        &mut self,
        core: &mut Core<P>,
        place: Place,
        atomic: &Atomic,
    ) -> Result<u64, PortError> {
        if place.reach == Reach::Direct {
            core.port.apply(place.addr, atomic)
        } else {
            Err(missing())
        }
    }

    /// Stores a fetched word, then its flag.
    pub(crate) fn store_result<P: Port>(
        &mut self,
        core: &mut Core<P>,
        addr: usize,
        word: &[u8],
        flag: Option<u64>,
    ) -> Result<(), PortError> {
        core.port.store(addr, word)?;
        flag.map_or(Ok(()), |flag| core.port.store_flag(addr + 8, flag))
    }

    /// Gives the device what it is to store.
    pub(crate) fn flush<P: Port>(&mut self, _core: &mut Core<P>) {}

    /// Goes on with transfers. Returns whether anything moved.
    pub(crate) fn pump<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        core.staged.clear();
        false
    }

    /// Whether there is anything to go on with.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        false
    }

    /// Whether a copy is under way.
    pub(crate) fn is_copying(&self) -> bool {
        false
    }

    /// Whether more short operations had better be handed over before the next iteration.
    #[inline]
    pub(crate) fn takes_more(&mut self) -> bool {
        false
    }

    /// When anything has moved last, in the watchdog's units.
    pub(crate) fn moved(&self) -> u32 {
        0
    }

    /// Peers whose processes have ended.
    pub(crate) fn ended_peers<P: Port>(&self, _core: &Core<P>) -> Vec<u32> {
        Vec::new()
    }

    /// Local memory that transfers touch: peer, name of the operation, address and length.
    pub(crate) fn memory(&self) -> impl Iterator<Item = (u32, &'static str, (usize, usize))> + '_ {
        std::iter::empty()
    }

    pub(crate) fn counters(&self) -> StagedCounters {
        StagedCounters::default()
    }
}
