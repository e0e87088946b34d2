//! Rounds of several sides, taken in turns.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::times::case::Side;

/// How often and for how long every side of a case is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    /// Rounds of each side.
    pub(crate) rounds: u32,
    /// Least time of a round.
    pub(crate) least: Duration,
}

impl Schedule {
    /// Runs the rounds of all sides. `round` does so many repeats of a side; a repeat has so many
    /// operations.
    ///
    /// Who comes first changes from one round to the next, so that each round of the sides sees the
    /// same machine.
    ///
    /// # Errors
    /// The first of `round`'s.
    pub(crate) fn run(
        self,
        sides: &[Side],
        ops_per_repeat: u64,
        mut round: impl FnMut(Side, u64) -> Result<Took, String>,
    ) -> Result<Rounds, String> {
        let repeats = sides
            .iter()
            .map(|&side| self.repeats(|repeats| round(side, repeats)))
            .collect::<Result<Vec<u64>, String>>()?;
        let took = Vec::with_capacity(self.rounds as usize);
        let mut times: Vec<Times> = Iterator::zip(sides.iter(), &repeats)
            .map(|(&side, repeats)| Times {
                side,
                ops: repeats * ops_per_repeat,
                took: took.clone(),
            })
            .collect();
        for turn in 0..self.rounds as usize {
            for place in 0..sides.len() {
                let at = (turn + place) % sides.len();
                times[at].took.push(round(sides[at], repeats[at])?);
            }
        }
        Ok(Rounds { sides: times })
    }

    /// How many repeats take long enough.
    fn repeats(self, mut round: impl FnMut(u64) -> Result<Took, String>) -> Result<u64, String> {
        let mut repeats = 1;
        loop {
            let took = round(repeats)?.whole;
            if took >= self.least {
                return Ok(repeats);
            }
            // A quarter more than it takes, and at most ten times: the first rounds are slow.
            let factor = 1.25 * self.least.as_secs_f64() / took.as_secs_f64().max(1e-6);
            repeats = (repeats as f64 * factor.min(10.0)).ceil() as u64;
        }
    }
}

/// What a round took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Took {
    /// All of it.
    pub(crate) whole: Duration,
    /// What is measured of it.
    pub(crate) counted: Duration,
}

impl From<Duration> for Took {
    fn from(whole: Duration) -> Self {
        Self { whole, counted: whole }
    }
}

/// Times of the rounds of one case in one job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Rounds {
    sides: Vec<Times>,
}

/// Times of one side.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Times {
    side: Side,
    /// Operations in a round.
    ops: u64,
    /// What every round took.
    took: Vec<Took>,
}

impl Rounds {
    fn of(&self, side: Side) -> Option<&Times> {
        self.sides.iter().find(|times| times.side == side)
    }

    /// Seconds of an operation in each round of a side. None for a side that was not measured.
    pub(crate) fn seconds(&self, side: Side) -> Vec<f64> {
        let Some(Times { ops, took, .. }) = self.of(side) else { return Vec::new() };
        took.iter().map(|took| took.counted.as_secs_f64() / *ops as f64).collect()
    }

    /// The same rounds with all of their time counted.
    pub(crate) fn whole(&self) -> Self {
        let mut all = self.clone();
        for took in all.sides.iter_mut().flat_map(|times| &mut times.took) {
            took.counted = took.whole;
        }
        all
    }

    /// Time of an operation of a side, of several that which took longest, over that of another,
    /// round by round.
    pub(crate) fn ratios(&self, of: &[Side], over: Side) -> Vec<f64> {
        let of: Vec<Vec<f64>> = of.iter().map(|side| self.seconds(*side)).collect();
        // None where one of the sides was not measured.
        let longest = |round: usize| -> Option<f64> {
            of.iter().try_fold(0.0, |longest: f64, side| Some(longest.max(*side.get(round)?)))
        };
        let over = self.seconds(over).into_iter().enumerate();
        over.filter_map(|(round, over)| Some(longest(round)? / over)).collect()
    }

    /// Operations in a round of a side.
    pub(crate) fn ops(&self, side: Side) -> u64 {
        self.of(side).map_or(0, |times| times.ops)
    }

    /// As text, for the launcher.
    pub(crate) fn encode(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// From text.
    pub(crate) fn decode(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule { rounds: 4, least: Duration::from_micros(100) };

    /// A round of a side whose repeats take so many microseconds each.
    fn took(micros: u64, repeats: u64) -> Took {
        Duration::from_micros(micros * repeats).into()
    }

    #[test]
    fn sides_take_turns_and_each_has_rounds_that_are_long_enough() {
        let mut order = Vec::new();
        let sides = [Side::Raw, Side::Plugin];
        let rounds = SCHEDULE.run(&sides, 10, |side, repeats| {
            order.push(side);
            Ok(took(if side == Side::Raw { 1 } else { 7 }, repeats))
        });
        let rounds = rounds.unwrap();
        let [raw, plugin] = sides;
        assert!(rounds.ops(raw) >= 1000 && rounds.ops(plugin) >= 150, "{rounds:?}");
        let turns = [raw, plugin, plugin, raw, raw, plugin, plugin, raw];
        assert_eq!(order[order.len() - 8..], turns);
        let ratios = rounds.ratios(&[plugin], raw);
        assert!(ratios.len() == 4 && ratios.iter().all(|ratio| (ratio - 7.0).abs() < 1e-9));
        assert!(rounds.ratios(&[plugin], Side::Host).is_empty());
        assert!(rounds.ratios(&[plugin, Side::Host], raw).is_empty());
        assert_eq!(Rounds::decode(&rounds.encode().unwrap()).unwrap(), rounds);
    }

    #[test]
    fn what_is_counted_may_be_less_than_what_the_round_takes() {
        let rounds = SCHEDULE.run(&[Side::Raw], 1, |_, repeats| {
            Ok(Took { counted: Duration::from_micros(repeats), ..took(50, repeats) })
        });
        let rounds = rounds.unwrap();
        assert!(rounds.ops(Side::Raw) < 10, "{rounds:?}");
        assert!((rounds.seconds(Side::Raw)[0] - 1e-6).abs() < 1e-15);
        assert!((rounds.whole().seconds(Side::Raw)[0] - 50e-6).abs() < 1e-15);
    }

    #[test]
    fn of_several_sides_the_slowest_counts() {
        const SECOND: u64 = 1_000_000_000;
        let nanos = |nanos: &[u64]| nanos.iter().map(|n| Duration::from_nanos(*n).into()).collect();
        let side = |side, times: &[u64]| Times { side, ops: 1, took: nanos(times) };
        let sides = vec![
            side(Side::CopyOut, &[SECOND, 2 * SECOND]),
            side(Side::CopyIn, &[4 * SECOND, SECOND]),
            side(Side::Staged, &[2 * SECOND, SECOND]),
        ];
        let ratios = Rounds { sides }.ratios(&[Side::CopyOut, Side::CopyIn], Side::Staged);
        assert_eq!(ratios, [2.0, 2.0]);
    }

    #[test]
    fn a_failure_ends_it() {
        let failed = SCHEDULE.run(&[Side::Raw], 1, |_, _| Err(String::from("wrong bytes")));
        assert_eq!(failed, Err(String::from("wrong bytes")));
    }
}
