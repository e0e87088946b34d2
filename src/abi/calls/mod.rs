//! Calls that move data: puts and gets, atomics and signals, from the host's arguments to the
//! engine's requests.

pub(crate) mod request;
pub(crate) mod signals;
pub(crate) mod transfers;
