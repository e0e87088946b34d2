//! Where kernels run: a GPU, or this process' threads in its place; and how the CPU gets at their
//! memory.

pub mod gpu;
pub mod host;
pub mod machine;
pub mod reach;
