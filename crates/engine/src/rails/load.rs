//! Load of a rail: queued bytes and recent rate, by which long segments choose their rail.
//!
//! A segment goes to the rail that is expected to finish it first. If that rail has as much ahead
//! as it may for this peer, the segment waits for it rather than for a slower one. So shares follow
//! the current rates of the rails, and a rail at less than about a quarter of the best rate is not
//! used until the others fail.

/// Idle time in nanoseconds after which a rate is discarded and the rail is tried again.
const RATE_LIFETIME: u64 = 2_000_000_000;

/// Segments ahead on a rail for one peer, per worker: one is being acknowledged while the others
/// keep the rail busy.
const MIN_AHEAD: u64 = 3;

/// A rail may always have the bytes of so many nanoseconds ahead, up to [`MAX_AHEAD`] segments.
const TIME_AHEAD: f64 = 250_000.0;
const MAX_AHEAD: u64 = 16;

/// Rates are measured over this many of the longest segments; older ones count half.
const RATE_WINDOW: u64 = 4;

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Load {
    /// Bytes assigned to the rail and not completed.
    ahead: u64,
    /// Longest segment assigned since the rail was idle.
    longest: u64,
    /// Bytes completed recently, and the nanoseconds that the rail was busy with them.
    done: u64,
    busy: u64,
    /// Time of the last completion, or when the rail became busy.
    since: u64,
}

impl Load {
    pub(crate) fn add(&mut self, len: u64, now: u64) {
        if self.is_stale(now) {
            (self.done, self.busy) = (0, 0);
        }
        if self.ahead == 0 {
            // Idle time must not count as time that the rail was busy.
            (self.since, self.longest) = (now, 0);
        }
        self.ahead += len;
        self.longest = self.longest.max(len);
    }

    pub(crate) fn complete(&mut self, len: u64, now: u64) {
        self.ahead -= len;
        self.done += len;
        self.busy += now.saturating_sub(self.since);
        self.since = now;
        if self.done > RATE_WINDOW * self.longest {
            // Both halved: the rate stays, with half the weight.
            (self.done, self.busy) = (self.done / 2, self.busy / 2);
        }
    }

    fn is_stale(&self, now: u64) -> bool {
        self.ahead == 0 && now.saturating_sub(self.since) >= RATE_LIFETIME
    }

    /// Returns the recent rate in bytes per nanosecond, or None if the rail has to be tried.
    fn rate(&self, now: u64) -> Option<f64> {
        let shown = self.done > 0 && !self.is_stale(now);
        shown.then(|| self.done as f64 / self.busy.max(1) as f64)
    }

    pub(crate) fn bytes_per_second(&self) -> u64 {
        if self.done == 0 { 0 } else { (self.done as f64 / self.busy.max(1) as f64 * 1e9) as u64 }
    }
}

/// Chooses the rail for a segment of `len` bytes. `rails` has each usable rail's number, load,
/// workers, and bytes ahead for the segment's peer. None if the segment should wait.
pub(crate) fn choose(
    rails: impl Iterator<Item = (u8, Load, u8, u64)> + Clone,
    len: usize,
    now: u64,
) -> Option<u8> {
    // A rail without a rate is tried as if it were the best.
    let rates = rails.clone().filter_map(|(_, load, ..)| load.rate(now));
    let best = rates.reduce(f64::max).unwrap_or(1.0);
    let len = len as f64;
    let finish = |load: &Load, rate: f64| {
        let idle = load.ahead == 0;
        let still = if idle { 0.0 } else { now.saturating_sub(load.since) as f64 };
        // A rail that completes nothing is estimated ever slower.
        let ahead = (load.ahead as f64 - rate * still).max(0.0);
        let late = (still - load.longest as f64 / rate).max(0.0);
        late + (ahead + len) / rate
    };
    let mut first: Option<(u8, f64, bool)> = None;
    for (rail, load, workers, ahead_for_peer) in rails {
        let rate = load.rate(now).unwrap_or(best);
        let time = finish(&load, rate);
        // The earlier rail wins a tie: callers begin with another one each time.
        if first.is_some_and(|(_, least, _)| least <= time) {
            continue;
        }
        let segments = (TIME_AHEAD * rate / len) as u64;
        let max_ahead = segments.clamp(
            MIN_AHEAD * u64::from(workers.max(1)),
            MAX_AHEAD.max(MIN_AHEAD * u64::from(workers)),
        );
        first = Some((rail, time, ahead_for_peer < max_ahead * len as u64));
    }
    first.filter(|(.., may)| *may).map(|(rail, ..)| rail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 10_000;

    #[test]
    fn first_rail_to_finish_is_chosen() {
        // A microsecond was enough for 1000 bytes, or as many times as many.
        let load = |ahead, times: u64, still| {
            let (done, busy, since) = (1000 * times, 1000, NOW - still);
            Load { ahead, longest: 1000, done, busy, since }
        };
        for (loads, expected, what) in [
            ([load(0, 1, 0), load(0, 1, 0)], 0, "the first of equals"),
            ([load(600, 1, 0), load(0, 1, 0)], 1, "the idle one"),
            ([load(1000, 1, 500), load(600, 1, 0)], 0, "the one that has moved 500 bytes since"),
            ([load(1000, 2, 300), load(500, 2, 0)], 0, "the one that has moved 600"),
            ([load(1000, 2, 600), load(100, 2, 0)], 1, "the one that is not late"),
        ] {
            let rails = (0..).zip(loads).map(|(rail, load)| (rail, load, 0, 0));
            assert_eq!(choose(rails, 1000, NOW), Some(expected), "{what}");
        }
    }

    #[test]
    fn slow_rail_has_few_segments_ahead() {
        let load = Load { ahead: 0, longest: 1000, done: 1000, busy: 100_000, since: NOW };
        for (ahead, may) in [(0, true), (2999, true), (3000, false)] {
            let chosen = choose(std::iter::once((7, load, 0, ahead)), 1000, NOW);
            assert_eq!(chosen, may.then_some(7), "{ahead}");
        }
    }

    #[test]
    fn rate_follows_recent_segments() {
        let (mut load, mut now) = (Load::default(), 0);
        // The longest, which stays ahead.
        load.add(1000, now);
        for time in [vec![90; 100], vec![900; 10]].concat() {
            load.add(900, now);
            now += time;
            load.complete(900, now);
        }
        let rate = load.bytes_per_second() / 1_000_000;
        assert!(
            (1000..1500).contains(&rate),
            "{rate} MB/s after a rail of 10000 has slowed to 1000"
        );
    }
}
