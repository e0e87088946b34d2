//! The balance of rails: which one an operation goes by, the one that is expected to be done with
//! it first.
//!
//! # How
//! What a rail has been given and has not done yet, over the rate it has lately shown, is the time
//! until it is free. A rail is given no more ahead than keeps it busy, so most of the sharing needs
//! no forecast: a rail that is done asks for more, and a slow one asks less often. The forecast
//! decides about the end of an operation. A rail gets a segment only if it will be done with it
//! before the others could be done with everything that is left; else the segment waits for one of
//! them.
//!
//! # Rates
//! Of each local rail, from its own completions while it is busy, of the last few segments. Rails
//! start equal, and have one segment ahead until that is done. A rail that is busy and completes
//! nothing counts as slower the longer that lasts. One that has shown nothing yet, or was slow and
//! is not used for a while, is tried: it counts as the fastest until it has shown better.
//!
//! # Why it does not stop
//! Of all rails that are in service, the one that would be done first is always let have the
//! segment, unless it has as much ahead as it may. Then its completions are outstanding, and each
//! of them asks again; or they are in doubt, and then they are not ahead any more.

use crate::ids::RailId;
pub use crate::rails::spread::Spread;

const FORGIVEN: u64 = 2_000_000_000;

const TRIED: u64 = 4;

const REMEMBERED: u64 = 4;

/// Segments of the longest kind that a rail may have ahead for a peer, for each connection that
/// moves them: while one is acknowledged
/// and that is found, the others keep it busy. It is the same for slow rails. Were it less, what
/// they show would be mostly the time that acknowledgements take, and they would stay slow.
const SEGMENTS_AHEAD: u64 = 3;

const TIME_AHEAD: f64 = 250_000.0;

const MOST_AHEAD: u64 = 16;

/// Parts that what is left is thought of as cut into for each rail, or connection for bulk, so that
/// segments become shorter towards the end and rails end together.
const PARTS: usize = 2;

const SHORTEST: usize = 8;

const ALIGN: usize = 4096;

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Bytes given to it and not done.
    ahead: u64,
    longest: u64,
    done: u64,
    /// Nanoseconds that it was busy with them. Sums, rather than a mean of quotients: segments are
    /// found done several at a time, the later ones after no time.
    busy: u64,
    /// When it was last done with something, or began to be busy.
    moved: u64,
    is_tried: bool,
}

impl Load {
    fn give(&mut self, len: u64, now: u64) {
        if self.is_forgotten(now) {
            (self.done, self.busy) = (0, 0);
        }
        if self.ahead == 0 {
            (self.moved, self.longest) = (now, 0);
        }
        self.ahead += len;
        self.longest = self.longest.max(len);
    }

    fn is_forgotten(&self, now: u64) -> bool {
        self.ahead == 0 && now.saturating_sub(self.moved) >= FORGIVEN
    }

    fn done(&mut self, len: u64, now: u64, remembered: u64) {
        self.ahead -= len;
        self.done += len;
        self.busy += now.saturating_sub(self.moved);
        self.moved = now;
        if self.done > remembered {
            self.done /= 2;
            self.busy /= 2;
        }
    }

    fn shown(&self) -> Option<f64> {
        (self.done > 0).then(|| self.done as f64 / self.busy.max(1) as f64)
    }

    fn ahead_now(&self, now: u64, rate: f64) -> f64 {
        let still = now.saturating_sub(self.moved) as f64;
        (self.ahead as f64 - rate * still).max(0.0)
    }

    /// Bytes per nanosecond as far as one can tell, for a segment of `len` bytes. One that is to be
    /// tried has the `rates`' best: with less, it would not be used while a faster one is idle.
    fn rate(&self, now: u64, rates: Rates, len: u64, tried: u64) -> f64 {
        let rate = self.shown().unwrap_or(rates.mean);
        if self.ahead == 0 {
            let tries = self.done == 0 || len <= tried && self.is_forgotten(now);
            return if tries { rates.best } else { rate };
        }
        // Twice, since completions do not come at regular times.
        let still = now.saturating_sub(self.moved) as f64;
        rate.min(2.0 * self.longest as f64 / still)
    }
}

/// What the rails of a lane have shown, in bytes per nanosecond; 1 while they have shown nothing.
#[derive(Clone, Copy, Debug)]
struct Rates {
    mean: f64,
    best: f64,
}

