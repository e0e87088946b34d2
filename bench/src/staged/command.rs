//! What PE 1 does for PE 0.

use super::case::Side;
use crate::case::Direction;
use crate::control::{self, Words};

/// A command. `side` names the memory that is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Before operations in a direction: for puts, clear what they will write; for gets, fill what
    /// they will read with a pattern.
    Prepare { side: Side, direction: Direction, len: u64, seed: u64 },
    /// After puts: compare what they have written with a pattern.
    Verify { side: Side, len: u64, seed: u64 },
    /// Before gets: put stamps into every slot of what they will read.
    Stamp { side: Side, bytes: u64, window: u64, seed: u64 },
    /// After puts: check the stamps in every slot.
    CheckStamps { side: Side, bytes: u64, window: u64, seed: u64 },
    /// After puts with signal: check the word that they have set.
    CheckSignal { side: Side, value: u64 },
    /// The end.
    Stop,
}

impl control::Command for Command {
    fn encode(self) -> Words {
        // The memory and the direction are in the first word, above the command's code.
        let code = |code: u64, side: Side| code | u64::from(side == Side::Staged) << 8;
        match self {
            Command::Prepare { side, direction, len, seed } => {
                [code(1, side) | u64::from(direction == Direction::Get) << 9, len, seed, 0, 0]
            }
            Command::Verify { side, len, seed } => [code(2, side), len, seed, 0, 0],
            Command::Stamp { side, bytes, window, seed } => [code(3, side), bytes, window, seed, 0],
            Command::CheckStamps { side, bytes, window, seed } => {
                [code(4, side), bytes, window, seed, 0]
            }
            Command::CheckSignal { side, value } => [code(5, side), value, 0, 0, 0],
            Command::Stop => [6, 0, 0, 0, 0],
        }
    }

    fn decode(words: Words) -> Option<Self> {
        let [first, a, b, c, _] = words;
        let side = if first & 1 << 8 == 0 { Side::Host } else { Side::Staged };
        let direction = if first & 1 << 9 == 0 { Direction::Put } else { Direction::Get };
        Some(match first & 0xff {
            1 => Command::Prepare { side, direction, len: a, seed: b },
            2 => Command::Verify { side, len: a, seed: b },
            3 => Command::Stamp { side, bytes: a, window: b, seed: c },
            4 => Command::CheckStamps { side, bytes: a, window: b, seed: c },
            5 => Command::CheckSignal { side, value: a },
            6 => Command::Stop,
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
        let (bytes, window, len, seed) = (1, 2, 3, 4);
        for side in [Side::Host, Side::Staged] {
            for command in [
                Command::Prepare { side, direction: Direction::Get, len, seed },
                Command::Prepare { side, direction: Direction::Put, len, seed },
                Command::Verify { side, len, seed },
                Command::Stamp { side, bytes, window, seed },
                Command::CheckStamps { side, bytes, window, seed },
                Command::CheckSignal { side, value: 7 },
                Command::Stop,
            ] {
                assert_eq!(Command::decode(command.encode()), Some(command));
            }
        }
        assert_eq!(Command::decode([0; 5]), None);
    }
}
