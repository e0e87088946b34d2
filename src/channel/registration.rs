//! Registration of symmetric memory: PEs send handles and free indices, and choose the same index.

use crate::bootstrap::Bootstrap;
use crate::bootstrap::registration::{Contribution, exchange};
use crate::channel::error::ChannelError;
use crate::channel::proxy::region_table::PeerRegion;
use engine::wire::handle::HandleBytes;

/// Bitmap of free indices.
pub(crate) type Free = [u8; 32];

/// Index and length on which all PEs have agreed.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// An index that is free at all PEs.
    pub(crate) index: u8,
    pub(crate) peers: Box<[PeerRegion]>,
}

/// Registers `len` bytes at all PEs, with no more than `rails` rails each. Collective.
pub(crate) fn agree(
    bootstrap: &mut dyn Bootstrap,
    rails: usize,
    registered: &Result<HandleBytes, ChannelError>,
    (base, len): (usize, usize),
    mut free: Free,
) -> Result<Agreed, ChannelError> {
    let refused = |pe: usize, why: String| ChannelError::Peer { len, pe: pe as u32, why };
    let mine = registered.as_ref().map_err(ToString::to_string);
    let parts = exchange(bootstrap, rails, mine, &free, refused)?;
    let mut peers = Vec::with_capacity(parts.len());
    for (pe, Contribution { base, len: theirs, handle, note }) in parts.into_iter().enumerate() {
        if theirs != len as u64 {
            return Err(refused(pe, format!("registers {theirs} bytes")));
        }
        free.iter_mut().zip(note).for_each(|(bits, theirs)| *bits &= theirs);
        peers.push(PeerRegion { base, handle });
    }
    let why = || String::from("all indices of regions are in use");
    let index =
        lowest(&free).ok_or_else(|| ChannelError::Register { addr: base, len, why: why() })?;
    Ok(Agreed { index, peers: peers.into() })
}

pub(crate) fn lowest(free: &Free) -> Option<u8> {
    let (at, bits) = free.iter().enumerate().find(|(_, bits)| **bits != 0)?;
    Some((at * 8) as u8 + bits.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::registration::tests::{handle, with_peer};

    fn free(used: &[u8]) -> Free {
        let mut free = [0xff; 32];
        free[31] = 0x7f;
        used.iter().for_each(|index| free[usize::from(index / 8)] &= !(1 << (index % 8)));
        free
    }

    /// The agreement of two PEs with these indices in use, of which PE 1 registers `len` bytes.
    fn agreed(used: [&[u8]; 2], len: u64) -> Result<Agreed, ChannelError> {
        let theirs = [&free(used[1]), &handle(1, 0x2000, len, 1)[..64]].concat();
        let mine = Ok(handle(0, 0x1000, 64, 1));
        agree(&mut with_peer(&[theirs]), 1, &mine, (0x1000, 64), free(used[0]))
    }

    #[test]
    fn lowest_common_index_is_taken() {
        let Agreed { index, peers } = agreed([&[0, 1, 3], &[0, 2]], 64).unwrap();
        assert_eq!((index, peers.len()), (4, 2));
        assert_eq!((peers[1].base, peers[1].handle), (0x2000, handle(1, 0x2000, 64, 1)));
        let all: Vec<u8> = (0..=254).collect();
        let failed = agreed([&[], &all], 64).unwrap_err().to_string();
        assert!(failed.contains("all indices"), "{failed}");
    }

    #[test]
    fn differing_length_names_its_pe() {
        let failed = agreed([&[], &[]], 65).unwrap_err().to_string();
        assert!(failed.contains("64 bytes: PE 1 registers 65 bytes"), "{failed}");
    }
}
