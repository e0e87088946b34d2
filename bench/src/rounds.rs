//! Rounds of several sides, taken in turns.

use std::time::Duration;

/// How often and for how long every side of a case is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Schedule {
    /// Rounds of each side.
    pub(crate) rounds: u32,
    /// Least time of a round.
    pub(crate) least: Duration,
}

impl Schedule {
    /// Above what a scheduler's time slice (a few ms) can distort.
    pub(crate) const ROUND: Duration = Duration::from_millis(12);

    /// Runs the rounds of all sides. `round` does so many repeats of a side; a repeat has so many
    /// operations.
    ///
    /// Who comes first changes from one round to the next, so that each round of the sides sees the
    /// same machine.
    ///
    /// # Errors
    /// The first of `round`'s.
    pub(crate) fn run<S: Copy>(
        self,
        sides: &[S],
        ops_per_repeat: u64,
        mut round: impl FnMut(S, u64) -> Result<Took, String>,
    ) -> Result<Rounds, String> {
        let repeats = sides
            .iter()
            .map(|&side| self.repeats(|repeats| round(side, repeats)))
            .collect::<Result<Vec<u64>, String>>()?;
        let mut times = vec![Vec::with_capacity(self.rounds as usize); sides.len()];
        for turn in 0..self.rounds as usize {
            for place in 0..sides.len() {
                let at = (turn + place) % sides.len();
                times[at].push(round(sides[at], repeats[at])?);
            }
        }
        let ops = repeats.iter().map(|repeats| repeats * ops_per_repeat);
        Ok(Rounds { sides: Iterator::zip(ops, times).collect() })
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rounds {
    /// Of each side: operations in a round, and what every round took.
    sides: Vec<(u64, Vec<Took>)>,
}

impl Rounds {
    /// Seconds of an operation in each round of a side. None for a side that was not measured.
    pub(crate) fn seconds(&self, side: usize) -> Vec<f64> {
        let Some((ops, times)) = self.sides.get(side) else { return Vec::new() };
        times.iter().map(|took| took.counted.as_secs_f64() / *ops as f64).collect()
    }

    /// The same rounds with all of their time counted.
    pub(crate) fn whole(&self) -> Self {
        let whole = |took: &Took| Took::from(took.whole);
        let side = |(ops, times): &(u64, Vec<Took>)| (*ops, times.iter().map(whole).collect());
        Self { sides: self.sides.iter().map(side).collect() }
    }

    /// Time of an operation of one side over that of another, round by round.
    pub(crate) fn ratios(&self, of: usize, over: usize) -> Vec<f64> {
        Iterator::zip(self.seconds(of).into_iter(), self.seconds(over))
            .map(|(a, b)| a / b)
            .collect()
    }

    /// Operations in a round of a side.
    pub(crate) fn ops(&self, side: usize) -> u64 {
        self.sides.get(side).map_or(0, |(ops, _)| *ops)
    }

    /// As text, for the launcher.
    pub(crate) fn encode(&self) -> String {
        let took = |took: &Took| format!("{}/{}", took.counted.as_nanos(), took.whole.as_nanos());
        let side = |(ops, times): &(u64, Vec<Took>)| {
            format!("{ops}:{}", times.iter().map(took).collect::<Vec<_>>().join(","))
        };
        self.sides.iter().map(side).collect::<Vec<_>>().join(" ")
    }

    /// From text. None when it is not such a text.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let nanos = |text: &str| text.parse().ok().map(Duration::from_nanos);
        let took = |text: &str| {
            let (counted, whole) = text.split_once('/')?;
            Some(Took { counted: nanos(counted)?, whole: nanos(whole)? })
        };
        let side = |word: &str| {
            let (ops, times) = word.split_once(':')?;
            Some((ops.parse().ok()?, times.split(',').map(took).collect::<Option<_>>()?))
        };
        Some(Self { sides: text.split(' ').map(side).collect::<Option<_>>()? })
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
        let rounds = SCHEDULE.run(&[1, 7], 10, |micros, repeats| {
            order.push(micros);
            Ok(took(micros, repeats))
        });
        let rounds = rounds.unwrap();
        assert!(rounds.ops(0) >= 1000 && rounds.ops(1) >= 150, "{rounds:?}");
        assert_eq!(order[order.len() - 8..], [1, 7, 7, 1, 1, 7, 7, 1]);
        for ratio in rounds.ratios(1, 0) {
            assert!((ratio - 7.0).abs() < 1e-9);
        }
        assert_eq!(rounds.ratios(1, 0).len(), 4);
        assert!(rounds.ratios(1, 2).is_empty());
    }

    #[test]
    fn what_is_counted_may_be_less_than_what_the_round_takes() {
        let rounds = SCHEDULE.run(&[()], 1, |(), repeats| {
            Ok(Took { counted: Duration::from_micros(repeats), ..took(50, repeats) })
        });
        let rounds = rounds.unwrap();
        assert!(rounds.ops(0) < 10, "{rounds:?}");
        assert!((rounds.seconds(0)[0] - 1e-6).abs() < 1e-15);
        assert!((rounds.whole().seconds(0)[0] - 50e-6).abs() < 1e-15);
    }

    #[test]
    fn a_failure_ends_it() {
        let failed = SCHEDULE.run(&[()], 1, |(), _| Err(String::from("wrong bytes")));
        assert_eq!(failed, Err(String::from("wrong bytes")));
    }

    #[test]
    fn rounds_survive_the_way_to_the_launcher() {
        let took = |counted, whole| Took {
            counted: Duration::from_nanos(counted),
            whole: Duration::from_nanos(whole),
        };
        let sides = vec![
            (64, vec![took(1000, 1001), took(300, 301)]),
            (32, vec![took(2000, 2001), took(200, 201)]),
        ];
        let rounds = Rounds { sides };
        assert_eq!(Rounds::decode(&rounds.encode()), Some(rounds.clone()));
        assert_eq!(rounds.ratios(0, 1), [0.25, 0.75]);
        for text in ["", "64", "64:", "64:1", "64:1/1,x"] {
            assert_eq!(Rounds::decode(text), None, "{text}");
        }
    }
}
