//! Registration of memory by all PEs together: what each tells the others, and what they agree on.
//!
//! | bytes | content (little endian) |
//! |---|---|
//! | 0..8 | length in bytes |
//! | 8..16 | address |
//! | 16..48 | a bit for each index that is free |
//! | 48..560 | handle |
//! | 560..816 | what has failed, as text, padded with zeros |

use crate::channel::error::ChannelError;
use crate::channel::proxy::region_table::PeerRegion;
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};

const WHY: usize = 256;
const FREE: usize = 32;
const BYTES: usize = 16 + FREE + HANDLE_BYTES + WHY;

/// Indices that are free: a bit for each.
pub(crate) type Free = [u8; FREE];

/// One PE's part of a registration.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) len: u64,
    pub(crate) base: u64,
    pub(crate) free: Free,
    pub(crate) handle: HandleBytes,
    /// Why this PE cannot.
    pub(crate) failed: Option<String>,
}

impl Registration {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&self.base.to_le_bytes());
        bytes.extend_from_slice(&self.free);
        bytes.extend_from_slice(&self.handle);
        let why = self.failed.as_deref().unwrap_or_default().as_bytes();
        bytes.extend_from_slice(&why[..why.len().min(WHY)]);
        bytes.resize(BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (len, rest) = bytes.split_first_chunk()?;
        let (base, rest) = rest.split_first_chunk()?;
        let (free, rest) = rest.split_first_chunk()?;
        let (handle, why) = rest.split_first_chunk()?;
        let why = String::from_utf8_lossy(why);
        let why = why.trim_end_matches('\0');
        Some(Self {
            len: u64::from_le_bytes(*len),
            base: u64::from_le_bytes(*base),
            free: *free,
            handle: *handle,
            failed: (!why.is_empty()).then(|| why.to_owned()),
        })
    }
}

/// What all PEs have agreed on.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// An index that all have free.
    pub(crate) index: u8,
    pub(crate) peers: Box<[PeerRegion]>,
}

pub(crate) fn agree(all: &[u8], mine: &Registration) -> Result<Agreed, ChannelError> {
    let len = mine.len as usize;
    let refused = |pe: usize, why: String| ChannelError::Peer { len, pe: pe as u32, why };
    let mut free = [0xff; FREE];
    let mut peers = Vec::with_capacity(all.len() / BYTES);
    for (pe, bytes) in all.chunks(BYTES).enumerate() {
        let Some(registration) = Registration::decode(bytes) else {
            return Err(refused(pe, String::from("sent something else")));
        };
        if let Some(why) = registration.failed {
            return Err(refused(pe, format!("cannot: {why}")));
        }
        if registration.len != mine.len {
            return Err(refused(pe, format!("registers {} bytes", registration.len)));
        }
        free.iter_mut().zip(registration.free).for_each(|(bits, theirs)| *bits &= theirs);
        peers.push(PeerRegion { base: registration.base, handle: registration.handle });
    }
    let index = lowest(&free).ok_or_else(|| ChannelError::Register {
        addr: mine.base as usize,
        len,
        why: String::from("all indices of regions are in use"),
    })?;
    Ok(Agreed { index, peers: peers.into() })
}

pub(crate) fn lowest(free: &Free) -> Option<u8> {
    let (at, bits) = free.iter().enumerate().find(|(_, bits)| **bits != 0)?;
    Some((at * 8) as u8 + bits.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(len: u64, base: u64, used: &[u8]) -> Registration {
        let mut free = [0xff; FREE];
        free[31] = 0x7f;
        used.iter().for_each(|index| free[usize::from(index / 8)] &= !(1 << (index % 8)));
        Registration { len, base, free, handle: [base as u8; HANDLE_BYTES], failed: None }
    }

    fn gathered(offers: &[Registration]) -> Vec<u8> {
        offers.iter().flat_map(Registration::encode).collect()
    }

    #[test]
    fn the_lowest_index_that_all_have_free_is_taken() {
        let offers = [registration(64, 1, &[0, 1, 3]), registration(64, 2, &[0, 2])];
        let Agreed { index, peers } = agree(&gathered(&offers), &offers[0]).unwrap();
        assert_eq!((index, peers.len()), (4, 2));
        assert_eq!((peers[1].base, peers[1].handle), (2, [2; HANDLE_BYTES]));
        let all: Vec<u8> = (0..=254).collect();
        let full = [registration(64, 1, &all), registration(64, 2, &[])];
        let failed = agree(&gathered(&full), &full[1]).unwrap_err().to_string();
        assert!(failed.contains("all indices"), "{failed}");
    }

    #[test]
    fn who_cannot_or_does_something_else_is_named() {
        let mut offers = [registration(64, 1, &[]), registration(65, 2, &[])];
        let failed = agree(&gathered(&offers), &offers[0]).unwrap_err().to_string();
        assert!(failed.contains("64 bytes: PE 1 registers 65 bytes"), "{failed}");
        offers[1].failed = Some("x".repeat(1000));
        let failed = agree(&gathered(&offers), &offers[0]).unwrap_err().to_string();
        assert!(failed.contains(&format!("PE 1 cannot: {}", "x".repeat(WHY))), "{failed}");
        assert!(agree(&[0; 5], &offers[0]).is_err());
    }
}
