//! Raw bindings to libfabric.
