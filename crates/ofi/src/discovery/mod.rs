//! The search for devices: what providers offer, what is taken of it, and why the rest is not.
//!
//! Nothing is opened here. What was offered and not taken has a reason that the user gets to see.

pub(crate) mod device;
pub(crate) mod immediate_data;
pub(crate) mod interface;
pub(crate) mod link;
pub(crate) mod offers;
pub(crate) mod query;
pub(crate) mod search;
mod selection;
