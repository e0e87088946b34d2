//! A PE's process: how it begins and ends, and what it has without a plugin.

pub(crate) mod bootstrap;
pub(crate) mod entry;
pub(crate) mod job;
pub(crate) mod process;
