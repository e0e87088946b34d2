//! Where rails of peers are since they were closed and opened again. The proxy lane, which peers tell of
//! it, notes it here for the host lane, to which nobody sends anything.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ids::{Pe, RailId};

/// What the proxy lane of a process has heard.
#[derive(Debug, Default)]
pub struct Moves {
    /// Of each rail that has moved, the latest note.
    latest: Mutex<Latest>,
    /// Notes so far. Counted up with the lock held; read without it to see that there is nothing new.
    notes: AtomicU64,
}

type Latest = HashMap<(Pe, RailId), Note>;

#[derive(Debug)]
struct Note {
    /// How many there were before it, and it.
    number: u64,
    address: Vec<u8>,
}

/// A rail that has moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub(super) pe: Pe,
    /// The rail of that PE.
    pub(super) rail: RailId,
    pub(super) address: Vec<u8>,
}

impl Moves {
    /// A rail of a PE is there from now on. Takes a lock and allocates: rails move seldom.
    pub(super) fn note(&self, pe: Pe, rail: RailId, address: &[u8]) {
        let mut latest = self.lock();
        let number = self.notes.load(Ordering::Relaxed) + 1;
        latest.insert((pe, rail), Note { number, address: address.to_vec() });
        self.notes.store(number, Ordering::Release);
    }

    /// Notes so far.
    #[inline]
    pub(super) fn notes(&self) -> u64 {
        self.notes.load(Ordering::Acquire)
    }

    /// The rails that have moved since there were so many notes, and how many there are now.
    pub(super) fn since(&self, heard: u64) -> (u64, Vec<Move>) {
        let latest = self.lock();
        let newer = latest.iter().filter(|(_, note)| note.number > heard);
        let moves =
            newer.map(|(&(pe, rail), note)| Move { pe, rail, address: note.address.clone() });
        (self.notes.load(Ordering::Relaxed), moves.collect())
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        // Each note is written at once, so a panic leaves nothing half done.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_gets_the_latest_address_of_what_has_moved_since() {
        let moves = Moves::default();
        assert_eq!(moves.since(0), (0, Vec::new()));
        moves.note(Pe(1), RailId(0), &[1]);
        moves.note(Pe(2), RailId(1), &[2]);
        moves.note(Pe(1), RailId(0), &[3]);
        let moved =
            |pe, rail, address: u8| Move { pe: Pe(pe), rail: RailId(rail), address: vec![address] };
        let (heard, mut all) = moves.since(0);
        all.sort_by_key(|moved| moved.pe.0);
        assert_eq!((heard, all), (3, vec![moved(1, 0, 3), moved(2, 1, 2)]));
        assert_eq!(moves.since(2), (3, vec![moved(1, 0, 3)]));
        assert_eq!(moves.since(3), (3, Vec::new()));
        assert_eq!(moves.notes(), 3);
    }
}
