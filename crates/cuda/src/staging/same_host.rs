//! Peers on this host that share their bounce memory with this process.
//!
//! After the bounce buffers, each shared memory has a secret, which proves to those who open it
//! that it is the right one, and a flag byte for each PE of the job, which that PE sets once its
//! lane copies from the bounce buffers.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::MEM;
use crate::driver::context::Context;
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::range::fits;
use crate::memory::shared_memory::SharedMemory;
use engine::ids::Pe;
use engine::port::copies::PeerBounce;

const PAGE: usize = 4096;

pub const SECRET_BYTES: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLayout {
    /// Bytes of all bounce buffers, which come first: a multiple of a page.
    bounce_bytes: usize,
    n_pes: u32,
}

impl SharedLayout {
    /// Returns the layout for `bounce_bytes` of bounce buffers in a job of `n_pes` PEs.
    pub fn new(bounce_bytes: usize, n_pes: u32) -> Self {
        Self { bounce_bytes: bounce_bytes.next_multiple_of(PAGE), n_pes }
    }

    pub fn bounce_bytes(&self) -> usize {
        self.bounce_bytes
    }

    /// Returns the bytes of the whole memory.
    pub fn bytes(&self) -> usize {
        (self.bounce_bytes + SECRET_BYTES + self.n_pes as usize).next_multiple_of(PAGE)
    }

    pub fn write_secret(&self, memory: &SharedMemory, secret: &[u8; SECRET_BYTES]) {
        for (at, byte) in secret.iter().enumerate() {
            memory.byte(self.bounce_bytes + at).store(*byte, Ordering::Relaxed);
        }
    }

    /// Returns true if the memory has the layout's length and this secret.
    pub fn has_secret(&self, memory: &SharedMemory, secret: &[u8; SECRET_BYTES]) -> bool {
        let is_there = |(at, byte): (usize, &u8)| {
            memory.byte(self.bounce_bytes + at).load(Ordering::Relaxed) == *byte
        };
        memory.len() == self.bytes() && secret.iter().enumerate().all(is_there)
    }

    fn flag_of(&self, pe: Pe) -> usize {
        self.bounce_bytes + SECRET_BYTES + pe.index()
    }
}

/// Bounce memory that PEs of this host share, before it is page-locked.
#[derive(Debug)]
pub struct Shares {
    pub me: Pe,
    /// Bounce memory of this process.
    pub own: Arc<SharedMemory>,
    pub layout: SharedLayout,
    pub peers: Vec<PeerShare>,
}

/// Bounce memory of a peer on this host.
#[derive(Debug)]
pub struct PeerShare {
    pub pe: Pe,
    /// Its memory, mapped into this process.
    pub memory: Arc<SharedMemory>,
    pub layout: SharedLayout,
    /// Its process (`pidfd_open`), if the kernel reports its end.
    pub process: Option<OwnedFd>,
}

#[derive(Debug)]
struct SameHostPeer {
    share: PeerShare,
    pinned: Arc<PinnedMemory>,
}

/// Peers from whose bounce memory this process copies, and the flags of those that copy from its
/// own.
#[derive(Debug, Default)]
pub(crate) struct SameHostPeers {
    own: Option<(Pe, Arc<SharedMemory>, SharedLayout)>,
    all: Vec<SameHostPeer>,
    by_address: Vec<(usize, usize)>,
}

impl SameHostPeers {
    /// Page-locks the bounce memory of this process and of the peers. Leaves out peers whose memory
    /// cannot be locked; returns None if that of this process cannot.
    pub(crate) fn pin(shares: Shares, context: &Arc<Context>) -> Option<(Arc<PinnedMemory>, Self)> {
        let Shares { me, own, layout, peers } = shares;
        let pinned = PinnedMemory::register(context, &own, layout.bounce_bytes())
            .inspect_err(|error| {
                log::info!(target: MEM, "bounce memory is not shared with other PEs of this host: {error}");
            })
            .ok()?;
        let mut all = Vec::with_capacity(peers.len());
        for share in peers {
            match PinnedMemory::register(context, &share.memory, share.layout.bounce_bytes()) {
                Ok(pinned) => all.push(SameHostPeer { share, pinned }),
                Err(error) => log::info!(
                    target: MEM,
                    "bounce memory of {} is not copied from: {error}", share.pe,
                ),
            }
        }
        all.sort_unstable_by_key(|peer| peer.share.pe);
        let address = |(at, peer): (usize, &SameHostPeer)| (peer.pinned.addr(), at);
        let mut by_address: Vec<_> = all.iter().enumerate().map(address).collect();
        by_address.sort_unstable();
        Some((pinned, Self { own: Some((me, own, layout)), all, by_address }))
    }