/// The loads of a lane's rails.
#[derive(Debug)]
pub(crate) struct Balance {
    /// See [`Spread::balanced_from`].
    pub(crate) balanced_from: usize,
    striped_from: usize,
    /// The longest segment of operations that are cut, and of those that are not.
    segment: usize,
    /// The shortest, but for the last.
    shortest: usize,
    max_segment: usize,
    loads: Box<[Load]>,
    /// Of each rail, how many connections move bytes in bulk at the same time; one at least.
    ways: Box<[u8]>,
    /// Operations with at least so many bytes are for these, where there are any.
    bulk_from: usize,
    /// The rail that is looked at first, modulo their number, so that equals take turns.
    turn: usize,
    /// Standing of each rail in the turns by rate; see [`Balance::next_in_turn`].
    credit: Box<[f64]>,
}

impl Balance {
    /// For so many rails, which all take segments of `max_segment` bytes.
    pub(crate) fn new(spread: Spread, rails: usize, max_segment: usize, first: usize) -> Self {
        // Values, which are copied when they are submitted, have 8 bytes at most.
        let balanced_from = if rails > 1 { spread.balanced_from.max(9) } else { usize::MAX };
        let segment = spread.segment.clamp(1, max_segment);
        Self {
            balanced_from,
            striped_from: spread.striped_from,
            segment,
            shortest: (spread.segment / SHORTEST).clamp(1, segment),
            max_segment,
            loads: vec![Load::default(); rails].into(),
            ways: vec![1; rails].into(),
            bulk_from: usize::MAX,
            turn: first,
            credit: vec![0.0; rails].into(),
        }
    }

    /// The same, with rails that have so many connections for bulk. These move what is long enough
    /// to be cut; so one rail that has some is a reason to cut.
    pub(crate) fn with_bulk(mut self, bulk: impl Iterator<Item = u8>) -> Self {
        for (ways, bulk) in self.ways.iter_mut().zip(bulk).filter(|(_, bulk)| *bulk > 0) {
            // Not for values, as above.
            (*ways, self.bulk_from) = (bulk, self.striped_from.max(9));
        }
        self.balanced_from = self.balanced_from.min(self.bulk_from);
        self
    }

    /// Whether an operation of so many bytes is one for the connections for bulk.
    pub(crate) fn is_bulk(&self, len: usize) -> bool {
        len >= self.bulk_from
    }

    pub(crate) fn is_on(&self) -> bool {
        self.balanced_from != usize::MAX
    }

    /// The length of the next segment of an operation of `len` bytes, of which `left` are left, the
    /// first of them at the peer's address `at`.
    pub(crate) fn next_len(&self, len: usize, left: usize, at: u64) -> usize {
        if len < self.striped_from {
            return left.min(self.max_segment);
        }
        let ways: usize = self.ways.iter().map(|ways| usize::from(*ways)).sum();
        let even = left / (PARTS * ways);
        let next = even.clamp(self.shortest, self.segment);
        if left <= next {
            return left;
        }
        let beyond = if next > 2 * ALIGN { (at + next as u64) as usize % ALIGN } else { 0 };
        next - beyond
    }

    pub(crate) fn segments(&self, len: usize, mut left: usize, mut at: u64) -> u32 {
        let mut segments = 0;
        while left > 0 {
            let next = self.next_len(len, left, at);
            left -= next;
            at += next as u64;
            segments += 1;
        }
        segments
    }

    pub(crate) fn give(&mut self, rail: RailId, len: usize, now: u64) {
        self.loads[rail.index()].give(len as u64, now);
    }

    pub(crate) fn done(&mut self, rail: RailId, len: usize, now: u64) {
        let remembered = REMEMBERED * self.segment.min(1 << 20) as u64;
        let load = &mut self.loads[rail.index()];
        // What processors move is connected first, which takes longer than many segments.
        let is_first = !std::mem::replace(&mut load.is_tried, true);
        if is_first && self.bulk_from != usize::MAX {
            (load.ahead, load.moved) = (load.ahead - len as u64, now);
        } else {
            load.done(len as u64, now, remembered);
        }
    }

