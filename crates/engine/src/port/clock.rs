//! The clock of a lane, and the pause of a loop that finds nothing to do.

/// The clock of a lane.
pub trait Clock {
    /// Nanoseconds since some fixed moment. Never goes backwards.
    fn now(&mut self) -> u64;

    /// Called by a waiting loop that found nothing to do: gives the core to somebody else.
    fn relax(&mut self);
}
