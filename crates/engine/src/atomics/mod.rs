//! Atomics: who carries them out, and those that the fabric does.

pub mod applier;
pub mod fabric;
