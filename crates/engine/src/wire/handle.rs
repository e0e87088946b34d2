//! The 512-byte memory handle that NVSHMEM carries between PEs.
//!
//! A handle describes one registered region of its owner: address, length, and the key of each of
//! the owner's rails. It is position independent. Its bytes come from another process: `check`
//! validates all of them; the fast path compares the first eight with those of a handle that was
//! checked before, and both check that the addresses used lie inside the region.
//!
//! | bytes | content (little endian) |
//! |---|---|
//! | 0..3 | magic |
//! | 3 | version; bit 7: for local use only, peers neither write to it nor send messages about it |
//! | 4..6 | owner's PE |
//! | 6 | number of rails with a key, at most 32; 0 for a region that peers do not write to themselves |
//! | 7 | bit 0, staged: peers reach it by messages to the owner |
//! | 8 | bit 0, direct: the owner's processor reaches it |
//! | 9..16 | more magic |
//! | 16..24 | virtual address of the first byte, in the owner |
//! | 24..32 | length in bytes, at least 1 |
//! | 32..36 | the region's id: 20 bits of table index, 12 of the stamp |
//! | 36..40 | zero |
//! | 40..48 | the region's stamp, by which an outlived handle is recognised |
//! | 48..56 | address of the first byte on the fabric: its virtual address, or 0 |
//! | 56..56+8n | key per rail; for a staged region, length of the owner's bounce buffers |

use thiserror::Error;

use crate::ids::{Pe, RailId};
use crate::port::Addressing;
use crate::wire::decode::get64;
use crate::wire::message::RegionAddr;

/// Size of a handle, fixed by NVSHMEM 3.1 to 3.8.
pub const HANDLE_BYTES: usize = 512;

/// The bytes of a handle. NVSHMEM gives them no alignment.
pub type HandleBytes = [u8; HANDLE_BYTES];

pub const MAX_RAILS: usize = 32;

/// Returns the number of leading bytes that a handle with so many keys uses; others are 0.
pub const fn used_bytes(rails: usize) -> usize {
    // A staged region has a length in place of the first key.
    KEYS + 8 * if rails == 0 { 1 } else { rails }
}

pub(crate) const VERSION: u8 = 5;
const MAGIC: [u8; 3] = *b"nvl";
const MORE_MAGIC: [u8; 7] = *b"fmem\0\0\0";
/// Flag in the version byte.
const LOCAL_ONLY: u8 = 0x80;
const FLAG_STAGED: u8 = 1;
const FLAG_DIRECT: u8 = 1;
const KEYS: usize = 56;

const _: () = assert!(KEYS + 8 * MAX_RAILS <= HANDLE_BYTES);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum HandleError {
    #[error("the memory handle was not made by this transport (it starts with {found:#018x})")]
    Magic { found: u64 },
    /// Written by another version of this transport.
    #[error(
        "the memory handle has version {found}, this transport reads version {VERSION}: all PEs \
         must run the same version of the plugin"
    )]
    Version { found: u8 },
    /// Length zero, a region that would pass the end of the address space, or one that the fabric
    /// addresses by neither its address nor 0.
    #[error("the memory handle describes an impossible region: {len} bytes at {base:#x}")]
    Region { base: u64, len: u64 },
    #[error("the memory handle names {found} rails, the most is {MAX_RAILS}")]
    Rails { found: u8 },
    #[error("the memory handle has no key for {rail}: it was made for {rails} rails{local}",
        local = if *.rails == 0 { " (it is for local use only)" } else { "" })]
    NoKey { rail: RailId, rails: u8 },
    #[error("{len} bytes at {addr:#x} are not inside the region of {region} bytes at {base:#x}")]
    Outside { addr: u64, len: u64, base: u64, region: u64 },
    #[error("the memory handle names a region that is not registered (any more) in this process")]
    Stale,
    #[error("the memory handle is of a region of {owner}, not of {pe}")]
    Owner { owner: Pe, pe: Pe },
    #[error("a word of {width} bytes at {addr:#x} is not aligned")]
    Misaligned { addr: u64, width: usize },
    #[error("the local buffer is not registered, and this fabric needs it to be (FI_MR_LOCAL)")]
    Unregistered,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle {
    /// The PE that registered the region.
    pub owner: Pe,
    /// Virtual address of the first byte, in the owner.
    pub base: u64,
    pub len: u64,
    /// The owner's id of the region.
    pub region: u32,
    pub stamp: u64,
    pub addressing: Addressing,
    /// Bytes of the owner's bounce buffers, if peers reach the region only by messages.
    pub staged: Option<u64>,
    /// Whether the owner's CPU reaches it, so that messages may carry long payloads for it.
    pub direct: bool,
    /// Key per rail of the owner. At most [`MAX_RAILS`].
    pub keys: Vec<u64>,
}

