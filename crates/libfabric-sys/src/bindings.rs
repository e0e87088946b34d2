//! Bindings that bindgen made of libfabric's headers. `scripts/bindings.sh` makes them anew.
#![allow(
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks
)]

/// The oldest that is served. Code is made for this one: a newer library's structs begin alike,
/// so no field is read that a library does not have.
pub mod v1_17 {
    include!("generated/v1_17.rs");
}
