//! Messages as a lane keeps them: those to and from one peer, the slots of all that are on their way, what of a peer waits for
//! others, and those without numbers.

pub(in crate::engine) mod audit;
pub(in crate::engine) mod link;
pub(in crate::engine) mod order;
pub(in crate::engine) mod table;
pub(in crate::engine) mod unnumbered;

#[cfg(test)]
mod tests;
