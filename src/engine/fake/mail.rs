//! Messages and remote data under way in the fake fabric.

use super::operations::{Target, Work};
use super::world::World;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::Direction;

/// What a PE's rail finds beside completions.
#[derive(Clone, Debug)]
pub(super) enum Mail {
    Message(Vec<u8>),
    RemoteData(u32),
    /// For the control endpoint.
    Control(Vec<u8>),
}

/// Mail on its way.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) from: Pe,
    pub(super) to: Pe,
    pub(super) rail: RailId,
    pub(super) remote_rail: RailId,
    pub(super) generation: u32,
    pub(super) mail: Mail,
    pub(super) due: u64,
    /// The lane and the token of a message, while its sender may still be told that it has failed.
    pub(super) sent: Option<(usize, Token)>,
}

impl World {
    /// A message leaves. On a rail that keeps their order it comes after the writes before it. Gives when it has left.
    pub(super) fn send(
        &mut self,
        (lane, from, rail): (usize, Pe, RailId),
        to: Target,
        token: Token,
        bytes: &[u8],
        ordered: bool,
    ) -> u64 {
        let Target { pe: to, rail: remote_rail, generation } = to;
        let writes = self.flights.iter().filter(|flight| {
            flight.outcome.is_none()
                && (flight.from, flight.to, flight.rail) == (from, to, rail)
                && matches!(&flight.work, Work::Transfer(t, _) if t.direction == Direction::Write)
        });
        let after = if ordered { writes.map(|flight| flight.due + 1).max() } else { None };
        let left = (self.now + self.delay(rail)).max(after.unwrap_or(0));
        let (percent, longer) = self.script.stragglers;
        let straggles = percent != 0 && self.draw() % 100 < u64::from(percent);
        let held_up = self.held_up.get(&from).copied().unwrap_or(0);
        let due = left + held_up + if straggles { longer } else { 0 };
        let (mail, sent) = (Mail::Message(bytes.to_vec()), Some((lane, token)));
        self.letters.push(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
        left
    }

    /// A message leaves for a control endpoint.
    pub(super) fn send_control(&mut self, from: Pe, rail: RailId, to: Target, bytes: &[u8]) {
        let percent = self.lost_control_percent;
        if percent != 0 && self.draw() % 100 < percent {
            return;
        }
        let due = self.now + self.delay(rail);
        let Target { pe: to, rail: remote_rail, .. } = to;
        let (mail, generation) = (Mail::Control(bytes.to_vec()), 0);
        // What goes nowhere fills the connection, which takes nothing more then.
        let there = (to, remote_rail);
        let waits = |letter: &&Letter| {
            let same = (letter.from, letter.rail, letter.to) == (from, rail, to);
            same && matches!(letter.mail, Mail::Control(_))
        };
        if !self.connects((from, rail), there) && self.letters.iter().filter(waits).count() >= 8 {
            return;
        }
        let sent = None;
        self.letters.push(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
    }

    pub(super) fn take_control(&mut self, pe: Pe, rail: RailId) -> Option<Vec<u8>> {
        self.controls.get_mut(&(pe, rail))?.pop_front()
    }

    pub(super) fn take_mail(&mut self, pe: Pe, rail: RailId) -> Option<Mail> {
        self.inboxes.get_mut(&(pe, rail))?.pop_front()
    }

    pub(super) fn deliver(&mut self, to: Pe, rail: RailId, mail: Mail) {
        self.inboxes.entry((to, rail)).or_default().push_back(mail);
    }

    pub(super) fn deliver_control(&mut self, to: Pe, rail: RailId, bytes: Vec<u8>) {
        self.controls.entry((to, rail)).or_default().push_back(bytes);
    }

    fn duplicates(&mut self) -> bool {
        if self.duplicate_next > 0 {
            self.duplicate_next -= 1;
            return true;
        }
        let percent = u64::from(self.script.duplicate_percent);
        percent > 0 && self.draw() % 100 < percent
    }

    pub(super) fn move_letter(&mut self, at: usize) {
        let letter = self.letters.swap_remove(at);
        if let Mail::Control(bytes) = &letter.mail {
            self.deliver_control(letter.to, letter.remote_rail, bytes.clone());
            if self.duplicates() {
                let due = self.now + self.delay(letter.rail);
                self.letters.push(Letter { due, sent: None, ..letter });
            }
            return;
        }
        if letter.generation != self.generation(letter.to, letter.remote_rail) {
            return;
        }
        self.deliver(letter.to, letter.remote_rail, letter.mail.clone());
        if let (Some((lane, token)), true) = (letter.sent, self.fail_delivered > 0) {
            self.fail_delivered -= 1;
            self.failing.push((lane, letter.rail, token));
        }
        if matches!(letter.mail, Mail::Message(_)) && self.duplicates() {
            let due = self.now + self.delay(letter.rail);
            self.letters.push(Letter { due, sent: None, ..letter });
        }
    }

    pub(super) fn may_go(&self, letter: &Letter) -> bool {
        let held = self.holds_data && matches!(letter.mail, Mail::RemoteData(_));
        // What is told of a write has come with it.
        let is_here = matches!(letter.mail, Mail::RemoteData(_));
        let (from, to) = ((letter.from, letter.rail), (letter.to, letter.remote_rail));
        let goes = match letter.mail {
            Mail::Control(_) => self.connects(from, to),
            _ => is_here || self.goes(from, to),
        };
        !held && goes && !self.stalled.contains(&letter.to)
    }
}
