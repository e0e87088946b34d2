//! Agreement of a job's PEs on common capabilities.

use engine::channel::counts::TAGS;
use engine::wire::handshake::Hello;

/// Common capabilities of all PEs. All PEs use a signal protocol, as sender and as target, or none
/// does. All evaluate the same records, with the same result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Agreement {
    /// Bytes of immediate data that all rails of all PEs carry.
    pub(super) immediate_data: u8,
    /// Bytes of the longest message that every rail of every PE takes.
    pub(super) longest_message: usize,
    /// Maximum number of rails of a PE.
    pub(super) rails: usize,
}

impl Agreement {
    pub(super) fn of(hellos: &[Hello]) -> Self {
        Self {
            immediate_data: hellos.iter().map(|hello| hello.immediate_data).min().unwrap_or(0),
            longest_message: hellos.iter().map(|h| h.longest_message).min().unwrap_or(0).into(),
            rails: hellos.iter().map(|hello| hello.rails).max().unwrap_or(0).into(),
        }
    }

    pub(super) fn counted(self) -> u16 {
        if self.immediate_data > 0 { TAGS } else { 0 }
    }

    /// Returns true if signals are chained though rails with `mine` immediate bytes could count.
    pub(super) fn chains(self, mine: u8) -> bool {
        mine > self.immediate_data && self.immediate_data == 0
    }

    pub(super) fn reason(self) -> &'static str {
        match self.immediate_data {
            0 => {
                "some PE's rails carry no immediate data, so signals are eager or chained, not counted"
            }
            _ => "targets can count the segments of a put",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
    use engine::wire::cookie::SHARE_BYTES;
    use engine::wire::handshake::SetupStep;

    fn hello() -> Hello {
        Hello {
            step: SetupStep::Open,
            provider: String::from("tcp"),
            rails: 2,
            immediate_data: 8,
            longest_message: MAX_LONG_MESSAGE as u16,
            longest_address: 16,
            unheard: 0,
            failure: None,
            share: [7; SHARE_BYTES],
        }
    }

    fn with_one(other: &Hello) -> impl Iterator<Item = Agreement> {
        (0..3).map(|odd| {
            let mut hellos = [(); 3].map(|()| hello());
            hellos[odd] = other.clone();
            Agreement::of(&hellos)
        })
    }

    #[test]
    fn capabilities_are_common_to_all() {
        let all = Agreement::of(&[hello(), hello()]);
        let (longest_message, rails) = (MAX_LONG_MESSAGE, 2);
        assert_eq!(all, Agreement { immediate_data: 8, longest_message, rails });
        for lacking in [0, 4] {
            for agreed in with_one(&Hello { immediate_data: lacking, ..hello() }) {
                assert_eq!(agreed, Agreement { immediate_data: lacking, ..all });
            }
        }
        for agreed in with_one(&Hello { longest_message: MAX_MESSAGE as u16, ..hello() }) {
            assert_eq!(agreed, Agreement { longest_message: MAX_MESSAGE, ..all });
        }
        for (rails, most) in [(1, 2), (5, 5)] {
            for agreed in with_one(&Hello { rails, ..hello() }) {
                assert_eq!(agreed, Agreement { rails: most, ..all });
            }
        }
    }

    #[test]
    fn chaining_follows_missing_immediate_data() {
        for (agreed, mine, expected) in [(0, 8, true), (0, 0, false), (4, 8, false), (8, 8, false)]
        {
            let counts = agreed > 0;
            let agreed = Agreement { immediate_data: agreed, ..Agreement::of(&[hello()]) };
            assert_eq!(agreed.chains(mine), expected, "{agreed:?} {mine}");
            assert_eq!(agreed.counted(), if counts { TAGS } else { 0 });
            assert_eq!(agreed.reason().contains("no immediate data"), !counts);
        }
    }
}
