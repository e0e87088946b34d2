//! Where kernels run: a GPU, or this process' threads in its place; and how the CPU gets at their
//! memory.

pub(crate) mod gpu;
pub(crate) mod host;
pub(crate) mod machine;
pub(crate) mod reach;