    pub(crate) fn take_back(&mut self, rail: RailId, len: usize) {
        self.loads[rail.index()].ahead -= len as u64;
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn ahead(&self, rail: RailId) -> u64 {
        self.loads[rail.index()].ahead
    }

    pub(crate) fn reopened(&mut self, rail: RailId, now: u64) {
        let load = &mut self.loads[rail.index()];
        (load.done, load.busy, load.moved) = (0, 0, now);
    }

    pub(crate) fn shown(&self, rail: RailId) -> u64 {
        (self.loads[rail.index()].shown().unwrap_or(0.0) * 1e9) as u64
    }

    fn rates(&self) -> Rates {
        let (mut count, mut sum, mut best) = (0, 0.0, 0.0_f64);
        for shown in self.loads.iter().filter_map(Load::shown) {
            (count, sum, best) = (count + 1, sum + shown, best.max(shown));
        }
        if count == 0 {
            Rates { mean: 1.0, best: 1.0 }
        } else {
            Rates { mean: sum / f64::from(count), best }
        }
    }

    /// The rail that a segment of `len` bytes is to go by now; none if it had better wait. `ahead`
    /// is what each rail has ahead for the same peer, and `left` the bytes that wait for rails,
    /// these included. Only the rails in `usable` are thought of, a bit for each.
    pub(crate) fn pick(
        &mut self,
        now: u64,
        ahead: &[u64],
        len: usize,
        left: u64,
        usable: u32,
    ) -> Option<RailId> {
        const LEAST: f64 = 1e-9;
        let rates = self.rates();
        let len = len as u64;
        let segment = self.segment.min(1 << 30) as u64;
        let rate = |load: &Load| load.rate(now, rates, len, segment / TRIED).max(LEAST);
        let bound =
            |segments: u64, at: usize| (segments * segment * u64::from(self.ways[at])) as f64;
        let known = |(at, load): (usize, &Load)| usable >> at & 1 != 0 && load.done > 0;
        let some_known = self.loads.iter().enumerate().any(known);
        let (mut all_ahead, mut all_rates) = (0.0, 0.0);
        // When the best rail would be done, and when the best of those that may have more would.
        let mut first = f64::INFINITY;
        let mut open: Option<(usize, f64)> = None;
        for step in 0..self.loads.len() {
            let at = (self.turn + step) % self.loads.len();
            if usable >> at & 1 == 0 {
                continue;
            }
            let load = &self.loads[at];
            let rate = rate(load);
            let ahead_now = load.ahead_now(now, rate);
            all_ahead += ahead_now;
            all_rates += rate;
            let ends = (ahead_now + len as f64) / rate;
            first = first.min(ends);
            let most = (TIME_AHEAD * rate).clamp(bound(SEGMENTS_AHEAD, at), bound(MOST_AHEAD, at));
            let of_peer = ahead[at];
            let takes = match load.shown() {
                // What it does with the first will tell.
                None if some_known => load.ahead == 0,
                _ => of_peer == 0 || (of_peer + len) as f64 <= most,
            };
            if takes && open.is_none_or(|(_, other)| ends < other) {
                open = Some((at, ends));
            }
        }
        let (at, ends) = open?;
        if ends > first {
            let load = &self.loads[at];
            let rate = rate(load);
            let others_ahead = all_ahead - load.ahead_now(now, rate) + left as f64;
            if ends > others_ahead / (all_rates - rate).max(LEAST) {
                return None;
            }
        }
        self.turn = at + 1;
        Some(RailId(at as u8))
    }

    /// The rail that is next when rails take turns as often as their rates say. For what cannot
    /// wait for a rail. Only those in `usable` take turns, a bit for each; there is one at least.
    pub(crate) fn next_in_turn(&mut self, now: u64, usable: u32) -> RailId {
        let rates = self.rates();
        let mut sum = 0.0;
        let mut next = None;
        for step in 0..self.loads.len() {
            let at = (self.turn + step) % self.loads.len();
            if usable >> at & 1 == 0 {
                continue;
            }
            let rate = self.loads[at].rate(now, rates, 0, 0);
            sum += rate;
            self.credit[at] += rate;
            if next.is_none_or(|next: usize| self.credit[at] > self.credit[next]) {
                next = Some(at);
            }
        }
        let next = next.unwrap_or(0);
        self.credit[next] -= sum;
        RailId(next as u8)
    }
}

#[cfg(test)]
mod tests;
