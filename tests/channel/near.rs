//! Memory of PEs of this host that kernels reach by themselves: where, what they store there, and
//! what is left when it is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda::{Export, ExportedMemory, Memory as Examined, PeerMemory, PeerMemoryError};
use nvshmem_transport_libfabric::bootstrap::{Bootstrap, BootstrapError, TcpBootstrap};
use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, ChannelError, MemoryLocation};

use super::traffic::{AT_LEAST, bootstrap, options, producer};
use launcher::Place;
use test_jobs::memory::{Heap, Kind, Memory, device};

const LEN: usize = 64 << 10;

/// A bootstrap, and how much memory of other processes this one had open when the PEs met last: who
/// has met the others may free its own.
struct Watched {
    bootstrap: Box<TcpBootstrap>,
    kind: Kind,
    open: Arc<AtomicU64>,
    /// PEs do not meet at a barrier any more.
    parted: Arc<AtomicBool>,
}

impl Bootstrap for Watched {
    fn n_pes(&self) -> u32 {
        self.bootstrap.n_pes()
    }

    fn me(&self) -> u32 {
        self.bootstrap.me()
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        let open = if self.kind == Kind::Host { 0 } else { device().opened() };
        self.open.store(open, Ordering::Relaxed);
        self.bootstrap.allgather(mine)
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        if self.parted.load(Ordering::Relaxed) {
            return Err(BootstrapError::Shape { me: 0, n_pes: 0 });
        }
        self.allgather(&[0]).map(|_| ())
    }
}

/// Memory that PEs have agreed on, and did not meet behind: others may have it mapped.
pub(crate) fn unmet(place: &Place) {
    let (open, parted) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let kind = Kind::Device;
    let watched = Watched { bootstrap: bootstrap(place), kind, open, parted: Arc::clone(&parted) };
    let _bound = device().bind();
    let channel = Channel::new(Box::new(watched), &options()).unwrap();
    // Of the first memory of a device, what stages stays.
    channel.release(channel.allocate_symmetric_on(MemoryLocation::Device, LEN).unwrap()).unwrap();
    let before = device().used();
    parted.store(true, Ordering::Relaxed);
    let failed = channel.allocate_symmetric_on(MemoryLocation::Device, LEN);
    assert!(matches!(failed, Err(ChannelError::Bootstrap(_))), "{failed:?}");
    assert!(device().used() >= before + LEN as u64, "it is not freed");
    assert_eq!(device().opened(), 0, "what was mapped here is closed");
}

/// Two regions in one allocation of each PE, neither at its start; the first is released before the
/// second is used.
pub(crate) fn near(place: &Place) {
    let n = place.n_pes as usize;
    let kinds: Vec<Kind> = (0..n).map(Kind::of_pe).collect();
    let (me, kind) = (place.me as usize, kinds[place.me as usize]);
    let is_apart = std::env::var_os("FAKE_CUDA_SHARING").is_some();
    let open_then = Arc::new(AtomicU64::new(0));
    let (open, parted) = (Arc::clone(&open_then), Arc::default());
    let watched = Watched { bootstrap: bootstrap(place), kind, open, parted };
    let channel = Channel::new(Box::new(watched), &options()).unwrap();
    let memory = Memory::new(kind, 3 * LEN);
    for at in [LEN, 2 * LEN] {
        // SAFETY: freed behind its release.
        unsafe { channel.register_symmetric(memory.at(at), LEN).unwrap() };
    }
    let flags = Heap::of(channel.allocate_symmetric_on(MemoryLocation::Host, 64).unwrap(), 64);
    let p = producer(&channel);
    let reaches =
        |pe: usize| pe == me || kind != Kind::Host && kinds[pe] != Kind::Host && !is_apart;
    for (round, at) in [LEN, 2 * LEN].into_iter().enumerate() {
        let [first, last] = [at, at + LEN - 8].map(|at| memory.at(at));
        for (pe, theirs) in kinds.iter().enumerate() {
            let there = p.ptr(first, pe as i32);
            assert_eq!(!there.is_null(), reaches(pe), "{kind:?} to {theirs:?} of PE {pe}");
            assert_eq!(channel.peer_ptr(first, pe as u32), there);
            assert_eq!(pe == me, there == first);
            if there.is_null() {
                continue;
            }
            assert_eq!(p.ptr(last, pe as i32), there.wrapping_add(LEN - 8));
            let store = |offset: usize, value: u64| {
                let word = match pe == me {
                    true => memory.here(at + offset, 8),
                    false => device().look(there.wrapping_add(offset), 8),
                };
                // SAFETY: a word of the region, which other processes store as well.
                let word = unsafe { AtomicU64::from_ptr(word.cast()) };
                word.store(value + 10 * round as u64 + me as u64, Ordering::Release);
            };
            store(8 * me, 100);
            // Of who is behind alone.
            if me == (pe + 1) % n {
                store(LEN - 8, 200);
            }
            assert_eq!(p.signal(flags.at(8 * pe).cast(), 1, c::NLF_KIND_ADD, pe as i32), 0);
        }
        let from = (0..n).filter(|pe| *pe == me || reaches(*pe)).collect::<Vec<_>>();
        let due = (from.len() * (round + 1)) as u64;
        // SAFETY: a word of the heap.
        assert_eq!(unsafe { p.wait_until(flags.here(8 * me, 8).cast(), AT_LEAST, due) }, 0);
        for pe in from {
            let found = memory.word(at + 8 * pe).load(Ordering::Acquire);
            assert_eq!(found, 100 + 10 * round as u64 + pe as u64, "of PE {pe}");
            if pe == (me + 1) % n {
                let found = memory.word(at + LEN - 8).load(Ordering::Acquire);
                assert_eq!(found, 200 + 10 * round as u64 + pe as u64);
            }
        }
        // What is not symmetric, not registered or of no PE.
        for (addr, pe) in
            [(memory.at(0), 0), (memory.at(3 * LEN), 0), (first, n as i32), (first, -1)]
        {
            assert!(p.ptr(addr, pe).is_null());
        }
        assert!(channel.peer_ptr(first, n as u32).is_null());
        let theirs: Vec<_> = (0..n)
            .filter(|pe| *pe != me && reaches(*pe))
            .map(|pe| p.ptr(first, pe as i32))
            .collect();
        channel.release(first).unwrap();
        assert!((0..n).all(|pe| p.ptr(first, pe as i32).is_null()), "released");
        let is_last = round == 1;
        for there in theirs {
            // By a handle, the whole allocation is mapped once for both.
            let stays = !is_last && device().has(there as usize);
            assert_eq!(device().has(there as usize), stays);
        }
        if is_last && kind != Kind::Host {
            assert_eq!(device().opened(), 0, "all are closed");
        }
        if is_last {
            assert_eq!(
                open_then.load(Ordering::Relaxed),
                0,
                "before the PEs meet for the last time"
            );
        }
    }
    drop(memory);
    // What is left goes with the channel; it is freed behind that.
    let kept = Memory::new(kind, LEN);
    // SAFETY: see above.
    unsafe { channel.register_symmetric(kept.at(0), LEN).unwrap() };
    if kind != Kind::Host {
        let others = kinds.iter().filter(|kind| **kind != Kind::Host).count() - 1;
        assert_eq!(device().opened(), if is_apart { 0 } else { others as u64 });
    }
    assert_eq!(p.ptr(kept.at(0), me as i32), kept.at(0));
    channel.stop().unwrap();
    assert!(kind == Kind::Host || device().opened() == 0, "all are closed");
    assert_eq!(open_then.load(Ordering::Relaxed), 0, "before the PEs meet for the last time");
}

