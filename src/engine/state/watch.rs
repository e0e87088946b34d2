//! The watchdog's record of one stream.

/// What the watchdog knows of one stream. It compares counts from one look to the next, so that
/// starting and ending a segment costs nothing for it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Watch {
    /// Segments that had ended at the last look.
    ended: u32,
    /// Whether any was outstanding then.
    waited: bool,
    /// Since when something has been outstanding without any ending, on the watchdog's clock.
    pub(in crate::engine) since: u32,
    /// Warnings given for what is outstanding.
    pub(in crate::engine) warned: u32,
}

impl Watch {
    /// Takes note of what the stream is like at `now`: so many segments have ended, and it waits for others or
    /// not.
    pub(in crate::engine) fn look(&mut self, ended: u32, waits: bool, now: u32) {
        if ended != self.ended || !self.waited {
            self.since = now;
        }
        self.ended = ended;
        self.waited = waits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_still_since_it_began_to_wait_or_something_ended() {
        let mut watch = Watch::default();
        let mut since = |ended, waits, now| {
            watch.look(ended, waits, now);
            watch.since
        };
        assert_eq!(since(0, false, 3), 3);
        assert_eq!(since(0, true, 5), 5, "nothing waited before");
        assert_eq!(since(0, true, 9), 5);
        assert_eq!(since(1, true, 12), 12, "something has ended");
        assert_eq!(since(1, false, 14), 12);
        assert_eq!(since(1, true, 20), 20);
    }
}
