//! Lists of gathered puts, for each direction a fixed number: which puts and signals a fragment
//! has, in which order, and where they are in its bounce buffer.

use std::ops::Range;

use crate::ids::{Pe, WrId};
use crate::port::copies::{CopyDirection, MOST_WORDS};
use crate::posting::peers::words::Order;
use crate::request::Touched;
use crate::wire::message::Spot;
use crate::wire::staged::{LIST_ENTRY, ListedSignal, MOST_LISTED};

/// Puts begin at multiples of this in a bounce buffer, but for those right behind their neighbour.
pub(in crate::staging) const ALIGN: usize = 64;

const LISTS: u16 = 64;

/// One of several puts, or a signal among them.
#[derive(Clone, Copy, Debug)]
pub(in crate::staging) struct Part {
    /// Address in this process.
    pub(in crate::staging) memory: usize,
    /// Bytes; 0 of a signal by itself.
    pub(in crate::staging) len: usize,
    /// Place at the peer. Of a peer's put it means nothing.
    pub(in crate::staging) to: Spot,
    /// Offset in the bounce buffer.
    pub(in crate::staging) at: usize,
    /// What comes behind it.
    pub(in crate::staging) signal: Option<ListedSignal>,
    /// Whether it comes behind all parts before it, and so begins a *group*, within which nothing
    /// orders puts, and signals come behind puts.
    pub(in crate::staging) behind: bool,
    /// Whether its bytes are those of a part before it, in the same place.
    pub(in crate::staging) repeats: bool,
}

impl Part {
    /// Whether it has bytes in the bounce buffer that are no other's.
    pub(in crate::staging) fn has_bytes(&self) -> bool {
        self.len != 0 && !self.repeats
    }
}

/// The group that begins at a part.
pub(in crate::staging) fn group_at(parts: &[Part], begin: usize) -> Range<usize> {
    let others = parts.iter().skip(begin + 1).take_while(|part| !part.behind);
    begin..begin + 1 + others.count()
}

/// Puts the parts of each group in the order of their places at the peer, signals by themselves
/// behind puts.
pub(in crate::staging) fn arrange(parts: &mut [Part]) {
    // As they came, where they go to the same place.
    parts.iter_mut().enumerate().for_each(|(number, part)| part.at = number);
    let mut begin = 0;
    while begin < parts.len() {
        let range = group_at(parts, begin);
        begin = range.end;
        let group = &mut parts[range];
        let behind = group[0].behind;
        group.sort_unstable_by_key(|part| (part.len == 0, part.to.slot, part.to.offset, part.at));
        group.iter_mut().for_each(|part| part.behind = false);
        group[0].behind = behind;
    }
}

/// What a peer's list has in which order can be executed.
pub(in crate::staging) fn check_list(parts: &[Part], in_order: bool) -> Result<(), String> {
    let is_put = |part: &Part| part.len != 0;
    let words = parts.iter().filter(|part| part.signal.is_some()).count();
    if in_order && words > MOST_WORDS {
        return Err(format!("{words} signals in order"));
    }
    let has_puts =
        if in_order { parts.first().is_some_and(is_put) } else { parts.iter().all(is_put) };
    if has_puts { Ok(()) } else { Err(String::from("a signal without a put")) }
}

/// Gives the puts their places in the bounce buffer, behind the list. Where the last one ends.
pub(in crate::staging) fn place(parts: &mut [Part]) -> usize {
    let mut end = parts.len() * LIST_ENTRY;
    let mut before: Option<Part> = None;
    for part in parts.iter_mut().filter(|part| part.has_bytes()) {
        let touches = before.is_some_and(|before| {
            let next = before.to.offset + before.len as u64;
            (before.to.slot, next) == (part.to.slot, part.to.offset)
        });
        part.at = if touches { end } else { end.next_multiple_of(ALIGN) };
        end = part.at + part.len;
        before = Some(*part);
    }
    for at in 0..parts.len() {
        let Part { memory, len, repeats: true, .. } = parts[at] else { continue };
        let same = |part: &&Part| part.has_bytes() && (part.memory, part.len) == (memory, len);
        parts[at].at = parts.iter().find(same).map_or(0, |part| part.at);
    }
    end
}

