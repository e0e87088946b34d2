//! Copies of a stager, as they are started: together where the driver takes that, or one by one.

use std::ptr;
use std::sync::Arc;

use super::{DeviceStager, OwnBounce, Place};
use crate::copy::request::{self, PinnedTransfer, StartError};
use crate::driver::error::refused;
use crate::memory::pinned::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::staging::flight::{By, Call};
use crate::staging::neighbours::Neighbours;
use engine::port::copies::{Copy, CopyDirection, Tagged};
use engine::port::{PortError, Posted};

impl DeviceStager {
    /// Starts copies whose memory is in `places`: in one call of the driver what one engine can
    /// give so, the others each by itself.
    pub(super) fn start_placed(&mut self, copies: &[Tagged]) -> Result<Posted, PortError> {
        let direction = copies[0].copy.direction;
        let room = self.flight_of(direction).room();
        if copies.len() > room && self.calls_of(copies) > room {
            return Ok(Posted::Again);
        }
        let mut at = 0;
        while at < copies.len() {
            let end = at + self.run_of(&copies[at..], at);
            let given = self.start_run(&copies[at..end], at);
            let by = match given {
                Ok(by) => by,
                Err(error) => {
                    let error = match error {
                        StartError::Cuda(error) => error.into(),
                        other => refused("copying", other.to_string()),
                    };
                    if at == 0 {
                        return Err(error);
                    }
                    By::Refused(error)
                }
            };
            let flight = self.flight(direction);
            let mut tags = 0;
            for (number, Tagged { tag, .. }) in copies.iter().enumerate().take(end).skip(at) {
                if copies.get(number + 1).is_none_or(|next| next.tag != *tag) {
                    flight.push_tag(*tag);
                    tags += 1;
                }
            }
            flight.push(Call { by, tags });
            at = end;
        }
        Ok(Posted::Yes)
    }

    fn calls_of(&self, copies: &[Tagged]) -> usize {
        let (mut at, mut calls) = (0, 0);
        while at < copies.len() {
            at += self.run_of(&copies[at..], at);
            calls += 1;
        }
        calls
    }

    fn run_of(&self, copies: &[Tagged], at: usize) -> usize {
        let together = |place: &Option<Place>| {
            let place = place.as_ref()?;
            let engine = &self.contexts[place.context].copies.inward;
            let range = place.range.range();
            // What is managed may be copied by the CPU; what belongs to another context is copied
            // in that.
            let own = !range.is_owned() || Arc::ptr_eq(range.context(), engine.context());
            (range.kind() == Kind::Device && own && engine.gives_together())
                .then_some(place.context)
        };
        let places = &self.places[at..at + copies.len()];
        let Some(first) = together(&places[0]) else { return 1 };
        places.iter().take_while(|place| together(place) == Some(first)).count()
    }

    fn start_run(&mut self, copies: &[Tagged], at: usize) -> Result<By, StartError> {
        let Self { contexts, places, bounce, neighbours, by_cpu, .. } = self;
        let Tagged { copy: Copy { direction, memory, bounce: host, len }, .. } = copies[0];
        let Some(Place { context, .. }) = places[at] else {
            *by_cpu += len as u64;
            // SAFETY: the bounce buffer's bytes are in the bounce memory, as was checked, which is
            // ours; no copy that is under way uses them, as the engine promises of both sides. Or
            // they are in a neighbour's, which stays mapped, is only read, and has any bytes. The
            // memory is host memory that the caller of an operation vouches for until its end, and
            // no part of the bounce memory.
            unsafe {
                match direction {
                    CopyDirection::Out => {
                        ptr::copy_nonoverlapping(memory as *const u8, host as *mut u8, len);
                    }
                    CopyDirection::In => {
                        ptr::copy_nonoverlapping(host as *const u8, memory as *mut u8, len);
                    }
                }
            }
            return Ok(By::Cpu);
        };
        let of = &mut contexts[context];
        if let Some(error) = &of.failed {
            return Err(StartError::Cuda(error.clone()));
        }
        let transfers =
            copies.iter().zip(&places[at..]).filter_map(|(Tagged { copy, .. }, place)| {
                let Place { range, addr, .. } = place.as_ref()?;
                let (memory, offset) = memory_of(bounce, neighbours, copy).ok()?;
                // Page-locked before there was a context.
                let memory = memory?;
                let direction = match copy.direction {
                    CopyDirection::Out => request::Direction::FromDevice,
                    CopyDirection::In => request::Direction::ToDevice,
                };
                let (range, addr) = (&**range.range(), *addr);
                Some(PinnedTransfer { direction, range, addr, memory, offset, len: copy.len })
            });
        let engine = of.engine(direction);
        if let [_] = copies {
            let mut transfers = transfers;
            // Its memory was found.
            let Some(transfer) = transfers.next() else {
                return Err(StartError::Bounds { addr: host, len });
            };
            engine.start_pinned(&transfer)?;
        } else {
            engine.start_many(transfers)?;
        }
        Ok(By::Engine(context))
    }
}

/// The bounce memory that a copy's bounce buffer is in, if it is page-locked, and where there. A
/// neighbour's is never written to.
#[inline]
pub(super) fn memory_of<'m>(
    own: &'m OwnBounce,
    neighbours: &'m Neighbours,
    copy: &Copy,
) -> Result<(Option<&'m Arc<PinnedMemory>>, usize), PortError> {
    let Copy { direction, bounce, len, .. } = *copy;
    let offset = bounce.checked_sub(own.addr());
    let fits = |at: &usize| *at <= own.len() && len <= own.len() - *at;
    if let Some(offset) = offset.filter(fits) {
        return Ok((own.pinned(), offset));
    }
    let theirs = if direction == CopyDirection::In { neighbours.memory(bounce, len) } else { None };
    theirs.map(|(memory, offset)| (Some(memory), offset)).ok_or_else(|| {
        refused("copying", format!("{len} bytes at {bounce:#x} are in no bounce buffer"))
    })
}
