//! The suites: what each measures, and on which sides.

pub(crate) mod bulk;
#[cfg(feature = "channel")]
pub(crate) mod channel;
pub(crate) mod connect;
pub(crate) mod puts;
pub(crate) mod signals;
pub(crate) mod staged;
