//! The watchdog's record of one connection.

/// What the watchdog knows of one connection. It compares counts from one look to the next, so that
/// starting and ending a segment costs nothing for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    ended: u32,
    waited: bool,
    /// The number of that look. Connections for which nothing is under way are not looked at.
    looked: u32,
    /// Since when something has been outstanding without any ending, on the watchdog's clock.
    pub(crate) since: u32,
    pub(crate) warned: u32,
}

impl Watch {
    /// Takes note of what the connection is like at `now`: so many segments have ended, and it
    /// waits for others or not. False if it was looked at before in the look of this number.
    pub(crate) fn look(&mut self, ended: u32, waits: bool, (number, now): (u32, u32)) -> bool {
        let before = number.wrapping_sub(std::mem::replace(&mut self.looked, number));
        if before == 0 {
            return false;
        }
        if ended != self.ended || !self.waited || before != 1 {
            self.since = now;
        }
        self.ended = ended;
        self.waited = waits;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_still_since_it_began_to_wait_or_something_ended() {
        let mut watch = Watch::default();
        let mut number = 0;
        let mut since = |ended, waits, now| {
            number += 1;
            assert!(watch.look(ended, waits, (number, now)));
            assert!(!watch.look(9, false, (number, 99)), "once in each look");
            watch.since
        };
        assert_eq!(since(0, false, 3), 3);
        assert_eq!(since(0, true, 5), 5, "nothing waited before");
        assert_eq!(since(0, true, 9), 5);
        assert_eq!(since(1, true, 12), 12, "something has ended");
        assert_eq!(since(1, false, 14), 12);
        assert_eq!(since(1, true, 20), 20);
        assert!(watch.look(1, true, (number + 2, 25)));
        assert_eq!(watch.since, 25, "nothing was under way at the look before");
    }
}
