//! State of the driver: devices, contexts with their streams, memory.

pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod resident;
pub(crate) mod settings;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod worker;
