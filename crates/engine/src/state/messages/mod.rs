//! Messages as a lane keeps them: those to and from one peer, the slots of all that are on their
//! way, what of a peer waits for others, and those without numbers.

#[cfg(any(test, feature = "audit"))]
pub(crate) mod audit;
pub(crate) mod order;
pub(crate) mod reliable_channel;
pub(crate) mod table;
pub(crate) mod unnumbered;

#[cfg(test)]
mod tests;