/// A PE that tells more of its memory than there is.
pub(crate) fn lies(place: &Place) {
    let mut meeting = test_jobs::bootstrap(place);
    let memory = Memory::new(Kind::Own, LEN);
    let (context, _bound) = (&device().context, device().bind());
    let examined = Examined::examine(context.driver(), memory.at(4096) as usize, 4096).unwrap();
    let Examined::Device(range) = examined else { panic!("{examined:?}") };
    let told = ExportedMemory::of(&range).unwrap();
    assert_eq!((told.allocation, told.offset), (LEN as u64, 4096));
    let Export::Handle(mine) = told.export else { panic!("{told:?}") };
    let other = 1 - place.me as usize;
    let all = meeting.allgather(&mine).unwrap();
    let theirs: [u8; 64] = all[64 * other..][..64].try_into().unwrap();
    let open = |handle, offset, len| {
        let export = Export::Handle(handle);
        PeerMemory::open(context, &ExportedMemory { export, allocation: u64::MAX, offset }, len)
    };
    let right = open(theirs, 4096, LEN - 4096).unwrap();
    for (offset, len) in [(4097, LEN - 4096), (LEN as u64, 1), (u64::MAX, 2), (0, usize::MAX)] {
        let refused = open(theirs, offset, len).unwrap_err();
        assert!(matches!(refused, PeerMemoryError::Bounds { .. }), "{refused}");
    }
    assert_eq!(device().opened(), 1, "what was refused is closed");
    // What is no handle, and this process' own, are the driver's to refuse.
    for handle in [[0x5a; 64], mine] {
        assert!(matches!(open(handle, 0, 8), Err(PeerMemoryError::Cuda(_))));
    }
    drop(right);
    assert_eq!(device().opened(), 0);
    // By a descriptor, which may be opened in this process, too.
    let heap = Memory::new(Kind::Device, LEN);
    let examined = Examined::examine(context.driver(), heap.at(8) as usize, 8).unwrap();
    let Examined::Device(range) = examined else { panic!("{examined:?}") };
    let mut told = ExportedMemory::of(&range).unwrap();
    let right = PeerMemory::open(context, &told, 16).unwrap();
    assert_ne!(right.addr(), heap.at(8) as usize);
    // SAFETY: a word of the mapping.
    unsafe { device().look(right.addr() as *mut u8, 8).cast::<u64>().write(77) };
    assert_eq!(heap.word(8).load(Ordering::Acquire), 77);
    let all = told.allocation;
    for (allocation, offset, len) in [(all, all, 1), (all, u64::MAX, 2), (all, 8, all as usize)] {
        (told.allocation, told.offset) = (allocation, offset);
        let refused = PeerMemory::open(context, &told, len);
        assert!(matches!(refused, Err(PeerMemoryError::Bounds { .. })), "{refused:?}");
    }
    (told.allocation, told.offset) = (2 * all, 0);
    assert!(matches!(PeerMemory::open(context, &told, 8), Err(PeerMemoryError::Cuda(_))));
    drop(right);
    assert_eq!(device().opened(), 0);
    meeting.barrier().unwrap();
}
