//! The functions that C calls.

mod context;
mod copy;
mod device;
mod extras;
mod gdrcopy;
mod host;
mod memory;
mod module;
mod pointer;
mod runtime;
mod stream;
mod vmm;
