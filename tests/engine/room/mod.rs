//! Room: bounds, bursts, batches, and what operations do to one another when some find none.

mod batches;
mod bounds;
mod bursts;
mod contention;
