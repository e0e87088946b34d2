//! Which rail an operation goes by: the one that is expected to be done with it first.
//!
//! # How
//! What a rail has been given and has not done yet, over the rate it has lately shown, is the time until
//! it is free. A rail is given no more ahead than keeps it busy, so most of the sharing needs no
//! forecast: a rail that is done asks for more, and a slow one asks less often. The forecast decides
//! about the end of an operation. A rail gets a segment only if it will be done with it before the others
//! could be done with everything that is left; else the segment waits for one of them.
//!
//! # Rates
//! Of each local rail, from its own completions while it is busy, smoothed over about two segments. Rails
//! start equal. A rail that is busy and completes nothing counts as slower the longer that lasts. One that
//! was slow and is not used is believed to recover little by little, until it is tried again.
//!
//! # Why it does not stop
//! Of all rails, the one that would be done first is always let have the segment, unless it has as much
//! ahead as it may. Then its completions are outstanding, and each of them asks again.

use super::ids::RailId;

/// Time after which a rail that is not used counts as fast as the others, in nanoseconds. Trying a rail
/// that has stayed slow costs the time of one segment on it.
const FORGIVEN: u64 = 2_000_000_000;

/// Least time that a rate is taken from, in nanoseconds, unless the rail falls idle before: completions
/// come several at a time.
const SAMPLE: u64 = 20_000;

/// A rail is given this much of its time ahead, in nanoseconds, at least: several times what a completion
/// takes to come back and be found.
const AHEAD: f64 = 250_000.0;

/// Segments that a rail at the best rate may have ahead at least.
const SEGMENTS_AHEAD: u64 = 2;

/// Parts that what is left is thought of as cut into for each rail, so that segments become shorter towards
/// the end and rails end together.
const PARTS: usize = 2;

/// The shortest segment that an operation is cut into for that reason, as a part of the longest.
const SHORTEST: usize = 8;

/// Segments end at multiples of this, by the peer's addresses, where they are longer than twice that.
const ALIGN: usize = 4096;

/// How operations are spread over rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The rail of an operation with at least so many bytes is chosen by load and rate. Shorter ones take
    /// the rails in turn.
    pub weighed_from: usize,
    /// Operations with at least so many bytes, and more than that, are cut into segments.
    pub striped_from: usize,
    /// The longest of these segments in bytes.
    pub segment: usize,
}

impl Spread {
    /// Whole operations, by all rails in turn.
    pub const ROUND_ROBIN: Spread =
        Spread { weighed_from: usize::MAX, striped_from: usize::MAX, segment: usize::MAX };

    /// What [`Spread::weighed_from`] is by default. Below it the choice costs more than it gains.
    pub const WEIGHED_FROM: usize = 8 << 10;
}

/// What one rail has to do, and how fast it is.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Bytes given to it and not done.
    ahead: u64,
    /// The longest segment since it was last idle.
    longest: u64,
    /// Bytes per nanosecond, or 0 before the first sample.
    rate: f64,
    /// When the sample that is being taken began.
    since: u64,
    /// Bytes done since.
    done: u64,
    /// When it was last done with something, or began to be busy.
    moved: u64,
}

impl Load {
    fn give(&mut self, len: u64, now: u64) {
        if self.ahead == 0 {
            (self.since, self.moved, self.done, self.longest) = (now, now, 0, 0);
        }
        self.ahead += len;
        self.longest = self.longest.max(len);
    }

    fn done(&mut self, len: u64, now: u64, segment: f64) {
        self.ahead -= len;
        self.done += len;
        self.moved = now;
        let time = now.saturating_sub(self.since);
        if self.ahead == 0 || time >= SAMPLE {
            let (bytes, time) = (self.done as f64, time.max(1) as f64);
            let weight = if self.rate == 0.0 { 1.0 } else { bytes / (bytes + segment) };
            self.rate += (bytes / time - self.rate) * weight;
            (self.since, self.done) = (now, 0);
        }
    }

    /// Bytes per nanosecond as far as one can tell, when the rails' mean is `mean`.
    fn rate(&self, now: u64, mean: f64) -> f64 {
        let rate = if self.rate == 0.0 { mean } else { self.rate };
        let still = now.saturating_sub(self.moved) as f64;
        if self.ahead == 0 {
            let recovered = (still / FORGIVEN as f64).min(1.0);
            return rate + (mean - rate).max(0.0) * recovered;
        }
        // Twice, since completions do not come at regular times.
        let most = if still > 0.0 { 2.0 * self.longest as f64 / still } else { rate };
        rate.min(most)
    }
}

/// The loads of a lane's rails.
#[derive(Debug)]
pub(super) struct Balance {
    /// See [`Spread::weighed_from`].
    pub(super) weighed_from: usize,
    striped_from: usize,
    /// The longest segment of operations that are cut, and of those that are not.
    segment: usize,
    max_segment: usize,
    loads: Box<[Load]>,
    /// The rail that is looked at first, so that equals take turns.
    turn: usize,
    /// Standing of each rail in the turns by rate; see [`Balance::next_in_turn`].
    credit: Box<[f64]>,
}

