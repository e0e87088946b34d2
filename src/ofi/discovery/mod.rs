//! The search for devices: what providers offer, what is taken of it, and why the rest is not.
//!
//! Nothing is opened here. Whatever was offered and not taken has a reason that the user gets to see.

pub(in crate::ofi) mod device;
mod interface;
pub(in crate::ofi) mod message_order;
pub(in crate::ofi) mod query;
pub(in crate::ofi) mod remote_data;
pub(in crate::ofi) mod search;
mod selection;
