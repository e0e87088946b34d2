//! The clock of the fake fabric: what is due happens when it moves.

use super::state::World;

impl World {
    /// Moves the clock by `step`, or towards the next event if `leap`, and lets happen what is due.
    pub(crate) fn advance(&mut self, step: u64, leap: bool) {
        self.now += step;
        self.letters.sort(&self.links);
        if leap {
            let flights = self.flights.iter().filter(|flight| self.may_move(flight)).map(|f| f.due);
            let copies = self.copies.iter().map(|copy| copy.due);
            let next = flights.chain(self.letters.next_due()).chain(copies).min();
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
            let letter = self.letters.next_due().filter(|due| *due <= self.now);
            match (flight, letter) {
                (None, None) => break,
                (Some(flight), letter)
                    if letter.is_none_or(|due| self.flights[flight].due <= due) =>
                {
                    self.move_flight(flight);
                }
                _ => self.move_letter(),
            }
        }
    }
}
