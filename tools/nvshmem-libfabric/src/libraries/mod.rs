//! Libraries of this machine, as files: what the dynamic linker makes of a name, the NVSHMEMs, and
//! our plugins.

pub(crate) mod elf;
pub(crate) mod find;
pub(crate) mod linker;
pub(crate) mod nvshmem;
pub(crate) mod plugins;