impl Handle {
    /// Encodes the handle. Keys beyond [`MAX_RAILS`] are cut off.
    pub fn encode(&self) -> HandleBytes {
        debug_assert!(self.keys.len() <= MAX_RAILS);
        let keys = &self.keys[..self.keys.len().min(MAX_RAILS)];
        let mut bytes = [0; HANDLE_BYTES];
        let is_local = keys.is_empty() && self.staged.is_none();
        bytes[0..3].copy_from_slice(&MAGIC);
        bytes[3] = VERSION | if is_local { LOCAL_ONLY } else { 0 };
        debug_assert!(self.owner.0 <= u16::MAX.into());
        bytes[4..6].copy_from_slice(&(self.owner.0 as u16).to_le_bytes());
        bytes[6] = keys.len() as u8;
        bytes[7] = if self.staged.is_some() { FLAG_STAGED } else { 0 };
        bytes[8] = if self.direct { FLAG_DIRECT } else { 0 };
        bytes[9..16].copy_from_slice(&MORE_MAGIC);
        bytes[16..24].copy_from_slice(&self.base.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.region.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.stamp.to_le_bytes());
        let first = if self.addressing == Addressing::Virtual { self.base } else { 0 };
        bytes[48..56].copy_from_slice(&first.to_le_bytes());
        if let Some(bounce_len) = self.staged {
            bytes[KEYS..KEYS + 8].copy_from_slice(&bounce_len.to_le_bytes());
        }
        for (at, key) in keys.iter().enumerate() {
            bytes[KEYS + 8 * at..KEYS + 8 * at + 8].copy_from_slice(&key.to_le_bytes());
        }
        bytes
    }

    /// Decodes a handle with every check.
    pub fn decode(bytes: &HandleBytes) -> Result<Self, HandleError> {
        let view = HandleView::check(bytes)?;
        let rails = view.rails();
        let keys = (0..rails).map(|rail| view.key(RailId(rail))).collect::<Result<_, _>>()?;
        Ok(Self {
            owner: view.owner(),
            base: view.base(),
            len: view.len(),
            region: view.region(),
            stamp: view.stamp(),
            addressing: view.addressing(),
            staged: view.is_staged().then(|| view.bounce_len() as u64),
            direct: view.is_direct(),
            keys,
        })
    }
}

/// A rail of a peer and the position of its key in handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RailKey {
    rail: RailId,
    /// Bytes from the first key; at most 255, so inside any handle.
    offset: u8,
}

const _: () = assert!(KEYS + u8::MAX as usize + 8 <= HANDLE_BYTES && 8 * MAX_RAILS <= 256);

impl RailKey {
    pub(crate) fn rail(self) -> RailId {
        self.rail
    }

    /// Returns a key's position; a rail that [`HandleView::key`] refuses gets another rail's.
    pub(crate) fn of(rail: RailId) -> Self {
        Self { rail, offset: rail.0.wrapping_mul(8) }
    }
}

/// First eight bytes of a handle, which all handles of a peer with keys share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HandlePrefix {
    word: u64,
    /// The part shared by all handles of the peer that accept messages.
    peer: u64,
}

impl HandlePrefix {
    /// Matches no handle with keys: those of the peer were not seen yet.
    pub(crate) fn unseen(pe: Pe) -> Self {
        let [a, b, c] = MAGIC;
        let [d, e, ..] = pe.0.to_le_bytes();
        Self::new(u64::from_le_bytes([a, b, c, VERSION, d, e, 0, 0]))
    }

    /// Matches no handle.
    pub(crate) const NONE: Self = Self { word: 0, peer: u64::MAX };

    fn new(word: u64) -> Self {
        Self { word, peer: peer(word) }
    }
}

#[inline(always)]
fn peer(word: u64) -> u64 {
    // Drops number of keys and flags, which differ between handles of one peer.
    word << 16
}

/// A checked handle, read in place.
#[derive(Clone, Copy)]
pub(crate) struct HandleView<'a> {
    bytes: &'a HandleBytes,
}

impl<'a> HandleView<'a> {
    /// Checks all bytes but the values of keys.
    #[inline]
    pub(crate) fn check(bytes: &'a HandleBytes) -> Result<Self, HandleError> {
        let view = Self { bytes };
        // One expression for the common case; `fault` finds out what is wrong.
        let sound = bytes[0..3] == MAGIC
            && bytes[3] & !LOCAL_ONLY == VERSION
            && bytes[9..16] == MORE_MAGIC
            && view.len() != 0
            && (view.first() == 0 || view.first() == view.base())
            && view.base().checked_add(view.len()).is_some()
            && usize::from(view.rails()) <= MAX_RAILS;
        if sound { Ok(view) } else { Err(view.fault()) }
    }

    /// Checks as [`HandleView::check`] does, and that the region belongs to this PE.
    #[inline]
    pub(crate) fn check_of(pe: Pe, bytes: &'a HandleBytes) -> Result<Self, HandleError> {
        let view = Self::check(bytes)?;
        let owner = view.owner();
        if owner == pe { Ok(view) } else { Err(HandleError::Owner { owner, pe }) }
    }

