//! Operations under way in the fake fabric: posted, delivered, completed or failed as the clock
//! moves.

use crate::prelude::*;
use crate::world::mail::Letter;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) pe: Pe,
    pub(crate) rail: RailId,
}

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) lane: usize,
    pub(crate) from: Pe,
    pub(crate) to: Pe,
    pub(crate) remote_rail: RailId,
    pub(crate) rail: RailId,
    pub(crate) wr_id: WrId,
    pub(crate) transfer: Transfer,
    /// What the peer is told when the data is there.
    pub(crate) data: Option<u64>,
    pub(crate) due: u64,
    /// Once delivered: what the completion says.
    pub(crate) outcome: Option<Result<(), PortError>>,
}

#[derive(Debug)]
pub(crate) enum Done {
    WrId(WrId),
    Failure(Failure),
}

impl World {
    /// Moves the clock by `step`, or towards the next event if `leap`, and lets happen what is due.
    pub(crate) fn advance(&mut self, step: u64, leap: bool) {
        self.now += step;
        if leap {
            let flights = self.flights.iter().filter(|flight| self.may_move(flight)).map(|f| f.due);
            let copies = self.copies.iter().map(|copy| copy.due);
            let next = flights.chain(self.next_letter().map(|(due, _)| due)).chain(copies).min();
            // Not all the way, so that a loop which waits long iterations often, as a real one
            // does.
            let furthest = self.now + 10_000_000;
            self.now = next.map_or(furthest, |next| next.clamp(self.now, furthest));
        }
        while let Some(at) = (0..self.copies.len())
            .filter(|at| self.copies[*at].due <= self.now)
            .min_by_key(|at| self.copies[*at].due)
        {
            self.move_copy(at);
        }
        // In order of their times, so that what must come later does.
        loop {
            let flight = (0..self.flights.len())
                .filter(|at| self.flights[*at].due <= self.now && self.may_move(&self.flights[*at]))
                .min_by_key(|at| self.flights[*at].due);
            let letter = self.next_letter().filter(|(due, _)| *due <= self.now);
            match (flight, letter) {
                (None, None) => break,
                (Some(flight), Some((due, _))) if self.flights[flight].due <= due => {
                    self.move_flight(flight);
                }
                (Some(flight), None) => self.move_flight(flight),
                (_, Some(letter)) => self.move_letter(letter),
            }
        }
    }

    pub(crate) fn post(
        &mut self,
        lane: usize,
        from: Pe,
        rail: RailId,
        to: Target,
        wr_id: WrId,
        (transfer, data): (Transfer, Option<u64>),
    ) {
        let due = self.carry(from, rail, transfer.len as u64) + self.delay(rail);
        let Target { pe: to, rail: remote_rail } = to;
        let outcome = None;
        let flight =
            Flight { lane, from, to, remote_rail, rail, wr_id, transfer, data, due, outcome };
        self.flights.push(flight);
    }

    fn rate(&self, rail: RailId) -> Option<u64> {
        let rates = &self.script.rates;
        rates.iter().find(|(other, _)| *other == rail).map(|(_, rate)| *rate)
    }

    fn carry(&mut self, pe: Pe, rail: RailId, len: u64) -> u64 {
        let Some(rate) = self.rate(rail) else { return self.now };
        let free_at = self.free_at.entry((pe, rail)).or_default();
        *free_at = (*free_at).max(self.now) + len * 1000 / rate;
        *free_at
    }

    /// From now on a rail of every PE carries so many bytes per microsecond, of what is on its way
    /// too. It had a rate before.
    pub fn set_rate(&mut self, rail: RailId, rate: u64) {
        let now = self.now;
        let entry = self.script.rates.iter_mut().find(|(other, _)| *other == rail);
        let Some(old) = entry.map(|(_, old)| std::mem::replace(old, rate)) else { return };
        let stretch = |due: &mut u64| *due = now + due.saturating_sub(now) * old / rate;
        let not_there = |flight: &&mut Flight| flight.rail == rail && flight.outcome.is_none();
        self.flights.iter_mut().filter(not_there).for_each(|flight| stretch(&mut flight.due));
        let on_it = self.free_at.iter_mut().filter(|((_, other), _)| *other == rail);
        on_it.for_each(|(_, free_at)| stretch(free_at));
    }

