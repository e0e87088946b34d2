//! Registration of memory with all rails of the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::port::copies::{Reach, Stager};
use crate::port::{Desc, PortError};

/// Use for which memory is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Local side of operations. Peers may read it, over every proxy rail, when asked to.
    Local,
    /// Peers may also read and write it, over every proxy rail.
    LocalAndRemote,
    /// As `LocalAndRemote`, for words that only peers' signals change, and only by additions: their
    /// values can be cached in host memory instead of being read back.
    Signals,
}

impl Access {
    /// Returns true if peers may write to the memory.
    #[inline]
    pub fn is_remote(self) -> bool {
        self != Self::Local
    }
}

static UNCLOSED: AtomicBool = AtomicBool::new(false);

/// Call when an object through which the fabric reaches memory of this process could not be
/// closed. From then on memory that was registered is never freed.
pub fn set_unclosed() {
    UNCLOSED.store(true, Ordering::Relaxed);
}

/// Returns true if the fabric may still reach memory that should no longer be registered.
pub fn is_unclosed() -> bool {
    UNCLOSED.load(Ordering::Relaxed)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// By the owner's virtual address (`FI_MR_VIRT_ADDR`).
    Virtual,
    /// By the offset from the region's first byte.
    Offset,
}

/// A registered region. Dropping `owner` ends the registration on every rail.
#[derive(Debug)]
pub struct Registered<R> {
    pub owner: R,
    /// Key for peers per proxy rail, in rail order.
    pub keys: Vec<u64>,
    /// Descriptor per proxy rail, in rail order.
    pub proxy_descs: Vec<Desc>,
    /// Descriptor per rail of the host lane, in rail order.
    pub host_descs: Vec<Desc>,
    /// Addressing by peers; the same on all rails of a provider.
    pub addressing: Addressing,
    /// Means of access. Staged memory has neither keys nor descriptors.
    pub reach: Reach,
}

impl<R> Registered<R> {
    /// Describes memory that no rail reaches.
    pub fn staged(owner: R) -> Self {
        Self { reach: Reach::Staged, ..Self::without_descs(owner, Vec::new(), Addressing::Virtual) }
    }

    /// Describes host memory on rails that need no descriptors.
    pub fn without_descs(owner: R, keys: Vec<u64>, addressing: Addressing) -> Self {
        let (proxy_descs, host_descs) = (vec![Desc::default(); keys.len()], vec![Desc::default()]);
        Self { owner, keys, proxy_descs, host_descs, addressing, reach: Reach::Direct }
    }

    pub fn owned_by<S>(self, own: impl FnOnce(R) -> S) -> Registered<S> {
        let Self { owner, keys, proxy_descs, host_descs, addressing, reach } = self;
        Registered { owner: own(owner), keys, proxy_descs, host_descs, addressing, reach }
    }
}

/// Registers memory with every rail of the process. Any thread may use it, also while lanes post.
pub trait MemoryPort: Send + Sync + 'static {
    /// Owner of a registration.
    type Region: Send + Sync;

    /// Registers `len` bytes at `addr`; takes at least one system call per rail.
    ///
    /// # Errors
    /// Names the first rail that refused; registrations made before are undone.
    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<Self::Region>, PortError>;

    /// Ends a registration on every rail. Dropping the owner does so without reporting errors.
    ///
    /// # Errors
    /// The answer of the first rail that keeps the registration; the call may be repeated.
    fn close(&self, _region: &mut Self::Region) -> Result<(), PortError> {
        Ok(())
    }

    /// Returns the stager of staged regions, once, after the first of them was registered. It is
    /// made with that region, since making it may wait for the device.
    fn take_stager(&self) -> Option<Stager> {
        None
    }

    /// Returns a stager for unregistered local memory, for fabrics that need registration
    /// (`FI_MR_LOCAL`) where no region has brought a stager. Given out once, by this call or by
    /// [`MemoryPort::take_stager`]. The proxy thread calls it, so it waits for no device. None
    /// while another thread is making one: ask again.
    ///
    /// # Errors
    /// No stager exists, or memory for it is exhausted.
    fn make_stager(&self) -> Result<Option<Stager>, PortError> {
        let text = String::from("nothing stages memory here");
        Err(PortError { call: "staging", code: 0, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclosed_objects_are_remembered() {
        assert!(!is_unclosed());
        set_unclosed();
        assert!(is_unclosed());
    }
}