impl Balance {
    /// For so many rails, which all take segments of `max_segment` bytes.
    pub(super) fn new(spread: Spread, rails: usize, max_segment: usize, first: usize) -> Self {
        // Values, which are copied when they are submitted, have 8 bytes at most.
        let weighed_from = if rails > 1 { spread.weighed_from.max(9) } else { usize::MAX };
        Self {
            weighed_from,
            striped_from: spread.striped_from,
            segment: spread.segment.clamp(1, max_segment),
            max_segment,
            loads: vec![Load::default(); rails].into(),
            turn: first % rails,
            credit: vec![0.0; rails].into(),
        }
    }

    /// Whether rails are chosen by load at all.
    pub(super) fn is_on(&self) -> bool {
        self.weighed_from != usize::MAX
    }

    /// The length of the next segment of an operation of `len` bytes, of which `left` are left, the first
    /// of them at the peer's address `at`.
    pub(super) fn next_len(&self, len: usize, left: usize, at: u64) -> usize {
        if len < self.striped_from {
            return left.min(self.max_segment);
        }
        let even = left / (PARTS * self.loads.len());
        let next = even.max(self.segment / SHORTEST).clamp(1, self.segment);
        if left <= next {
            return left;
        }
        let beyond = if next > 2 * ALIGN { (at + next as u64) as usize % ALIGN } else { 0 };
        next - beyond
    }

    /// How many segments that makes of what is left.
    pub(super) fn segments(&self, len: usize, mut left: usize, mut at: u64) -> u32 {
        let mut segments = 0;
        while left > 0 {
            let next = self.next_len(len, left, at);
            left -= next;
            at += next as u64;
            segments += 1;
        }
        segments
    }

    /// A rail has been given a segment.
    pub(super) fn give(&mut self, rail: RailId, len: usize, now: u64) {
        self.loads[rail.index()].give(len as u64, now);
    }

    /// A rail is done with a segment.
    pub(super) fn done(&mut self, rail: RailId, len: usize, now: u64) {
        self.loads[rail.index()].done(len as u64, now, self.segment.min(1 << 20) as f64);
    }

    /// A rail will not do a segment that it was given.
    pub(super) fn take_back(&mut self, rail: RailId, len: usize) {
        self.loads[rail.index()].ahead -= len as u64;
    }

    /// Bytes per second that a rail has lately shown; 0 before the first.
    pub(super) fn shown(&self, rail: RailId) -> u64 {
        (self.loads[rail.index()].rate * 1e9) as u64
    }

    /// The mean of the rates shown, or 1 while there are none.
    fn mean(&self) -> f64 {
        let shown = || self.loads.iter().map(|load| load.rate).filter(|rate| *rate > 0.0);
        let count = shown().count();
        if count == 0 { 1.0 } else { shown().sum::<f64>() / count as f64 }
    }

    /// The rail that a segment of `len` bytes is to go by now; none if it had better wait. `ahead` is what
    /// each rail has ahead for the same peer, and `left` the bytes that wait for rails, these included.
    pub(super) fn pick(
        &mut self,
        now: u64,
        ahead: &[u64],
        len: usize,
        left: u64,
    ) -> Option<RailId> {
        const LEAST: f64 = 1e-9;
        let mean = self.mean();
        let len = len as u64;
        let rate = |load: &Load| load.rate(now, mean).max(LEAST);
        let best_rate = self.loads.iter().map(rate).fold(LEAST, f64::max);
        let (mut all_ahead, mut all_rates) = (0, 0.0);
        // When the best rail would be done, and when the best of those that may have more would.
        let mut first = f64::INFINITY;
        let mut open: Option<(usize, f64)> = None;
        for step in 0..self.loads.len() {
            let at = (self.turn + step) % self.loads.len();
            let load = &self.loads[at];
            let rate = rate(load);
            all_ahead += load.ahead;
            all_rates += rate;
            let ends = (load.ahead + len) as f64 / rate;
            first = first.min(ends);
            let usual = (SEGMENTS_AHEAD * self.segment.min(self.max_segment) as u64) as f64;
            let most = (usual * rate / best_rate).max(AHEAD * rate);
            let of_peer = ahead[at];
            let takes = of_peer == 0 || (of_peer + len) as f64 <= most;
            if takes && open.is_none_or(|(_, other)| ends < other) {
                open = Some((at, ends));
            }
        }
        let (at, ends) = open?;
        if ends > first {
            let others_ahead = (all_ahead - self.loads[at].ahead + left) as f64;
            let others_rate = all_rates - rate(&self.loads[at]);
            if ends > others_ahead / others_rate.max(LEAST) {
                return None;
            }
        }
        self.turn = (at + 1) % self.loads.len();
        Some(RailId(at as u8))
    }

    /// The rail that is next when rails take turns as often as their rates say. For what cannot wait for
    /// a rail.
    pub(super) fn next_in_turn(&mut self, now: u64) -> RailId {
        let mean = self.mean();
        let mut sum = 0.0;
        let mut next = 0;
        for step in 0..self.loads.len() {
            let at = (self.turn + step) % self.loads.len();
            let rate = self.loads[at].rate(now, mean);
            sum += rate;
            self.credit[at] += rate;
            if step == 0 || self.credit[at] > self.credit[next] {
                next = at;
            }
        }
        self.credit[next] -= sum;
        RailId(next as u8)
    }
}
