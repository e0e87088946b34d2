//! Clock of a lane, and the pause of an idle loop.

pub trait Clock {
    /// Returns nanoseconds since some fixed moment. Never goes backwards.
    fn now(&mut self) -> u64;

    /// Yields the core; called by a waiting loop that found nothing to do.
    fn relax(&mut self);
}
