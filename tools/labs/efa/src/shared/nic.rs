//! A NIC as all processes see it: queue pairs, known addresses, memory regions.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SharedLock;
use super::mapping::Shared;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl Gid {
    pub(crate) fn of(host: u32, nic: u16) -> Self {
        let mut raw = [0; 16];
        raw[..2].copy_from_slice(&[0xfe, 0x80]);
        raw[8..12].copy_from_slice(&host.to_be_bytes());
        raw[14..].copy_from_slice(&(nic + 1).to_be_bytes());
        Self(raw)
    }

    pub(crate) fn file(self) -> String {
        format!("nic-{:032x}", u128::from_be_bytes(self.0))
    }

    pub(crate) fn posted_file(self) -> String {
        format!("{}-posted", self.file())
    }

    fn halves(self) -> [u64; 2] {
        let number = u128::from_be_bytes(self.0);
        [(number >> 64) as u64, number as u64]
    }
}

/// Most queue pairs, address handles and regions, of all processes together: what a mock of a p4d's
/// NIC in UCX's tests has of each.
pub(crate) const MAX_QPS: usize = 256;
pub(crate) const MAX_AHS: usize = 1024;
pub(crate) const MAX_MRS: usize = 1 << MR_BITS;
const MR_BITS: u32 = 18;

/// The address handle of an address that a NIC does not know.
pub(crate) const NO_AH: u32 = 0xffff;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct NicState {
    lock: SharedLock,
    dead: AtomicU32,
    /// Where the search for a free queue pair, and for a free region, goes on.
    next_qp: AtomicU32,
    next_mr: AtomicU32,
    /// How many of the address handles have ever been in use.
    ahs_used: AtomicU32,
    next_domain: AtomicU32,
    domains: AtomicU32,
    pages: AtomicU64,
    pub(crate) counters: Counters,
    qps: [QpSlot; MAX_QPS],
    ahs: [AhSlot; MAX_AHS],
    mrs: [MrSlot; MAX_MRS],
}

// SAFETY: atomics throughout, with no pointer.
unsafe impl Shared for NicState {}

/// What went through the NIC as the initiator.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) sends: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) not_ready: AtomicU64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
        write!(
            f,
            "{} sends, {} writes, {} reads, {} bytes, {} errors, {} tries without a receive",
            load(&self.sends),
            load(&self.writes),
            load(&self.reads),
            load(&self.bytes),
            load(&self.errors),
            load(&self.not_ready)
        )
    }
}

