//! The place of the ring's sources in the transport.

pub(crate) mod ring;
