//! Memory of PEs of this host as kernels here reach it themselves: what each PE tells of its own
//! when all register, and what is mapped of the others'.
//!
//! Nothing here fails a registration: what is not shared is said in the log, once for each PE, and
//! kernels find that they do not reach it.
//!
//! | bytes | content (little endian) of what a PE tells |
//! |---|---|
//! | 0..8 | 0: nothing is shared; 1: by a handle; 2: by a descriptor |
//! | 8..16 | where the memory begins in its allocation |
//! | 16..24 | bytes of the allocation |
//! | 24..88 | the handle |
//! | 88..104 | the room where it takes descriptors; zeros: it takes none |
//! | 104..120 | what is said with its descriptor |

mod room;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use log::info;

use self::room::{Room, TOKEN_BYTES, Token};
use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::logging;
use cuda::{Context, Driver, Export, ExportedMemory, IPC_HANDLE_BYTES, Memory, PeerMemory};
use engine::ids::Pe;

/// Of what a PE tells.
pub(crate) const NEAR_BYTES: usize = 24 + IPC_HANDLE_BYTES + 2 * TOKEN_BYTES;

/// By what others map a PE's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Means {
    Nothing,
    Handle([u8; IPC_HANDLE_BYTES]),
    Descriptor,
}

/// What a PE tells the others of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NearOffer {
    means: Means,
    offset: u64,
    allocation: u64,
    room: Token,
    token: Token,
}

impl NearOffer {
    /// Nothing is shared, and nothing taken.
    pub(crate) const NONE: Self = Self {
        means: Means::Nothing,
        offset: 0,
        allocation: 0,
        room: [0; TOKEN_BYTES],
        token: [0; TOKEN_BYTES],
    };

    pub(crate) fn encode(&self) -> [u8; NEAR_BYTES] {
        let (means, handle) = match self.means {
            Means::Nothing => (0_u64, [0; IPC_HANDLE_BYTES]),
            Means::Handle(handle) => (1, handle),
            Means::Descriptor => (2, [0; IPC_HANDLE_BYTES]),
        };
        let mut bytes = [0; NEAR_BYTES];
        bytes[..8].copy_from_slice(&means.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.allocation.to_le_bytes());
        bytes[24..88].copy_from_slice(&handle);
        bytes[88..104].copy_from_slice(&self.room);
        bytes[104..].copy_from_slice(&self.token);
        bytes
    }

    /// None of what is no such thing.
    pub(crate) fn decode(bytes: &[u8; NEAR_BYTES]) -> Option<Self> {
        let (means, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (allocation, rest) = rest.split_first_chunk()?;
        let (handle, rest) = rest.split_first_chunk()?;
        let (room, rest) = rest.split_first_chunk()?;
        let means = match u64::from_le_bytes(*means) {
            0 => Means::Nothing,
            1 => Means::Handle(*handle),
            2 => Means::Descriptor,
            _ => return None,
        };
        let (offset, allocation) = (u64::from_le_bytes(*offset), u64::from_le_bytes(*allocation));
        Some(Self { means, offset, allocation, room: *room, token: rest.try_into().ok()? })
    }

    /// Whether other processes may have the memory mapped.
    pub(crate) fn is_shared(&self) -> bool {
        self.means != Means::Nothing
    }
}

/// Where kernels reach what a near PE has, as long as this is there.
#[derive(Debug)]
pub(crate) struct NearBase {
    /// Which of the near PEs.
    pub(crate) number: usize,
    pub(crate) base: u64,
    _memory: Option<PeerMemory>,
}

/// PEs of which was said why memory is not shared with them. This one: why its own is not.
#[derive(Debug, Default)]
pub(crate) struct Said(BTreeSet<Pe>);

impl Said {
    fn say(&mut self, pe: Pe, me: Pe, why: &dyn std::fmt::Display) {
        if !self.0.insert(pe) {
            return;
        }
        if pe == me {
            info!(target: logging::MEM, "kernels of other PEs of this host do not reach memory of this PE: {why}");
        } else {
            info!(target: logging::MEM, "kernels here do not reach memory of {pe}, which is on this host: {why}");
        }
    }
}

/// This PE's part of a registration.
#[derive(Debug)]
pub(crate) struct Sharing {
    me: Pe,
    offer: NearOffer,
    descriptor: Option<OwnedFd>,
    room: Option<Room>,
    /// Where memory of others is mapped.
    context: Option<Arc<Context>>,
}

impl Sharing {
    /// Of nothing.
    pub(crate) fn none(me: Pe) -> Self {
        Self { me, offer: NearOffer::NONE, descriptor: None, room: None, context: None }
    }

