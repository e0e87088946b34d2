//! The mail of the fake fabric: messages and immediate data under way, and the links that let them
//! through.

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

impl World {
    pub(crate) fn send(
        &mut self,
        (lane, from, rail): (usize, Pe, RailId),
        to: Target,
        wr_id: WrId,
        bytes: &[u8],
    ) -> u64 {
        let Target { pe: to, rail: remote_rail } = to;
        let left = self.now + self.delay(rail);
        let due = left + self.held_up.get(&from).copied().unwrap_or(0);
        let (mail, sent) = (Mail::Message(bytes.to_vec()), Some((lane, wr_id)));
        self.mail(Letter { from, to, rail, remote_rail, mail, due, sent });
        left
    }

    pub(crate) fn deliver(&mut self, to: Pe, rail: RailId, mail: Mail) {
        self.inboxes.entry((to, rail)).or_default().push_back(mail);
    }

    fn duplicates(&mut self) -> bool {
        let percent = u64::from(self.script.duplicate_percent);
        percent > 0 && self.draw() % 100 < percent
    }

    pub(crate) fn mail(&mut self, letter: Letter) {
        self.posted += 1;
        self.letters.insert((letter.due, self.posted), letter);
    }

    /// The first letter that finds a way, by when it is due and by its number.
    pub(crate) fn next_letter(&self) -> Option<(u64, u64)> {
        let mut letters = self.letters.iter();
        letters.find(|(_, letter)| letter.finds_way(&self.links)).map(|(place, _)| *place)
    }

    pub(crate) fn move_letter(&mut self, place: (u64, u64)) {
        let Some(letter) = self.letters.remove(&place) else { return };
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
