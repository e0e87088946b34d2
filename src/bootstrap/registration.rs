//! Registration of memory by all PEs together: every PE gets the handles of all.
//!
//! A PE sends the part of its handle that has keys, or zeros if it has none; then those without
//! keys send the reason in a second exchange.

use super::{Bootstrap, BootstrapError};
use engine::wire::handle::{HANDLE_BYTES, Handle, HandleBytes, used_bytes};

/// Most bytes of a reason.
const WHY: usize = 256;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Contribution {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) handle: HandleBytes,
    pub(crate) note: Vec<u8>,
}

/// Exchanges what the PEs of a job, with no more than `rails` rails each, have registered, and a
/// note of equal length from each. Collective. `refused` makes the error of a PE and its reason.
pub(crate) fn exchange<E: From<BootstrapError>>(
    bootstrap: &mut dyn Bootstrap,
    rails: usize,
    registered: Result<&HandleBytes, String>,
    note: &[u8],
    refused: impl Fn(usize, String) -> E,
) -> Result<Vec<Contribution>, E> {
    let len = used_bytes(rails);
    let mut mine = note.to_vec();
    mine.extend_from_slice(
        &registered.as_ref().map_or([0; HANDLE_BYTES], |handle| **handle)[..len],
    );
    let all = bootstrap.allgather(&mine)?;
    let handles = all.chunks_exact(mine.len()).map(|record| record.split_at(note.len()));
    let failed = handles.clone().position(|(_, handle)| handle.iter().all(|byte| *byte == 0));
    if let Some(pe) = failed {
        let mut why = registered.err().unwrap_or_default().into_bytes();
        why.resize(WHY, 0);
        let all = bootstrap.allgather(&why)?;
        let why = String::from_utf8_lossy(all.chunks(WHY).nth(pe).unwrap_or_default());
        return Err(refused(pe, format!("cannot: {}", why.trim_end_matches('\0'))));
    }
    let part = |(pe, (note, used)): (usize, (&[u8], &[u8]))| {
        let mut handle = [0; HANDLE_BYTES];
        handle[..len].copy_from_slice(used);
        let refused = |why: String| refused(pe, why);
        let Handle { owner, base, len, .. } =
            Handle::decode(&handle).map_err(|fault| refused(fault.to_string()))?;
        if owner.index() != pe {
            return Err(refused(format!("sent a handle of {owner}")));
        }
        Ok(Contribution { base, len, handle, note: note.to_vec() })
    };
    handles.enumerate().map(part).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bootstrap::Callback;
    use engine::ids::Pe;
    use engine::port::Addressing;

    pub(crate) fn handle(pe: u32, base: u64, len: u64, rails: u64) -> HandleBytes {
        let (region, stamp, addressing) = (1, 2, Addressing::Virtual);
        let keys = (1..=rails).map(|rail| rail << 40).collect();
        let owner = Pe(pe);
        Handle { owner, base, len, region, stamp, addressing, staged: None, direct: true, keys }
            .encode()
    }

    /// PE 0 of two, with the other's contributions in order, each as long as this PE's.
    pub(crate) fn with_peer(says: &[Vec<u8>]) -> Callback {
        let (says, mut turns) = (says.to_vec(), 0..);
        let gather = move |mine: &[u8], all: &mut [u8]| {
            all.copy_from_slice(&[mine, &says[turns.next().unwrap()]].concat());
            0
        };
        Callback::new(2, 0, gather).unwrap()
    }

    fn refused(pe: usize, why: String) -> BootstrapError {
        BootstrapError::Mismatch { call: "registering", pe: pe as u32, why }
    }

    #[test]
    fn handle_length_follows_keys() {
        for (rails, bytes) in [(1, 64), (2, 72), (8, 120), (32, 312)] {
            let (mine, theirs) = (handle(0, 0x1000, 64, rails), handle(1, 0x2000, 32, 1));
            let mut peer = with_peer(&[[&[9; 3], &theirs[..bytes]].concat()]);
            let parts = exchange(&mut peer, rails as usize, Ok(&mine), &[7; 3], refused).unwrap();
            let part = |base, len, handle, note| Contribution { base, len, handle, note };
            let both = [part(0x1000, 64, mine, vec![7; 3]), part(0x2000, 32, theirs, vec![9; 3])];
            assert_eq!(parts, both, "{rails} rails");
        }
    }

    #[test]
    fn missing_handle_names_pe_and_reason() {
        let mine = handle(0, 0x1000, 64, 1);
        let named = |registered, says: &[Vec<u8>]| match exchange(
            &mut with_peer(says),
            1,
            registered,
            &[7; 3],
            refused,
        ) {
            Err(BootstrapError::Mismatch { pe, why, .. }) => (pe, why),
            other => panic!("{other:?}"),
        };
        let mut reason = b"no memory".to_vec();
        reason.resize(WHY, 0);
        let said = named(Ok(&mine), &[vec![0; 67], reason.clone()]);
        assert_eq!(said, (1, String::from("cannot: no memory")));
        let theirs = [&[7; 3], &handle(1, 0x2000, 64, 1)[..64]].concat();
        let said = named(Err("x".repeat(1000)), &[theirs.clone(), reason]);
        assert_eq!(said, (0, format!("cannot: {}", "x".repeat(WHY))));
        for (at, why) in [(3, "not made by"), (7, "a handle of PE")] {
            let mut wrong = theirs.clone();
            wrong[at] ^= 1;
            let (pe, said) = named(Ok(&mine), &[wrong]);
            assert!(pe == 1 && said.contains(why), "{said}");
        }
    }
}
