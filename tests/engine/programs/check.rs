//! What there must be in the end, and what there may be.

use std::collections::BTreeMap;

use super::program::{Asked, End, Kind, Link};
use super::{AGAIN, HEAP, LAST, MAX_AGAIN, ONCE, PART, Ran, STEADY, STEADY_LEN, SUMS};
use crate::prelude::*;
use crate::staged::patterned;

impl Link {
    /// Checks what one PE has done to another: what was promised is there, and other things in
    /// part at most.
    pub(super) fn check(
        &self,
        fabric: &FakeFabric,
        (me, pe): (Pe, Pe),
        is_back: impl Fn(usize) -> bool,
    ) {
        for asked in &self.asked {
            let found = fabric.load(pe, asked.at, asked.bytes.len());
            let partly =
                || found.iter().zip(&asked.bytes).all(|(now, sent)| [0, *sent].contains(now));
            let allowed = found == asked.bytes || !self.is_promised(asked.op) && partly();
            assert!(allowed, "wrong: {asked:?} of {me} to {pe}");
        }
        for (op, at, bytes) in self.fetched.iter().filter(|(op, ..)| self.is_promised(*op)) {
            let is_right = is_back(*at) || fabric.load(me, *at, bytes.len()) == *bytes;
            assert!(is_right, "wrong: fetched by {op} from {pe}");
        }
    }
}

/// When each thing was first and last seen; what was not, or in part, never stops being seen.
fn moments(link: &Link, pe: Pe, events: &[Event]) -> Vec<(usize, usize)> {
    let asked = &link.asked;
    let places: BTreeMap<usize, usize> = asked.iter().map(|asked| asked.at).zip(0..).collect();
    let mut left: Vec<usize> = asked.iter().map(|asked| asked.bytes.len()).collect();
    let mut moments = vec![(usize::MAX, 0); asked.len()];
    for (moment, event) in events.iter().enumerate() {
        let (at, len) = match *event {
            Event::Applied { pe: of, addr } if of == pe => (addr, usize::MAX),
            Event::Copied { pe: of, addr, len } if of == pe => (addr, len),
            Event::Delivered(d) if d.to == pe && d.direction == Direction::Write => (d.addr, d.len),
            _ => continue,
        };
        let Some((begin, number)) = places.range(..=at).next_back() else { continue };
        if at < begin + asked[*number].bytes.len() {
            moments[*number] = (moments[*number].0.min(moment), moment);
            left[*number] = left[*number].saturating_sub(len);
        }
    }
    for ((asked, moment), _) in
        asked.iter().zip(&mut moments).zip(left).filter(|(_, left)| *left > 0)
    {
        assert!(!link.is_promised(asked.op), "wrong: {asked:?} was not seen");
        moment.1 = usize::MAX;
    }
    moments
}

/// Signals of lanes that order them are behind all signals before them, too.
fn check_order(link: &Link, moments: &[(usize, usize)], ordered: bool) {
    // The last moment of what comes before the last fence, of what else there was, and of puts and
    // ordered signals.
    let (mut fenced, mut others, mut puts) = (0, 0, 0);
    let mut fences = 0;
    for (number, (one, (first, last))) in link.asked.iter().zip(moments).enumerate() {
        if one.fences != fences {
            (fenced, fences) = (others, one.fences);
        }
        let behind = match one.kind {
            Kind::Put | Kind::Atomic => fenced,
            Kind::SignalOfPuts(parts) if !ordered => {
                let parts = &moments[number - parts..number];
                parts.iter().map(|(_, last)| *last).fold(fenced, usize::max)
            }
            Kind::Signal | Kind::SignalOfPuts(_) => fenced.max(puts),
        };
        let Asked { at, bytes, kind, .. } = one;
        let len = bytes.len();
        assert!(*first >= behind, "wrong: {kind:?} of {len} bytes at {at:#x} is seen too early");
        // What was refused holds nothing back.
        if link.ops[one.op].0 == End::Refused {
            continue;
        }
        if one.kind == Kind::Put || ordered && one.kind != Kind::Atomic {
            puts = puts.max(*last);
        }
        others = others.max(*last);
    }
}

impl Ran {
    /// Checks what all memories have, and in which order it was seen there, except what was fetched
    /// into memory that its owner has back.
    pub(crate) fn check(&self, is_back: impl Fn(usize) -> bool) {
        let events = self.fabric.events();
        for (pe, member) in (0..).map(Pe).zip(&self.members) {
            let bases = [member.base, member.words];
            // What may be elsewhere than it should is found by what is left.
            let mut rest = bases.map(|base| self.fabric.load(pe, base, HEAP));
            let mut blank = |at: usize, len: usize| {
                for (base, bytes) in bases.iter().zip(&mut rest) {
                    if (*base..base + HEAP).contains(&at) {
                        bytes[at - base..][..len].fill(0);
                    }
                }
            };
            for (me, links) in self.links.iter().enumerate() {
                let link = &links[pe.index()];
                check_order(link, &moments(link, pe, &events), self.ordered);
                link.check(&self.fabric, (Pe(me as u32), pe), &is_back);
                link.asked.iter().for_each(|asked| blank(asked.at, asked.bytes.len()));
                blank(member.base + me * PART + AGAIN, MAX_AGAIN);
                blank(member.words + me * PART + LAST, ONCE - LAST);
            }
            let steady = patterned(pe.0, 0..STEADY_LEN);
            let found = self.fabric.load(pe, member.base + STEADY, STEADY_LEN);
            assert!(found == steady, "wrong: what never changes at {pe}");
            blank(member.base + STEADY, STEADY_LEN);
            let sums = self.fabric.load(pe, member.words + SUMS, 32);
            for (word, me) in
                (0..4).flat_map(|word| (0..self.links.len()).map(move |me| (word, me)))
            {
                let link = &self.links[me][pe.index()];
                let ops = link.sums.iter().filter(|(_, of)| *of == word);
                let least = ops.clone().filter(|(op, _)| link.is_promised(*op)).count();
                let found = usize::from(sums[8 * word + me]);
                let is_right = (least..=ops.count()).contains(&found);
                assert!(is_right, "wrong: PE {me} has added {found} to {pe}, of {:?}", link.sums);
            }
            blank(member.words + SUMS, 32);
            assert!(rest == [(); 2].map(|()| vec![0; HEAP]), "canary: somewhere at {pe}");
        }
    }
}
