//! Messages and remote data under way in the fake fabric.

use std::collections::BTreeMap;

use super::links::Links;
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

impl Letter {
    fn finds_way(&self, links: &Links) -> bool {
        let (from, to) = ((self.from, self.rail), (self.to, self.remote_rail));
        let goes = match self.mail {
            Mail::Control(_) => links.connects(from, to),
            // What is told of a write has come with it.
            Mail::RemoteData(_) => !links.holds_data(),
            Mail::Message(_) => links.goes(from, to),
        };
        goes && !links.is_stalled(self.to)
    }
}

/// All that is on its way. Thousands may wait for a link that is dead: they are looked at when a link changes.
#[derive(Default, Debug)]
pub(super) struct Letters {
    /// Those that find a way, by when they are due and by their number.
    going: BTreeMap<(u64, u64), Letter>,
    /// The others, by number: those whose sender may still be told, and the rest.
    stuck: BTreeMap<u64, Letter>,
    silent: BTreeMap<u64, Letter>,
    posted: u64,
    /// The links' version with which they were sorted.
    sorted: u64,
}

impl Letters {
    fn post(&mut self, letter: Letter, links: &Links) {
        self.posted += 1;
        self.put(self.posted, letter, links);
    }

    fn put(&mut self, number: u64, letter: Letter, links: &Links) {
        if letter.finds_way(links) {
            self.going.insert((letter.due, number), letter);
        } else if letter.sent.is_some() {
            self.stuck.insert(number, letter);
        } else {
            self.silent.insert(number, letter);
        }
    }

    /// Finds out once more which find a way, if links have changed.
    pub(super) fn sort(&mut self, links: &Links) {
        if std::mem::replace(&mut self.sorted, links.version()) != links.version() {
            self.filter(links, |_| true);
        }
    }

    /// Drops those that are not kept, which are asked for in the order in which they were posted.
    pub(super) fn filter(&mut self, links: &Links, mut keep: impl FnMut(&Letter) -> bool) {
        let mut all = std::mem::take(&mut self.stuck);
        all.append(&mut self.silent);
        let going = std::mem::take(&mut self.going);
        all.extend(going.into_iter().map(|((_, number), letter)| (number, letter)));
        for (number, letter) in all {
            if keep(&letter) {
                self.put(number, letter, links);
            }
        }
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.going.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn len(&self) -> usize {
        self.going.len() + self.stuck.len() + self.silent.len()
    }

    pub(super) fn stuck(&self) -> impl Iterator<Item = &Letter> {
        self.stuck.values().chain(self.silent.values())
    }

    /// Those of the stuck ones whose senders are to be told: gives whom.
    pub(super) fn tell(&mut self, fails: impl Fn(&Letter) -> bool) -> Vec<(usize, RailId, Token)> {
        let mut told = Vec::new();
        let numbers: Vec<u64> =
            self.stuck.iter().filter(|(_, l)| fails(l)).map(|(n, _)| *n).collect();
        for number in numbers {
            let Some(mut letter) = self.stuck.remove(&number) else { continue };
            told.extend(letter.sent.take().map(|(lane, token)| (lane, letter.rail, token)));
            self.silent.insert(number, letter);
        }
        told
    }
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
        self.mail(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
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
        self.letters.sort(&self.links);
        let there = (to, remote_rail);
        let waits = |letter: &&Letter| {
            let same = (letter.from, letter.rail, letter.to) == (from, rail, to);
            same && matches!(letter.mail, Mail::Control(_))
        };
        if !self.links.connects((from, rail), there)
            && self.letters.stuck().filter(waits).count() >= 8
        {
            return;
        }
        let sent = None;
        self.mail(Letter { from, to, rail, remote_rail, generation, mail, due, sent });
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

    pub(super) fn mail(&mut self, letter: Letter) {
        self.letters.post(letter, &self.links);
    }

    /// The next one that is due arrives, if there is one.
    pub(super) fn move_letter(&mut self) {
        let Some((_, letter)) = self.letters.going.pop_first() else { return };
        if let Mail::Control(bytes) = &letter.mail {
            self.deliver_control(letter.to, letter.remote_rail, bytes.clone());
            if self.duplicates() {
                let due = self.now + self.delay(letter.rail);
                self.mail(Letter { due, sent: None, ..letter });
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
            self.mail(Letter { due, sent: None, ..letter });
        }
    }
}
