//! Dispatch of a descriptor to the engine: looked up, checked, submitted the shortest way.

use channel_sys as c;

use crate::channel::proxy::region_table::{AddressFault, Regions};
use crate::channel::ring::descriptor::{Descriptor, Put, RegionAddr};
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::{Direction, Port};
use engine::request::{AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request};

#[derive(Debug)]
pub(crate) enum Refusal {
    AddressFault(AddressFault),
    NoPe,
    /// A quiet with that PE: nothing to submit.
    Quiet(Pe),
    /// The engine's error, boxed as it is large.
    Engine(Box<EngineError>),
}

impl From<AddressFault> for Refusal {
    #[cold]
    fn from(fault: AddressFault) -> Self {
        Self::AddressFault(fault)
    }
}

impl From<EngineError> for Refusal {
    #[cold]
    fn from(error: EngineError) -> Self {
        Self::Engine(Box::new(error))
    }
}

/// Submits an operation to the batch that is entered. It may wait for a full queue.
///
/// # Errors
/// Nothing was submitted, or the operation has failed in part.
#[inline(never)]
pub(crate) fn dispatch<P: Port>(
    lane: &mut Lane<P>,
    regions: &Regions,
    descriptor: &Descriptor,
) -> Result<(), Refusal> {
    match *descriptor {
        Descriptor::Put { pe, dst, src, bytes } => put(lane, regions, Put { pe, dst, src, bytes }),
        Descriptor::Get { pe, dst, src, bytes } => {
            transfer(lane, regions, Direction::Read, (pe, dst, src, bytes))
        }
        Descriptor::PutValue { pe, dst, bytes, value } => {
            let local = LocalSide::Value(value);
            start(lane, regions, Direction::Write, (pe, dst, local, bytes))
        }
        Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value } => {
            let at = (pe, dst, src, bytes);
            put_signal(lane, regions, at, signal, op, value)
        }
        Descriptor::Atomic { pe, dst, width, op, value, compare, fetch } => {
            let atomic = Atomic { op, width, float: false, operand: value, compare };
            change(lane, regions, pe, dst, &atomic, fetch)
        }
        Descriptor::Fence { pe: None } => {
            lane.fence_all();
            Ok(())
        }
        Descriptor::Fence { pe: Some(pe) } => {
            if !lane.has_pe(pe) {
                return Err(Refusal::NoPe);
            }
            Ok(lane.fence(pe)?)
        }
        Descriptor::Quiet { pe } if lane.has_pe(pe) => Err(Refusal::Quiet(pe)),
        Descriptor::Quiet { .. } => Err(Refusal::NoPe),
    }
}

#[inline(always)]
pub(crate) fn put<P: Port>(lane: &mut Lane<P>, regions: &Regions, put: Put) -> Result<(), Refusal> {
    let Put { pe, dst, src, bytes } = put;
    transfer(lane, regions, Direction::Write, (pe, dst, src, bytes))
}

/// Peer, its address, ours, and the length in bytes.
type Sides = (Pe, RegionAddr, RegionAddr, u32);

#[inline(always)]
fn transfer<P: Port>(
    lane: &mut Lane<P>,
    regions: &Regions,
    direction: Direction,
    (pe, dst, src, bytes): Sides,
) -> Result<(), Refusal> {
    let local = LocalSide::Memory(regions.local(src, bytes.into())?);
    start(lane, regions, direction, (pe, dst, local, bytes))
}

#[inline(always)]
fn start<P: Port>(
    lane: &mut Lane<P>,
    regions: &Regions,
    direction: Direction,
    (pe, dst, local, bytes): (Pe, RegionAddr, LocalSide, u32),
) -> Result<(), Refusal> {
    let (remote_addr, remote_handle) = regions.remote(dst, bytes.into(), pe)?;
    let len = bytes as usize;
    let request = Request { direction, pe, remote_handle, remote_addr, local, len };
    Ok(lane.start(&request)?)
}

#[inline(always)]
fn put_signal<P: Port>(
    lane: &mut Lane<P>,
    regions: &Regions,
    (pe, dst, src, bytes): Sides,
    signal: RegionAddr,
    op: AtomicOp,
    value: u64,
) -> Result<(), Refusal> {
    let (remote_addr, remote_handle) = regions.remote(dst, bytes.into(), pe)?;
    let local = LocalSide::Memory(regions.local(src, bytes.into())?);
    let (len, direction) = (bytes as usize, Direction::Write);
    let part = Request { direction, pe, remote_handle, remote_addr, local, len };
    let (remote_addr, remote_handle) = regions.word(signal, Width::Eight.bytes(), pe)?;
    let atomic = Atomic { op, width: Width::Eight, float: false, operand: value, compare: 0 };
    let signal = AtomicRequest { pe, remote_handle, remote_addr, atomic, result: None };
    if lane.try_put_signal(&part, &signal) {
        return Ok(());
    }
    Ok(lane.put_signal(&PutSignalRequest { parts: &[part], signal })?)
}

#[inline(always)]
fn change<P: Port>(
    lane: &mut Lane<P>,
    regions: &Regions,
    pe: Pe,
    dst: RegionAddr,
    atomic: &Atomic,
    fetch: Option<RegionAddr>,
) -> Result<(), Refusal> {
    let width = atomic.width.bytes();
    let (remote_addr, remote_handle) = regions.word(dst, width, pe)?;
    let mut request =
        AtomicRequest { pe, remote_handle, remote_addr, atomic: *atomic, result: None };
    if let Some(fetch) = fetch {
        let addr = regions.local(fetch, width as u64)?;
        request.result = Some(FetchTarget { addr, flag: None });
    }
    Ok(lane.atomic(&request)?)
}

pub(crate) fn about(descriptor: &Descriptor) -> (u32, u32, u64) {
    match *descriptor {
        Descriptor::Put { pe, bytes, .. } => (c::NLF_OP_PUT, pe.0, bytes.into()),
        Descriptor::PutValue { pe, bytes, .. } => (c::NLF_OP_PUT_VALUE, pe.0, bytes.into()),
        Descriptor::PutSignal { pe, bytes, .. } => (c::NLF_OP_PUT_SIGNAL, pe.0, bytes.into()),
        Descriptor::Get { pe, bytes, .. } => (c::NLF_OP_GET, pe.0, bytes.into()),
        Descriptor::Atomic { pe, width, .. } => (c::NLF_OP_ATOMIC, pe.0, width.bytes() as u64),
        Descriptor::Fence { pe } => (c::NLF_OP_FENCE, pe.map_or(0, |pe| pe.0), 0),
        Descriptor::Quiet { pe } => (c::NLF_OP_QUIET, pe.0, 0),
    }
}