#[derive(Debug)]
#[repr(C)]
struct QpSlot {
    /// Odd while the queue pair is there; each one has a number of its own.
    generation: AtomicU32,
    ready: AtomicU32,
    qkey: AtomicU32,
    /// The protection domain, as of an address handle and a region.
    domain: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct AhSlot {
    users: AtomicU32,
    domain: AtomicU32,
    gid: [AtomicU64; 2],
}

#[derive(Debug)]
#[repr(C)]
struct MrSlot {
    /// Zero while it is free. It is the last to be set and the first to be cleared.
    key: AtomicU32,
    generation: AtomicU32,
    process: AtomicU32,
    access: AtomicU32,
    iova: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    domain: AtomicU32,
    device: AtomicU32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Domain(pub(crate) u32);

/// A queue pair of a NIC that can be sent to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct QpId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

impl QpId {
    pub(crate) fn file(self, gid: Gid) -> String {
        format!("{}-qp{}.{}", gid.file(), self.number, self.generation)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) process: u32,
    pub(crate) access: u32,
    pub(crate) domain: Domain,
    pub(crate) iova: u64,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) device: bool,
}

impl Region {
    /// Where `bytes` at the address `at`, as peers call it, are in the process. None out of bounds.
    pub(crate) fn find(&self, at: u64, bytes: u64) -> Option<u64> {
        let offset = at.checked_sub(self.iova)?;
        let end = offset.checked_add(bytes)?;
        (end <= self.length).then(|| self.address + offset)
    }
}

impl NicState {
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) != 0
    }

    pub(crate) fn die(&self) {
        self.dead.store(1, Ordering::Release);
    }

    pub(crate) fn add_domain(&self, most: u32) -> Option<Domain> {
        if self.domains.fetch_add(1, Ordering::Relaxed) >= most {
            self.remove_domain();
            return None;
        }
        Some(Domain(self.next_domain.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn remove_domain(&self) {
        self.domains.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes pages for a region. Whether there are so many left of `most`.
    pub(crate) fn take_pages(&self, pages: u64, most: u64) -> bool {
        let fits = self.pages.fetch_add(pages, Ordering::Relaxed) + pages <= most;
        if !fits {
            self.give_pages(pages);
        }
        fits
    }

    pub(crate) fn give_pages(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    pub(crate) fn add_qp(&self, domain: Domain) -> Option<QpId> {
        self.lock.with(|| {
            let from = self.next_qp.load(Ordering::Relaxed) as usize;
            let number = (from..from + MAX_QPS)
                .map(|at| at % MAX_QPS)
                .find(|&at| self.qps[at].generation.load(Ordering::Relaxed) % 2 == 0)?;
            let slot = &self.qps[number];
            slot.ready.store(0, Ordering::Relaxed);
            slot.domain.store(domain.0, Ordering::Relaxed);
            let generation = slot.generation.fetch_add(1, Ordering::Release) + 1;
            self.next_qp.store(number as u32 + 1, Ordering::Relaxed);
            Some(QpId { number: number as u32, generation })
        })
    }

    pub(crate) fn remove_qp(&self, qp: QpId) {
        self.qps[qp.number as usize].generation.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn set_qkey(&self, qp: QpId, qkey: u32) {
        self.qps[qp.number as usize].qkey.store(qkey, Ordering::Relaxed);
    }

    pub(crate) fn set_ready(&self, qp: QpId) {
        self.qps[qp.number as usize].ready.store(1, Ordering::Release);
    }

    pub(crate) fn qp(&self, number: u32, qkey: u32) -> Option<QpId> {
        let slot = self.qps.get(number as usize)?;
        let generation = slot.generation.load(Ordering::Acquire);
        let ready = slot.ready.load(Ordering::Acquire) != 0;
        let fits = slot.qkey.load(Ordering::Relaxed) == qkey;
        (generation % 2 == 1 && ready && fits).then_some(QpId { number, generation })
    }

    pub(crate) fn domain_of(&self, qp: QpId) -> Domain {
        Domain(self.qps[qp.number as usize].domain.load(Ordering::Relaxed))
    }

    pub(crate) fn add_ah(&self, domain: Domain, gid: Gid, most: usize) -> Option<u32> {
        self.lock.with(|| {
            let known = self.ah(domain, gid);
            let ahs = &self.ahs[..most.min(MAX_AHS)];
            let free = || ahs.iter().position(|slot| slot.users.load(Ordering::Relaxed) == 0);
            let number = known.map(|ah| ah as usize).or_else(free)?;
            let slot = &self.ahs[number];
            for (half, value) in slot.gid.iter().zip(gid.halves()) {
                half.store(value, Ordering::Relaxed);
            }
            slot.domain.store(domain.0, Ordering::Relaxed);
            slot.users.fetch_add(1, Ordering::Release);
            self.ahs_used.fetch_max(number as u32 + 1, Ordering::Release);
            Some(number as u32)
        })
    }

    pub(crate) fn remove_ah(&self, number: u32) {
        self.ahs[number as usize].users.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn ah(&self, domain: Domain, gid: Gid) -> Option<u32> {
        let used = self.ahs_used.load(Ordering::Acquire) as usize;
        let halves = gid.halves();
        let found = self.ahs[..used].iter().position(|slot| {
            slot.users.load(Ordering::Acquire) > 0
                && slot.domain.load(Ordering::Relaxed) == domain.0
                && slot
                    .gid
                    .iter()
                    .zip(halves)
                    .all(|(half, value)| half.load(Ordering::Relaxed) == value)
        });
        found.map(|at| at as u32)
    }

    pub(crate) fn add_mr(&self, region: &Region) -> Option<u32> {
        self.lock.with(|| {
            let from = self.next_mr.load(Ordering::Relaxed) as usize;
            let at = (from..from + MAX_MRS)
                .map(|at| at % MAX_MRS)
                .find(|&at| self.mrs[at].key.load(Ordering::Relaxed) == 0)?;
            let slot = &self.mrs[at];
            self.next_mr.store(at as u32 + 1, Ordering::Relaxed);
            slot.process.store(region.process, Ordering::Relaxed);
            slot.access.store(region.access, Ordering::Relaxed);
            slot.domain.store(region.domain.0, Ordering::Relaxed);
            slot.device.store(region.device.into(), Ordering::Relaxed);
            slot.iova.store(region.iova, Ordering::Relaxed);
            slot.address.store(region.address, Ordering::Relaxed);
            slot.length.store(region.length, Ordering::Relaxed);
            // A key that was given back does not come again soon, and never is zero.
            let generation = slot.generation.fetch_add(1, Ordering::Relaxed) % 0x1fff + 1;
            let key = generation << MR_BITS | at as u32;
            slot.key.store(key, Ordering::Release);
            Some(key)
        })
    }

    pub(crate) fn remove_mr(&self, key: u32) {
        self.mrs[key as usize % MAX_MRS].key.store(0, Ordering::Release);
    }

    pub(crate) fn mr(&self, key: u32) -> Option<Region> {
        let slot = &self.mrs[key as usize % MAX_MRS];
        let there = || key != 0 && slot.key.load(Ordering::Acquire) == key;
        there()
            .then(|| Region {
                process: slot.process.load(Ordering::Relaxed),
                access: slot.access.load(Ordering::Relaxed),
                domain: Domain(slot.domain.load(Ordering::Relaxed)),
                device: slot.device.load(Ordering::Relaxed) != 0,
                iova: slot.iova.load(Ordering::Relaxed),
                address: slot.address.load(Ordering::Relaxed),
                length: slot.length.load(Ordering::Relaxed),
            })
            // Still: what was read is all of one registration.
            .filter(|_| there())
    }
}
