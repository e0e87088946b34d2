//! Staging: memory that the fabric does not reach.

use crate::atomic::Atomic;
use crate::core::Core;
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
