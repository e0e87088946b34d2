//! The mail of the fake fabric: messages and immediate data that are sent and delivered.

use super::flights::Target;
use super::letters::{Letter, Mail};
use super::state::World;
use engine::ids::{Pe, RailId, WrId};

impl World {
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

    pub(crate) fn take_mail(&mut self, pe: Pe, rail: RailId) -> Option<Mail> {
        self.inboxes.get_mut(&(pe, rail))?.pop_front()
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

    /// The next one that is due arrives, if there is one.
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
