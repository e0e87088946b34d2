//! What the peers do for PE 0.

use super::case::Side;
use crate::control::{self, Words};

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Progress what moves this side's data from now on, and only that.
    Serve(Side),
    /// Progress nothing.
    Rest,
    /// Compare what was written with a pattern.
    Verify { len: u64, seed: u64 },
    /// Check the stamps in every slot, and how many signals have been counted so far.
    Check { bytes: u64, slots: u64, seed: u64, signals: u64 },
    /// Answer so many messages of a side, the first of which has that number.
    Answer { side: Side, bytes: u64, first: u64, count: u64 },
    /// Progress the plugin until so many signals have been counted, and then nothing.
    Take { signals: u64 },
    /// Tell callgrind that a section begins.
    Mark { section: u64 },
    /// The end.
    Stop,
}

const SIDES: [Side; 4] = [Side::Raw, Side::Plugin, Side::Reference, Side::FetchAdd];

impl control::Command for Command {
    fn encode(self) -> Words {
        match self {
            Command::Serve(side) => [1, side as u64, 0, 0, 0],
            Command::Rest => [2, 0, 0, 0, 0],
            Command::Verify { len, seed } => [3, len, seed, 0, 0],
            Command::Check { bytes, slots, seed, signals } => [4, bytes, slots, seed, signals],
            Command::Answer { side, bytes, first, count } => [5, side as u64, bytes, first, count],
            Command::Take { signals } => [6, signals, 0, 0, 0],
            Command::Mark { section } => [7, section, 0, 0, 0],
            Command::Stop => [8, 0, 0, 0, 0],
        }
    }

    fn decode(words: Words) -> Option<Self> {
        let [code, a, b, c, d] = words;
        let side = || SIDES.into_iter().find(|side| *side as u64 == a);
        Some(match code {
            1 => Command::Serve(side()?),
            2 => Command::Rest,
            3 => Command::Verify { len: a, seed: b },
            4 => Command::Check { bytes: a, slots: b, seed: c, signals: d },
            5 => Command::Answer { side: side()?, bytes: b, first: c, count: d },
            6 => Command::Take { signals: a },
            7 => Command::Mark { section: a },
            8 => Command::Stop,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Command as _;

    #[test]
    fn commands_survive_the_page() {
        let (bytes, first, count) = (1, 2, 3);
        let answers = SIDES.map(|side| Command::Answer { side, bytes, first, count });
        let others = [
            Command::Rest,
            Command::Verify { len: 5, seed: 6 },
            Command::Check { bytes: 7, slots: 8, seed: 9, signals: 10 },
            Command::Take { signals: 11 },
            Command::Mark { section: 12 },
            Command::Stop,
        ];
        for command in SIDES.map(Command::Serve).into_iter().chain(answers).chain(others) {
            assert_eq!(Command::decode(command.encode()), Some(command));
        }
        assert_eq!(Command::decode([0; 5]), None);
        assert_eq!(Command::decode([1, 4, 0, 0, 0]), None, "there is no fifth side");
    }
}