    /// Returns the handle if it has keys and starts like a checked one of the peer.
    #[inline(always)]
    pub(crate) fn keyed(bytes: &'a HandleBytes, prefix: HandlePrefix) -> Option<Self> {
        // The rest is as its owner wrote it: a length of zero has no address inside, and no region
        // beyond the end of the address space could be registered.
        (get64(bytes, 0) == prefix.word).then_some(Self { bytes })
    }

    /// Returns the handle if it belongs to the peer and its region accepts messages.
    #[inline(always)]
    pub(crate) fn for_messages(bytes: &'a HandleBytes, prefix: HandlePrefix) -> Option<Self> {
        (peer(get64(bytes, 0)) == prefix.peer).then_some(Self { bytes })
    }

    #[inline]
    pub(crate) fn prefix(&self) -> HandlePrefix {
        HandlePrefix::new(get64(self.bytes, 0))
    }

    /// Returns the fabric address of `len` bytes at the owner's address `addr` if all are inside.
    #[inline(always)]
    pub(crate) fn target(&self, addr: u64, len: u64) -> Option<u64> {
        self.offset_of(addr, len).map(|offset| self.remote_address(offset))
    }

    /// Returns the key for one of the owner's rails that have keys.
    #[inline(always)]
    pub(crate) fn key_at(&self, rail: RailKey) -> u64 {
        get64(self.bytes, KEYS + usize::from(rail.offset))
    }

    /// Returns the address for messages of `len` bytes at `addr`, if all are inside.
    #[inline(always)]
    pub(crate) fn region_addr(&self, addr: u64, len: u64) -> Option<RegionAddr> {
        self.offset_of(addr, len).map(|offset| RegionAddr { region: self.region(), offset })
    }

    #[cold]
    fn fault(&self) -> HandleError {
        if self.bytes[0..3] != MAGIC || self.bytes[9..16] != MORE_MAGIC {
            return HandleError::Magic { found: get64(self.bytes, 0) };
        }
        let found = self.bytes[3] & !LOCAL_ONLY;
        if found != VERSION {
            return HandleError::Version { found };
        }
        if usize::from(self.rails()) > MAX_RAILS {
            return HandleError::Rails { found: self.rails() };
        }
        HandleError::Region { base: self.base(), len: self.len() }
    }

    /// Returns the offset of `len` bytes at the owner's address `addr` if all are inside.
    #[inline]
    pub(crate) fn locate(&self, addr: u64, len: u64) -> Result<u64, HandleError> {
        let outside = HandleError::Outside { addr, len, base: self.base(), region: self.len() };
        self.offset_of(addr, len).ok_or(outside)
    }

    #[inline(always)]
    fn offset_of(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.wrapping_sub(self.base());
        // Below the base, the offset wraps to one that no length reaches.
        let end = offset.checked_add(len)?;
        (end <= self.len()).then_some(offset)
    }

    #[inline]
    pub(crate) fn key(&self, rail: RailId) -> Result<u64, HandleError> {
        // `rails` was checked, so the key is inside the handle; `%` spares the bounds check.
        if rail.0 < self.rails() {
            Ok(get64(self.bytes, KEYS + 8 * (rail.index() % MAX_RAILS)))
        } else {
            Err(HandleError::NoKey { rail, rails: self.rails() })
        }
    }

    #[inline(always)]
    pub(crate) fn remote_address(&self, offset: u64) -> u64 {
        self.first().wrapping_add(offset)
    }

    #[inline]
    pub(crate) fn rails(&self) -> u8 {
        self.bytes[6]
    }

    #[inline(always)]
    pub(crate) fn takes_messages(&self) -> bool {
        self.bytes[3] & LOCAL_ONLY == 0
    }

    /// Returns the bytes of the owner's bounce buffers, at least one, for a staged region.
    pub(crate) fn bounce_len(&self) -> usize {
        usize::try_from(get64(self.bytes, KEYS)).unwrap_or(usize::MAX).max(1)
    }

    #[inline]
    pub(crate) fn is_staged(&self) -> bool {
        self.bytes[7] & FLAG_STAGED != 0
    }

    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.bytes[8] & FLAG_DIRECT != 0
    }

    #[inline]
    fn addressing(&self) -> Addressing {
        if self.first() == 0 { Addressing::Offset } else { Addressing::Virtual }
    }

    #[inline(always)]
    fn first(&self) -> u64 {
        get64(self.bytes, 48)
    }

    #[inline]
    fn owner(&self) -> Pe {
        Pe(u16::from_le_bytes([self.bytes[4], self.bytes[5]]).into())
    }

    #[inline]
    fn base(&self) -> u64 {
        get64(self.bytes, 16)
    }

    #[inline]
    fn len(&self) -> u64 {
        get64(self.bytes, 24)
    }

    #[inline]
    pub(crate) fn region(&self) -> u32 {
        get64(self.bytes, 32) as u32
    }

    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        get64(self.bytes, 40)
    }
}

#[cfg(test)]
mod tests;
