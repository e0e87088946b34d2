//! NVSHMEM's transport plugin interface.
