//! A limit of the rate of wrong proofs, so that nobody finds a job's number by trying.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong proofs that cost nothing: PEs of other jobs that were given the same port.
pub(super) const FREE_GUESSES: u32 = 64;

/// Time for which a network is not served after each further wrong proof from it.
pub(super) const PENALTY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Guesses {
    wrong: u32,
    /// End of the time in which a network is not served.
    paused: HashMap<IpAddr, Instant>,
}

/// An address of IPv4, or the first half of one of IPv6: one host has all of the second half.
fn network(of: IpAddr) -> IpAddr {
    match of.to_canonical() {
        IpAddr::V6(address) => IpAddr::from((u128::from(address) >> 64 << 64).to_be_bytes()),
        address => address,
    }
}

impl Guesses {
    pub(super) fn wrong(&mut self, from: IpAddr, now: Instant) {
        self.wrong = self.wrong.saturating_add(1);
        if self.wrong > FREE_GUESSES {
            self.paused.retain(|_, until| *until > now);
            *self.paused.entry(network(from)).or_insert(now) += PENALTY;
        }
    }

    pub(super) fn pause(&self, from: IpAddr, now: Instant) -> bool {
        self.paused.get(&network(from)).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_guesses_pause_their_network() {
        let start = Instant::now();
        let [from, neighbour, mapped, other, v4] =
            ["fd00::1", "fd00::2", "::ffff:10.0.0.7", "fd00:0:0:1::1", "10.0.0.7"]
                .map(|address| address.parse::<IpAddr>().unwrap());
        let mut guesses = Guesses::default();
        for _ in 0..FREE_GUESSES {
            guesses.wrong(from, start);
            assert!(!guesses.pause(from, start));
        }
        // They come side by side, and are paid for one by one.
        for _ in 0..3 {
            guesses.wrong(from, start);
        }
        let last = start + 3 * PENALTY - Duration::from_nanos(1);
        assert!(guesses.pause(from, start) && guesses.pause(neighbour, last));
        assert!(!guesses.pause(from, start + 3 * PENALTY));
        assert!(![mapped, other].iter().any(|other| guesses.pause(*other, start)));
        guesses.wrong(mapped, start);
        assert!(guesses.pause(v4, start) && !guesses.pause(v4, start + PENALTY));
        let later = start + 100 * PENALTY;
        guesses.wrong(from, later);
        assert!(guesses.pause(from, later) && !guesses.pause(from, later + PENALTY));
        assert_eq!(guesses.paused.len(), 1, "what is over is forgotten");
        guesses.wrong = u32::MAX;
        guesses.wrong(from, later);
        assert!(guesses.pause(from, later + PENALTY), "it does not begin anew");
    }
}
