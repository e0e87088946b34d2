//! Discovery of devices: the providers' offers, the choice, and the reason for each refusal.
//!
//! Nothing is opened here. The log has the reason for each offer that was not taken.

pub(crate) mod device;
pub(crate) mod immediate_data;
pub(crate) mod interface;
pub(crate) mod link;
pub(crate) mod query;
pub(crate) mod search;
mod selection;
