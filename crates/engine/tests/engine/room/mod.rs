//! Room: bounds, batches, and what operations do to one another when some find none.

#[path = "../../../../../tests/engine/room/batches.rs"]
mod batches;
mod bounds;
mod contention;
