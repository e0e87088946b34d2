//! The functions that C calls.

mod attributes;
mod capture;
mod context;
mod copy;
mod device;
mod extras;
mod host;
mod memory;
mod module;
mod pointer;
mod runtime;
mod stream;
mod vmm;
