//! The mail of the fake fabric: messages and immediate data under way, and the links that let them
//! through.

use std::collections::BTreeMap;

use crate::prelude::*;

pub(crate) type End = (Pe, RailId);

/// What goes nowhere.
#[derive(Default, Debug)]
pub(crate) struct Links {
    pub(crate) stalled: HashSet<Pe>,
    /// Targets are not told of writes that have landed.
    pub(crate) holds_data: bool,
    /// Pairs of rails between which nothing goes in this direction.
    pub(crate) down: HashSet<(End, End)>,
    pub(crate) down_rails: HashSet<End>,
}

impl Links {
    pub(crate) fn goes(&self, from: End, to: End) -> bool {
        let is_down = |end| !self.down_rails.is_empty() && self.down_rails.contains(end);
        let is_cut = !self.down.is_empty() && self.down.contains(&(from, to));
        !is_cut && !is_down(&from) && !is_down(&to)
    }
}

/// What a PE's rail finds beside completions.
#[derive(Clone, Debug)]
pub(crate) enum Mail {
    Message(Vec<u8>),
    ImmediateData(u64),
    /// What could not be received.
    Broken(i32),
}

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
            Mail::ImmediateData(_) => !links.holds_data,
            Mail::Message(_) | Mail::Broken(_) => links.goes(from, to),
        };
        goes && !links.stalled.contains(&self.to)
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

    /// Finds out once more which find a way: links have changed.
    pub(crate) fn sort(&mut self, links: &Links) {
        let mut all = std::mem::take(&mut self.stuck);
        let going = std::mem::take(&mut self.going);
        all.extend(going.into_iter().map(|((_, number), letter)| (number, letter)));
        all.into_iter().for_each(|(number, letter)| self.put(number, letter, links));
    }

    pub(crate) fn pop_next(&mut self) -> Option<Letter> {
        self.going.pop_first().map(|(_, letter)| letter)
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.going.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn len(&self) -> usize {
        self.going.len() + self.stuck.len()
    }
}

impl World {
    pub(crate) fn change_links(&mut self, change: impl FnOnce(&mut Links)) {
        change(&mut self.links);
        self.letters.sort(&self.links);
    }

    /// A message leaves. Gives when it has left.
    pub(crate) fn send(
        &mut self,
        (lane, from, rail): (usize, Pe, RailId),
        to: Target,
        wr_id: WrId,
        bytes: &[u8],
    ) -> u64 {
        let Target { pe: to, rail: remote_rail } = to;
        let left = self.now + self.delay(rail);
        let (percent, longer) = self.script.stragglers;
        let straggles = percent != 0 && self.draw() % 100 < u64::from(percent);
        let held_up = self.held_up.get(&from).copied().unwrap_or(0);
        let due = left + held_up + if straggles { longer } else { 0 };
        let (mail, sent) = (Mail::Message(bytes.to_vec()), Some((lane, wr_id)));
        self.mail(Letter { from, to, rail, remote_rail, mail, due, sent });
        left
    }

    pub(crate) fn deliver(&mut self, to: Pe, rail: RailId, mail: Mail) {
        self.inboxes.entry((to, rail)).or_default().push_back(mail);
    }

    fn duplicates(&mut self) -> bool {
        if self.duplicate_next > 0 {
            self.duplicate_next -= 1;
            return true;
        }
        let percent = u64::from(self.script.duplicate_percent);
        percent > 0 && self.draw() % 100 < percent
    }

    pub(crate) fn mail(&mut self, letter: Letter) {
        self.letters.post(letter, &self.links);
    }

    pub(crate) fn move_letter(&mut self) {
        let Some(letter) = self.letters.pop_next() else { return };
        if let (Some(heard), Mail::Message(bytes)) = (&mut self.overheard, &letter.mail) {
            heard.push((letter.to, letter.remote_rail, bytes.clone()));
        }
        self.deliver(letter.to, letter.remote_rail, letter.mail.clone());
        if let (Some((lane, wr_id)), true) = (letter.sent, self.fail_delivered > 0) {
            self.fail_delivered -= 1;
            self.failing.push((lane, letter.rail, wr_id));
        }
        if matches!(letter.mail, Mail::Message(_)) && self.duplicates() {
            let due = self.now + self.delay(letter.rail);
            self.mail(Letter { due, sent: None, ..letter });
        }
    }
}
