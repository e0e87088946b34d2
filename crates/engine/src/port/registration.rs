//! Registration of memory with every rail of the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::port::copies::{Reach, Stager};
use crate::port::{Desc, PortError};

/// What memory is registered for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Local side of operations; peers may read it, on every proxy rail, when they are asked to.
    Local,
    /// Peers may read and write it as well, on every proxy rail.
    LocalAndRemote,
    /// The same, of words that nobody changes but peers' signals, which only add: so what a word
    /// holds can be remembered in place of being read.
    Signals,
}

impl Access {
    /// Whether peers may write to it.
    #[inline]
    pub fn is_remote(self) -> bool {
        self != Self::Local
    }
}

static UNCLOSED: AtomicBool = AtomicBool::new(false);

/// Something could not be closed by which the fabric reaches memory of this process. From here on
/// memory that was the fabric's is not freed any more.
pub fn note_unclosed() {
    UNCLOSED.store(true, Ordering::Relaxed);
}

/// Whether the fabric may still reach memory that should be its no more.
pub fn is_unclosed() -> bool {
    UNCLOSED.load(Ordering::Relaxed)
}

/// How peers address a region on a rail.
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
    /// Keeps the registration alive.
    pub owner: R,
    /// Key for peers per proxy rail, in rail order.
    pub keys: Vec<u64>,
    /// Descriptor per proxy rail, in rail order.
    pub proxy_descs: Vec<Desc>,
    /// Descriptor per rail of the host lane, in rail order.
    pub host_descs: Vec<Desc>,
    /// How peers address it. The same on every rail of one provider.
    pub addressing: Addressing,
    /// How it is reached. Staged memory has neither keys nor descriptors.
    pub reach: Reach,
}

impl<R> Registered<R> {
    /// Memory that no rail reaches.
    pub fn staged(owner: R) -> Self {
        Self { reach: Reach::Staged, ..Self::without_descs(owner, Vec::new(), Addressing::Virtual) }
    }

    /// Memory of the host, where its local side needs no descriptors.
    pub fn without_descs(owner: R, keys: Vec<u64>, addressing: Addressing) -> Self {
        let (proxy_descs, host_descs) = (vec![Desc::default(); keys.len()], vec![Desc::default()]);
        Self { owner, keys, proxy_descs, host_descs, addressing, reach: Reach::Direct }
    }

    /// The same, owned by another.
    pub fn owned_by<S>(self, own: impl FnOnce(R) -> S) -> Registered<S> {
        let Self { owner, keys, proxy_descs, host_descs, addressing, reach } = self;
        Registered { owner: own(owner), keys, proxy_descs, host_descs, addressing, reach }
    }
}

/// Registers memory with every rail of the process.
///
/// # Threads
/// Any, at any time, also while lanes post and poll.
pub trait MemoryPort: Send + Sync + 'static {
    /// What keeps a registration alive.
    type Region: Send + Sync;

    /// Registers `len` bytes at `addr`. It takes a system call per rail at least: not for the hot
    /// path.
    ///
    /// # Errors
    /// The first rail that refused, by name; registrations already made are undone.
    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<Self::Region>, PortError>;

    /// Ends a registration on every rail. Who drops it does the same, and is not told of failures.
    ///
    /// # Errors
    /// What the first rail has said that does not end it: there it lasts, and this may be called
    /// again.
    fn close(&self, _region: &mut Self::Region) -> Result<(), PortError> {
        Ok(())
    }

    /// Whether NICs reach some device memory by themselves that has been registered here, now or
    /// before.
    fn reaches_devices(&self) -> bool;

    /// What stages the memory that was registered as such: there once some was, and given out once.
    /// It is made with the first such region, since making it may wait for the device.
    fn take_stager(&self) -> Option<Stager> {
        None
    }

    /// What stages local memory that nobody has registered, where the fabric takes no such memory
    /// and no region has brought a stager. Given out once, by this or by
    /// [`MemoryPort::take_stager`]; the proxy thread asks for it, so this waits for no device. None
    /// while another thread is making one: to be asked again.
    ///
    /// # Errors
    /// There is none, or no memory for it.
    fn make_stager(&self) -> Result<Option<Stager>, PortError> {
        let text = String::from("nothing stages memory here");
        Err(PortError { call: "staging", code: 0, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_closed_is_remembered() {
        note_unclosed();
        assert!(is_unclosed());
    }
}
