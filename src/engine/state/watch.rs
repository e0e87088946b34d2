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
