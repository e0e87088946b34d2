//! Parts of the engine that descriptors are made of.

#[path = "../../../src/engine/atomic.rs"]
pub mod atomic;
#[path = "../../../src/engine/ids.rs"]
pub mod ids;
