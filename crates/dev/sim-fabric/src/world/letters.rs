//! Letters: messages and immediate data under way, those that find a way and those that are stuck.

use std::collections::BTreeMap;

use super::links::Links;
use engine::ids::{Pe, RailId, WrId};

/// What a PE's rail finds beside completions.
#[derive(Clone, Debug)]
pub(crate) enum Mail {
    Message(Vec<u8>),
    ImmediateData(u64),
    /// What could not be received.
    Broken(i32),
}

/// Mail on its way.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) from: Pe,
    pub(crate) to: Pe,
    pub(crate) rail: RailId,
    pub(crate) remote_rail: RailId,
    pub(crate) mail: Mail,
    pub(crate) due: u64,
    /// The lane and the work-request id of a message that is not a duplicate.
    pub(crate) sent: Option<(usize, WrId)>,
}

impl Letter {
    fn finds_way(&self, links: &Links) -> bool {
        let (from, to) = ((self.from, self.rail), (self.to, self.remote_rail));
        let goes = match self.mail {
            // What is told of a write has come with it.
            Mail::ImmediateData(_) => !links.holds_data(),
            Mail::Message(_) | Mail::Broken(_) => links.goes(from, to),
        };
        goes && !links.is_stalled(self.to)
    }
}

/// All that is on its way. Thousands may wait for a link that is down: they are looked at when a
/// link changes.
#[derive(Default, Debug)]
pub(crate) struct Letters {
    /// Those that find a way, by when they are due and by their number.
    going: BTreeMap<(u64, u64), Letter>,
    /// The others, by number.
    stuck: BTreeMap<u64, Letter>,
    posted: u64,
    sorted: u64,
}

impl Letters {
    pub(crate) fn post(&mut self, letter: Letter, links: &Links) {
        self.posted += 1;
        self.put(self.posted, letter, links);
    }

    fn put(&mut self, number: u64, letter: Letter, links: &Links) {
        if letter.finds_way(links) {
            self.going.insert((letter.due, number), letter);
        } else {
            self.stuck.insert(number, letter);
        }
    }

    /// Finds out once more which find a way, if links have changed.
    pub(crate) fn sort(&mut self, links: &Links) {
        if std::mem::replace(&mut self.sorted, links.version()) != links.version() {
            let mut all = std::mem::take(&mut self.stuck);
            let going = std::mem::take(&mut self.going);
            all.extend(going.into_iter().map(|((_, number), letter)| (number, letter)));
            all.into_iter().for_each(|(number, letter)| self.put(number, letter, links));
        }
    }

    /// Takes the one that is due first.
    pub(crate) fn pop_next(&mut self) -> Option<Letter> {
        self.going.pop_first().map(|(_, letter)| letter)
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.going.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn len(&self) -> usize {
        self.going.len() + self.stuck.len()
    }
}
