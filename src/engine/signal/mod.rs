//! Signals: how the signal of a put is made to follow its data.

pub mod counted;
