//! The rings of the device channel: their bits, and both ends.

mod bed;
mod descriptors;
mod producers;
mod regions;
mod support;
mod words;
