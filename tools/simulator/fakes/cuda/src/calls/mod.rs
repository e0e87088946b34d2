//! The functions that C calls.

/// Declares functions that C calls by these names, each with its outcome. Pointers are what the
/// documentation of CUDA's driver says of them, or null.
macro_rules! calls {
    ($($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$about])*
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> crate::state::status::Status {
                crate::state::status::answer(move || $body)
            }
        )*
    };
}

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod extras;
mod gdrcopy;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod module;
mod pointer;
pub(crate) mod stream;
pub(crate) mod vmm;
