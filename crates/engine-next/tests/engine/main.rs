//! The new engine on the scripted fabric: the cases of the first engine that are about what both
//! have, from the same files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

extern crate engine_next as engine;

/// Of the first engine's cases alone.
#[allow(dead_code, reason = "until all cases are here")]
mod health {
    pub(crate) const HEALTH: () = ();
}

#[allow(dead_code, reason = "until all cases are here")]
mod job;
#[allow(dead_code, reason = "until all cases are here")]
mod room;
#[allow(dead_code, reason = "until all cases are here")]
mod signals;
mod staged;

mod asked;
#[path = "../../../../tests/engine/consistency.rs"]
mod consistency;
mod faults;
#[path = "../../../../tests/engine/fences.rs"]
mod fences;
mod forge;
#[path = "../../../../tests/engine/iterations.rs"]
mod iterations;
#[path = "../../../../tests/engine/random.rs"]
mod random;
#[path = "../../../../tests/engine/stripes.rs"]
mod stripes;
mod wire;
