//! Origins: the host's information about memory that is being registered.

use std::sync::{Mutex, PoisonError};

/// The host's information about memory with a second address, or unknown to CUDA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) alias: Option<usize>,
    /// Whether it is memory of a NUMA node of the host.
    pub(crate) on_host: bool,
}

/// Origins of the addresses that any threads are registering now. An entry ends with the
/// registration: later the address may be of other memory.
#[derive(Debug, Default)]
pub(crate) struct Origins(Mutex<Vec<(usize, Origin)>>);

impl Origins {
    pub(crate) fn during<T>(&self, addr: usize, origin: Origin, register: impl FnOnce() -> T) -> T {
        if origin == Origin::default() {
            return register();
        }
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known().push((addr, origin));
        let registered = register();
        known().retain(|known| *known != (addr, origin));
        registered
    }

    pub(super) fn of(&self, addr: usize) -> Origin {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(at, _)| *at == addr);
        found.map_or_else(Origin::default, |(_, origin)| *origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_end_with_registration() {
        let origins = Origins::default();
        let first = Origin { alias: Some(0x7000), on_host: false };
        let other = Origin { alias: None, on_host: true };
        let registered = origins.during(0x1000, first, || {
            origins.during(0x2000, other, || {
                assert_eq!((origins.of(0x1000), origins.of(0x2000)), (first, other));
            });
            assert_eq!((origins.of(0x1000), origins.of(0x2000)), (first, Origin::default()));
            origins.during(0x3000, Origin::default(), || origins.of(0x3000))
        });
        assert_eq!(registered, Origin::default());
        assert_eq!(origins.of(0x1000), Origin::default());
        // Where something else is registered later.
        origins.during(0x1000, other, || assert_eq!(origins.of(0x1000), other));
    }
}