    pub(crate) fn move_flight(&mut self, at: usize) {
        let mut flight = self.flights.swap_remove(at);
        match flight.outcome.take() {
            None => {
                let outcome = self.move_data(&flight);
                if outcome.is_ok() {
                    self.tell(&flight);
                }
                flight.outcome = Some(outcome);
                flight.due = self.now + self.delay(flight.rail);
                self.flights.push(flight);
            }
            Some(outcome) => self.complete(&flight, outcome),
        }
    }

    pub(crate) fn may_move(&self, flight: &Flight) -> bool {
        let (here, there) = ((flight.from, flight.rail), (flight.to, flight.remote_rail));
        match &flight.outcome {
            Some(_) => self.links.goes(there, here),
            None if flight.transfer.direction == Direction::Read => {
                let goes = self.links.goes(here, there) && self.links.goes(there, here);
                goes && !self.links.stalled.contains(&flight.to)
            }
            None => self.links.goes(here, there) && !self.links.stalled.contains(&flight.to),
        }
    }

    fn tell(&mut self, flight: &Flight) {
        let Some(data) = flight.data else { return };
        if self.lose_next_data > 0 {
            self.lose_next_data -= 1;
            return;
        }
        let Flight { from, to, rail, remote_rail, .. } = *flight;
        let (due, mail) = (self.now + self.delay(rail), Mail::ImmediateData(data));
        self.mail(Letter { from, to, rail, remote_rail, mail, due, sent: None });
    }

    pub(crate) fn move_data(&mut self, flight: &Flight) -> Result<(), PortError> {
        let Transfer { direction, local, len, remote, key } = flight.transfer;
        self.call(PortCall::Deliver)?;
        let (at, writes) = ((flight.to, flight.remote_rail), direction == Direction::Write);
        let target = self.memory.resolve(key, at, remote as usize, len, writes)?;
        let Flight { from, to, .. } = *flight;
        let (bytes, owner, at) = match (direction, local) {
            (Direction::Write, Local::Memory { addr, .. }) => {
                (self.memory.bytes_mut(from, addr, len).to_vec(), to, target)
            }
            (Direction::Write, Local::Value(value)) => {
                (value.to_le_bytes()[..len].to_vec(), to, target)
            }
            (Direction::Read, Local::Memory { addr, .. }) => {
                (self.memory.bytes_mut(to, target, len).to_vec(), from, addr)
            }
            (Direction::Read, Local::Value(_)) => {
                return Err(fault("delivery", 22, "a read into an inline value"));
            }
        };
        self.memory.bytes_mut(owner, at, len).copy_from_slice(&bytes);
        let delivery = Delivery { to, direction, addr: target, len };
        self.events.push(Event::Delivered(delivery));
        Ok(())
    }

    fn complete(&mut self, flight: &Flight, outcome: Result<(), PortError>) {
        if self.lose_next > 0 {
            self.lose_next -= 1;
            return;
        }
        let wr_id = flight.wr_id;
        self.done[flight.lane][flight.rail.index()].push_back(match outcome {
            Ok(()) => Done::WrId(wr_id),
            Err(error) => Done::Failure(Failure { wr_id: Some(wr_id), is_message: false, error }),
        });
    }

    /// A PE's rail fails, or what has a work-request id on it, whether its lane has given that out
    /// or not. The rail is the proxy lane's, the first that the PE has opened.
    pub fn report(&mut self, pe: Pe, rail: RailId, wr_id: Option<WrId>, text: &str) {
        let lane = self.lanes.iter().position(|owner| *owner == pe);
        let Some(lane) = lane else { panic!("{pe} has no lane") };
        let failure = Failure { wr_id, is_message: false, error: fault("poll", 5, text) };
        self.done[lane][rail.index()].push_back(Done::Failure(failure));
    }

    /// The messages that were delivered and fail all the same are reported with the next poll.
    pub fn report_failing(&mut self) {
        for (lane, rail, wr_id) in std::mem::take(&mut self.failing) {
            let error = fault("sending a message", 104, "failed by the script");
            let failure = Failure { wr_id: Some(wr_id), is_message: true, error };
            self.done[lane][rail.index()].push_back(Done::Failure(failure));
        }
    }
}