    /// Of memory that is registered. `context`: the one of kernels that use the channel; where they
    /// are CPU threads, others' memory is mapped for the device that this memory is on.
    pub(crate) fn new(
        me: Pe,
        (base, len): (usize, usize),
        context: Option<&Arc<Context>>,
        said: &mut Said,
    ) -> Self {
        let mut sharing = Self { context: context.cloned(), ..Self::none(me) };
        let Ok(driver) = Driver::of_process() else { return sharing };
        // What cannot be looked at was not registered.
        if let Ok(Memory::Device(range)) = Memory::examine(driver, base, len) {
            sharing.context.get_or_insert_with(|| Arc::clone(range.context()));
            match ExportedMemory::of(&range) {
                Ok(exported) => sharing.take(exported),
                Err(why) => said.say(me, me, &why),
            }
        }
        if sharing.context.is_some() {
            match Room::open() {
                Ok(room) => {
                    sharing.offer.room = *room.name();
                    sharing.room = Some(room);
                }
                Err(why) => said.say(me, me, &why),
            }
        }
        sharing
    }

    fn take(&mut self, exported: ExportedMemory) {
        let ExportedMemory { export, allocation, offset } = exported;
        (self.offer.allocation, self.offer.offset) = (allocation, offset);
        self.offer.means = match export {
            Export::Handle(handle) => Means::Handle(handle),
            Export::Descriptor(fd) => {
                if getrandom::fill(&mut self.offer.token).is_err() {
                    return;
                }
                self.descriptor = Some(fd);
                Means::Descriptor
            }
        };
    }

    /// What the others are told.
    pub(crate) fn offer(&self) -> NearOffer {
        self.offer
    }

    /// Maps `len` bytes of each near PE, by the offers of all PEs. This PE's own are at `base`.
    /// Collective.
    ///
    /// # Errors
    /// Not all PEs have come. What cannot be mapped is no error.
    pub(crate) fn map(
        self,
        near: &[Pe],
        offers: &[NearOffer],
        (base, len): (usize, usize),
        bootstrap: &mut dyn Bootstrap,
        said: &mut Said,
    ) -> Result<Vec<NearBase>, BootstrapError> {
        let Self { me, descriptor, mut room, context, .. } = self;
        let others = || near.iter().enumerate().filter(|(_, pe)| **pe != me);
        if offers.iter().any(|offer| offer.means == Means::Descriptor) {
            for (_, pe) in others() {
                let room = offers.get(pe.index()).map(|theirs| theirs.room);
                let room = room.filter(|room| *room != NearOffer::NONE.room);
                let (Some(room), Some(fd)) = (room, &descriptor) else { continue };
                if let Err(why) = room::hand_over(&room, &self.offer.token, fd) {
                    said.say(me, me, &format!("handing a descriptor to {pe}: {why}"));
                }
            }
            // Each descriptor waits in its room when all have come here.
            bootstrap.barrier()?;
        }
        let mut taken = room.as_mut().map(Room::take_all).unwrap_or_default();
        let number = near.iter().position(|pe| *pe == me).unwrap_or_default();
        let mut bases = vec![NearBase { number, base: base as u64, _memory: None }];
        let Some(context) = context else { return Ok(bases) };
        for (number, pe) in others() {
            let Some(NearOffer { means, offset, allocation, token, .. }) = offers.get(pe.index())
            else {
                continue;
            };
            let export = match means {
                Means::Nothing => continue,
                Means::Handle(handle) => Export::Handle(*handle),
                Means::Descriptor => match taken.iter().position(|(of, _)| of == token) {
                    Some(at) => Export::Descriptor(taken.swap_remove(at).1),
                    None => {
                        said.say(*pe, me, &"its descriptor has not come; is it in a network namespace of its own?");
                        continue;
                    }
                },
            };
            let told = ExportedMemory { export, allocation: *allocation, offset: *offset };
            match PeerMemory::open(&context, &told, len) {
                Ok(memory) => {
                    let base = memory.addr() as u64;
                    bases.push(NearBase { number, base, _memory: Some(memory) });
                }
                Err(why) => said.say(*pe, me, &why),
            }
        }
        Ok(bases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_the_trip_and_others_are_none() {
        let handle = Means::Handle(std::array::from_fn(|at| at as u8));
        for means in [Means::Nothing, handle, Means::Descriptor] {
            let (room, token) = ([7; TOKEN_BYTES], [9; TOKEN_BYTES]);
            let offer = NearOffer { means, offset: 1 << 40, allocation: 3, room, token };
            let mut bytes = offer.encode();
            assert_eq!(NearOffer::decode(&bytes), Some(offer));
            assert_eq!(offer.is_shared(), means != Means::Nothing);
            bytes[0] = 3;
            assert_eq!(NearOffer::decode(&bytes), None);
            bytes[0] = 1;
            bytes[7] = 1;
            assert_eq!(NearOffer::decode(&bytes), None);
        }
    }
}
