//! Room: bounds, batches, and what operations do to one another when some find none.

mod batches;
mod bounds;
mod contention;
