//! Bytes that PEs exchange: messages, memory handles and connection records.

/// Shows types that hold secrets by their names alone.
macro_rules! debug_by_name {
    ($($secret:ident),*) => {
        $(impl std::fmt::Debug for $secret {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($secret))
            }
        })*
    };
}

pub mod cookie;
pub(crate) mod decode;
pub(crate) mod encode;
pub mod handle;
pub mod handshake;
pub mod immediate;
pub mod message;
pub mod probe;
pub mod seal;
pub mod staging;
