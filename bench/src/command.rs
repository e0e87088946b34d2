//! What PE 1 does for a comparison of puts and gets with raw libfabric.

use crate::case::Direction;
use crate::control::{self, Words};

/// Which implementation moves the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Raw libfabric.
    Raw,
    /// The plugin.
    Plugin,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Raw => "raw",
            Side::Plugin => "plugin",
        })
    }
}

/// What PE 1 is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Progress this side from now on, and only this.
    Serve(Side),
    /// Before operations in a direction: for puts, clear what they will write; for gets, fill what
    /// they will read with a pattern.
    Prepare { direction: Direction, len: u64, seed: u64 },
    /// After puts: compare what they have written with a pattern.
    Verify { len: u64, seed: u64 },
    /// Before gets: put stamps into every slot of what they will read.
    Stamp { bytes: u64, window: u64, seed: u64 },
    /// After puts: check the stamps in every slot.
    CheckStamps { bytes: u64, window: u64, seed: u64 },
    /// While puts are under way: go on until all stamps have arrived, and then for some turns
    /// more, so that whatever tells the other side of it has left.
    Await { bytes: u64, window: u64, seed: u64 },
    /// The end.
    Stop,
}

impl control::Command for Command {
    fn encode(self) -> Words {
        let direction = |direction| u64::from(direction == Direction::Get);
        match self {
            Command::Serve(side) => [1, u64::from(side == Side::Plugin), 0, 0, 0],
            Command::Prepare { direction: d, len, seed } => [2, direction(d), len, seed, 0],
            Command::Verify { len, seed } => [3, len, seed, 0, 0],
            Command::Stamp { bytes, window, seed } => [4, bytes, window, seed, 0],
            Command::CheckStamps { bytes, window, seed } => [5, bytes, window, seed, 0],
            Command::Await { bytes, window, seed } => [6, bytes, window, seed, 0],
            Command::Stop => [7, 0, 0, 0, 0],
        }
    }

    fn decode(words: Words) -> Option<Self> {
        let direction = |word| if word == 0 { Direction::Put } else { Direction::Get };
        let [code, a, b, c, _] = words;
        Some(match code {
            1 => Command::Serve(if a == 0 { Side::Raw } else { Side::Plugin }),
            2 => Command::Prepare { direction: direction(a), len: b, seed: c },
            3 => Command::Verify { len: a, seed: b },
            4 => Command::Stamp { bytes: a, window: b, seed: c },
            5 => Command::CheckStamps { bytes: a, window: b, seed: c },
            6 => Command::Await { bytes: a, window: b, seed: c },
            7 => Command::Stop,
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
        let (bytes, window, seed) = (1, 2, 3);
        for command in [
            Command::Serve(Side::Raw),
            Command::Serve(Side::Plugin),
            Command::Prepare { direction: Direction::Get, len: 5, seed: 6 },
            Command::Prepare { direction: Direction::Put, len: 5, seed: 6 },
            Command::Verify { len: 7, seed: 8 },
            Command::Stamp { bytes, window, seed },
            Command::CheckStamps { bytes, window, seed },
            Command::Await { bytes, window, seed },
            Command::Stop,
        ] {
            assert_eq!(Command::decode(command.encode()), Some(command));
        }
        assert_eq!(Command::decode([0; 5]), None);
    }
}