    fn find(&self, pe: Pe) -> Option<&SameHostPeer> {
        let at = self.all.binary_search_by_key(&pe, |peer| peer.share.pe).ok()?;
        self.all.get(at)
    }

    /// Returns the memory of the peer that has `len` bytes at `addr`, and their offset in it.
    pub(crate) fn memory(&self, addr: usize, len: usize) -> Option<(&Arc<PinnedMemory>, usize)> {
        let behind = self.by_address.partition_point(|(at, _)| *at <= addr);
        let (at, index) = self.by_address[..behind].last()?;
        let (offset, pinned) = (addr - at, &self.all[*index].pinned);
        fits(offset, len, pinned.len()).then_some((pinned, offset))
    }

    pub(crate) fn all_memory(&self) -> impl Iterator<Item = &Arc<PinnedMemory>> {
        self.all.iter().map(|peer| &peer.pinned)
    }

    pub(crate) fn peer_bounce(&self, pe: Pe) -> Option<PeerBounce> {
        let SameHostPeer { pinned, .. } = self.find(pe)?;
        Some(PeerBounce { addr: pinned.addr(), len: pinned.len() })
    }

    pub(crate) fn is_mapped_by(&self, pe: Pe) -> bool {
        let Some((_, own, layout)) = &self.own else { return false };
        // A PE that sets the flag wrongly harms only its own data.
        pe.0 < layout.n_pes && own.byte(layout.flag_of(pe)).load(Ordering::Acquire) == 1
    }

    pub(crate) fn announce(&self, copies: bool) {
        let Some((me, ..)) = self.own else { return };
        for SameHostPeer { share, .. } in &self.all {
            let flag = share.memory.byte(share.layout.flag_of(me));
            flag.store(u8::from(copies), Ordering::Release);
        }
    }

    pub(crate) fn has_ended(&self, pe: Pe) -> bool {
        let process = self.find(pe).and_then(|peer| peer.share.process.as_ref());
        process.is_some_and(has_ended)
    }

    pub(crate) fn pes(&self) -> impl Iterator<Item = Pe> + '_ {
        self.all.iter().map(|peer| peer.share.pe)
    }
}

impl Drop for SameHostPeers {
    fn drop(&mut self) {
        self.announce(false);
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one open descriptor; a timeout of 0 does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn secret_and_flags_follow_bounce_buffers() {
        let layout = SharedLayout::new(5000, 3);
        assert_eq!((layout.bounce_bytes(), layout.bytes()), (8192, 12_288));
        assert_eq!([0, 1, 2].map(|pe| layout.flag_of(Pe(pe))), [8208, 8209, 8210]);
        assert_eq!(SharedLayout::new(8192, 4096 - 16).bytes(), 12_288, "all in one page");
        assert_eq!(SharedLayout::new(8192, 4096 - 15).bytes(), 16_384);

        let secret: [u8; SECRET_BYTES] = std::array::from_fn(|at| at as u8 + 1);
        let memory = SharedMemory::create(layout.bytes()).unwrap().0;
        assert!(!layout.has_secret(&memory, &secret));
        layout.write_secret(&memory, &secret);
        assert!(layout.has_secret(&memory, &secret));
        let is_set = |at: &usize| memory.byte(*at).load(Ordering::Relaxed) != 0;
        assert!((0..layout.bytes()).filter(is_set).eq(8192..8208), "nothing else was written");
        for at in 0..SECRET_BYTES {
            let mut other = secret;
            other[at] = 0;
            assert!(!layout.has_secret(&memory, &other), "byte {at} differs");
        }
        let longer = SharedLayout::new(5000, 5000);
        assert!(!longer.has_secret(&memory, &secret), "it has another length");
    }

    #[test]
    fn pidfd_tells_process_end() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // SAFETY: a call with numbers alone; what it opens is nobody else's.
        let process = unsafe {
            OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, child.id(), 0) as i32)
        };
        assert!(!has_ended(&process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process));
    }
}