/// Bytes that so many puts take at most in a bounce buffer, if their own are so many.
pub(in crate::staging) fn room_for(puts: usize, bytes: usize) -> usize {
    bytes + (puts * LIST_ENTRY).next_multiple_of(ALIGN)
}

/// A put that others may join, and what has joined it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(in crate::staging) wr_id: WrId,
    /// How its last group is ordered.
    pub(in crate::staging) order: Order,
    /// Bytes in its bounce buffer at most, but for the list.
    pub(in crate::staging) bytes: usize,
    /// Writes to the peer that were submitted, with it. None where others may come before it that
    /// no fence keeps there: then nothing behind a fence joins.
    pub(in crate::staging) submitted: Option<u32>,
    /// Signals, and those of its last group.
    pub(in crate::staging) words: usize,
    pub(in crate::staging) last_words: usize,
    /// Whether the last part is a put without a signal.
    pub(in crate::staging) ends_with_put: bool,
}

/// Names a list among those of its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct List(u16);

/// The lists of one direction.
#[derive(Debug)]
pub(in crate::staging) struct Lists {
    lists: Vec<(Pe, Vec<Part>)>,
    free: Vec<List>,
}

impl Lists {
    fn new() -> Self {
        let list = |_| (Pe(0), Vec::with_capacity(MOST_LISTED));
        Self { lists: (0..LISTS).map(list).collect(), free: (0..LISTS).map(List).collect() }
    }

    pub(in crate::staging) fn parts(&mut self, List(list): List) -> &mut Vec<Part> {
        &mut self.lists[usize::from(list)].1
    }

    pub(in crate::staging) fn take(&mut self, pe: Pe) -> Option<List> {
        let list = self.free.pop()?;
        self.lists[usize::from(list.0)].0 = pe;
        Some(list)
    }

    /// Whether one is free.
    pub(in crate::staging) fn is_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(in crate::staging) fn give(&mut self, list: List) {
        self.parts(list).clear();
        self.free.push(list);
    }
}

/// The lists of a lane.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(in crate::staging) out: Lists,
    pub(in crate::staging) inward: Lists,
}

impl Gathered {
    pub(in crate::staging) fn new() -> Self {
        Self { out: Lists::new(), inward: Lists::new() }
    }

    pub(in crate::staging) fn of(&mut self, direction: CopyDirection) -> &mut Lists {
        match direction {
            CopyDirection::Out => &mut self.out,
            CopyDirection::In => &mut self.inward,
        }
    }

    /// Local memory of the puts that are listed.
    pub(in crate::staging) fn memory(&self) -> impl Iterator<Item = Touched> + '_ {
        let lists = self.out.lists.iter().map(|list| ("put", list));
        let peers = self.inward.lists.iter().map(|list| ("put of the peer", list));
        lists.chain(peers).flat_map(|(what, (pe, parts))| {
            let touched = |part: &Part| (part.memory, part.len);
            parts.iter().filter(|part| part.len != 0).map(move |part| Touched {
                what,
                pe: *pe,
                memory: touched(part),
            })
        })
    }

    /// How many lists are in use, out and in.
    #[cfg(any(test, feature = "audit"))]
    pub(in crate::staging) fn in_use(&self) -> [usize; 2] {
        [&self.out, &self.inward].map(|lists| lists.lists.len() - lists.free.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_joins_fits() {
        for lens in [&[233, 233][..], &[7168; 64], &[300; MOST_LISTED], &[64, 65, 63, 7000]] {
            let bytes = lens.iter().map(|len: &usize| len.next_multiple_of(ALIGN)).sum();
            let mut end = lens.len() * LIST_ENTRY;
            for len in lens {
                end = end.next_multiple_of(ALIGN) + len;
            }
            assert!(end <= room_for(lens.len(), bytes), "{lens:?}");
        }
    }
}
