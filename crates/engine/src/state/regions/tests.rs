//! Tests of the registered regions.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::*;
use crate::fake::{FakeFabric, FakeMemory, FakeRegion, Script};
use crate::ids::{LaneKind, RailId};
use crate::wire::message::Spot;

const LEN: usize = 4096;

fn region(access: Access, is_staged: bool) -> (Arc<RegionTable<FakeMemory>>, usize, HandleBytes) {
    let fabric = FakeFabric::new(1, 2, Script::default());
    let table = RegionTable::new(fabric.memory(Pe(0), 2), Pe(0));
    let reach = if is_staged { Reach::Staged } else { Reach::Direct };
    let addr = fabric.alloc_reached(Pe(0), LEN, reach);
    let handle = table.register(addr, LEN, access).unwrap();
    (table, addr, handle)
}

#[test]
fn a_peer_finds_what_lies_inside_of_a_region_that_it_may_use() {
    for (access, is_staged) in
        [(Access::LocalAndRemote, false), (Access::LocalAndRemote, true), (Access::Local, false)]
    {
        let (table, addr, handle) = region(access, is_staged);
        let slot = HandleView::check(&handle).unwrap().slot();
        let mut cache = RegionCache::new(table.index(), LaneKind::Proxy);
        cache.sync();
        assert_eq!(cache.has_stager(), is_staged);
        let is_remote = access != Access::Local;
        for (offset, len, fits) in [
            (0, LEN, true),
            (LEN, 0, true),
            (LEN - 8, 8, true),
            (LEN - 7, 8, false),
            (LEN, 1, false),
            (LEN + 1, 0, false),
            (0, LEN + 1, false),
        ] {
            let spot = Spot { slot, offset: offset as u64 };
            let at = (fits && is_remote).then_some(addr + offset);
            assert_eq!(cache.place(spot, len), at.filter(|_| !is_staged), "{offset} {len}");
            assert_eq!(cache.locate(spot, len).ok().map(|place| place.addr), at);
        }
        // Neither the place beside it, nor a region that had its place before.
        for slot in [slot + 1, slot ^ 1 << PLACE_BITS, slot ^ 1 << 31] {
            let spot = Spot { slot, offset: 0 };
            assert!(cache.locate(spot, 0).is_err() && cache.place(spot, 0).is_none());
        }
        for at in [addr, addr + 1, addr + LEN - 1] {
            assert_eq!(cache.reach(at, 1) == Reach::Direct, !is_staged);
        }
        assert_eq!(
            (cache.reach(addr - 1, 1), cache.reach(addr + LEN, 1)),
            (Reach::Direct, Reach::Direct)
        );
        if is_staged {
            assert!(cache.take_stager().is_some() && !cache.has_stager());
        }
    }
}

#[test]
fn local_memory_lies_inside_of_its_region() {
    let (table, addr, _) = region(Access::Local, false);
    let mut cache = RegionCache::new(table.index(), LaneKind::Proxy);
    cache.sync();
    for (at, len, fits) in [
        (addr, LEN, true),
        (addr + LEN - 1, 1, true),
        (addr + LEN, 1, false),
        (addr - 1, 1, false),
        (addr + LEN + 1, 0, false),
    ] {
        assert_eq!(cache.desc_at(at, len, RailId(0)).is_some(), fits);
    }
}

#[test]
fn local_memory_is_found_in_whichever_region_holds_all_of_it() {
    let (table, addr, _) = region(Access::Local, false);
    let mut cache = RegionCache::new(table.index(), LaneKind::Proxy);
    for (at, len) in [(1024, 64), (2048, 8), (64, 256)] {
        table.register(addr + at, len, Access::Local).unwrap();
    }
    cache.sync();
    for (at, len, base) in [
        (0, LEN, 0),
        (1024, 64, 1024),
        (1024, 65, 0),
        (1080, 9, 0),
        (1100, 1, 0),
        (2050, 8, 0),
        (100, 64, 64),
        (319, 2, 0),
        (LEN - 1, 1, 0),
    ] {
        let view = cache.registered(addr + at, len).unwrap().unwrap();
        assert_eq!(view.base, addr + base, "{len} bytes at {at}");
        assert!(cache.is_registered(addr + at, len));
    }
    for (at, len) in [(0, LEN + 1), (1024, LEN), (LEN - 1, 2)] {
        let fault = cache.registered(addr + at, len).err();
        assert!(matches!(fault, Some(HandleError::Outside { .. })), "{len} bytes at {at}");
        assert!(!cache.is_registered(addr + at, len));
    }
    for at in [addr - 1, addr + LEN, addr + (1 << 30), 0, usize::MAX] {
        assert_eq!(cache.registered(at, 1).map(|view| view.is_some()), Ok(false), "{at:#x}");
    }
}

struct Clinging(FakeMemory, AtomicBool);

impl MemoryPort for Clinging {
    type Region = FakeRegion;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<FakeRegion>, PortError> {
        if len == LEN {
            return self.0.register(addr, len, access);
        }
        Err(PortError { call: "fi_mr_regattr", code: 12, text: String::from("no memory") })
    }

    fn close(&self, _: &mut FakeRegion) -> Result<(), PortError> {
        if self.1.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(PortError { call: "fi_close", code: 16, text: String::from("busy") })
    }

    fn reaches_devices(&self) -> bool {
        false
    }
}

#[test]
fn memory_whose_registration_does_not_end_is_not_given_back() {
    let fabric = FakeFabric::new(1, 2, Script::default());
    let table = RegionTable::new(Clinging(fabric.memory(Pe(0), 2), AtomicBool::new(false)), Pe(0));
    let addr = fabric.alloc_reached(Pe(0), LEN, Reach::Direct);
    let handle = table.register(addr, LEN, Access::LocalAndRemote).unwrap();
    let mut cache = RegionCache::new(table.index(), LaneKind::Proxy);
    for _ in 0..2 {
        let why = table.release(&handle).unwrap_err();
        assert!(matches!(why, EngineError::Unclosed { addr: at, len: LEN, .. } if at == addr));
        assert!(why.to_string().contains("busy"), "{why}");
        assert_eq!(table.len(), 1);
        cache.sync();
        let spot = Spot { slot: HandleView::check(&handle).unwrap().slot(), offset: 0 };
        assert!(cache.locate(spot, 8).is_err(), "peers reach it no more by messages");
    }
    // Nor is its slot another's meanwhile.
    let other = table.register(addr, LEN, Access::Local).unwrap();
    let place = |handle| place_of(HandleView::check(handle).unwrap().slot());
    assert_ne!(place(&other), place(&handle));
    table.memory.1.store(true, Ordering::Relaxed);
    assert_eq!(table.release(&handle), Ok(()));
    assert_eq!(table.release(&handle), Err(HandleError::Stale.into()));
    assert_eq!(table.len(), 1);
    // A lack of memory is told apart.
    let failed = table.register(addr, 8, Access::Local).unwrap_err();
    assert!(matches!(failed, EngineError::Register { no_memory: true, .. }), "{failed:?}");
}

struct AnyKind(FakeMemory, Mutex<Reach>);

impl MemoryPort for AnyKind {
    type Region = FakeRegion;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<FakeRegion>, PortError> {
        let registered = self.0.register(addr, len, access)?;
        Ok(match *lock(&self.1) {
            Reach::Staged => Registered::staged(registered.owner),
            reach => Registered { reach, ..registered },
        })
    }

    fn reaches_devices(&self) -> bool {
        false
    }
}

/// A region of a test: its offset, its length, and its kind.
type Kinded = (usize, usize, Reach);

/// Checks each lookup of `len` bytes at `addr`, which begin at offset `at`, against all regions.
fn check_lookups(
    cache: &mut RegionCache,
    needs_desc: bool,
    regions: &[Kinded],
    (addr, at, len): (usize, usize, usize),
) {
    let overlaps = |&&(base, size, _): &&Kinded| base < at + len && at < base + size;
    let holds = |&&(base, size, _): &&Kinded| base <= at && at + len <= base + size;
    let of_device = |&&(.., reach): &&Kinded| reach != Reach::Direct;
    let by_cpu = !regions.iter().filter(overlaps).any(|region| of_device(&region));
    let by_fabric = regions.iter().filter(holds).any(|(.., reach)| *reach != Reach::Staged);
    let is_staged = regions.iter().filter(overlaps).any(|(.., reach)| *reach == Reach::Staged);
    let reach = match (by_cpu, by_fabric, is_staged) {
        (true, ..) => Reach::Direct,
        (false, false, true) => Reach::Staged,
        (false, ..) => Reach::Fabric,
    };
    let case = format!("{len} bytes at {at} of {regions:?}");
    assert_eq!(cache.reach(addr, len), reach, "{case}");
    assert_eq!(cache.is_registered(addr, len), by_fabric, "{case}");
    assert_eq!(cache.desc_at(addr, len, RailId(0)).is_some(), by_fabric, "{case}");
    let (fabric, cpu) = cache.find(addr, len, needs_desc);
    assert!(!cpu || by_cpu, "{case}: the processor would touch a device");
    assert!(!fabric || by_fabric || !needs_desc && by_cpu, "{case}");
    assert!(!by_fabric || fabric, "{case}");
    assert_eq!((cache.is_recent(addr, len), cache.is_loadable(addr, len)), (fabric, cpu), "{case}");
}

/// However regions of any kinds overlap, the processor touches no byte that one of them says is a
/// device's, and the fabric finds each byte that one of them holds.
#[test]
fn overlapping_regions_of_all_kinds() {
    const KINDS: [Reach; 3] = [Reach::Direct, Reach::Fabric, Reach::Staged];
    // Equal, inside, at the head, at the tail, across both ends, beside both ends.
    const SECOND: [(usize, usize); 8] =
        [(64, 128), (96, 32), (64, 32), (160, 32), (32, 64), (160, 64), (32, 32), (192, 32)];
    let fabric = FakeFabric::new(1, 1, Script::default());
    let addr = fabric.alloc_reached(Pe(0), LEN, Reach::Direct);
    let thirds: Vec<Option<(usize, usize)>> =
        std::iter::once(None).chain(SECOND.into_iter().map(Some)).collect();
    let kinds = KINDS.into_iter().flat_map(|one| KINDS.map(|two| (one, two)));
    for (one, two) in kinds {
        for (second, third) in
            SECOND.into_iter().flat_map(|two| thirds.iter().map(move |three| (two, *three)))
        {
            let mut regions = vec![(64, 128, one), (second.0, second.1, two)];
            regions.extend(third.map(|(base, len)| (base, len, KINDS[(base / 32 + len / 32) % 3])));
            for order in [false, true] {
                if order {
                    regions.reverse();
                }
                let table =
                    RegionTable::new(AnyKind(fabric.memory(Pe(0), 1), Mutex::new(one)), Pe(0));
                let new = || RegionCache::new(table.index(), LaneKind::Proxy);
                let (mut cache, mut without_descs) = (new(), new());
                let mut handles = Vec::new();
                for (base, len, reach) in &regions {
                    *lock(&table.memory.1) = *reach;
                    handles
                        .push(table.register(addr + base, *len, Access::LocalAndRemote).unwrap());
                }
                cache.sync();
                without_descs.sync();
                for at in (16..240).step_by(16) {
                    for len in [1, 16, 40, 128] {
                        let place = (addr + at, at, len);
                        check_lookups(&mut cache, true, &regions, place);
                        check_lookups(&mut without_descs, false, &regions, place);
                    }
                }
                // By the slot in a message of a peer, whichever of the regions that names.
                for ((base, size, reach), handle) in regions.iter().zip(&handles) {
                    let slot = HandleView::check(handle).unwrap().slot();
                    for (offset, len) in [(0, 8), (size - 8, 8), (0, *size)] {
                        let spot = Spot { slot, offset: offset as u64 };
                        let place = cache.locate(spot, len).unwrap();
                        let found = (place.addr, place.reach);
                        let at = addr + base + offset;
                        let expected =
                            if *reach == Reach::Direct { cache.reach(at, len) } else { *reach };
                        assert_eq!(found, (at, expected), "{regions:?}");
                        let short = cache.place(spot, len);
                        let is_host = cache.reach(addr + base, *size) == Reach::Direct;
                        assert_eq!(short, is_host.then_some(at), "{regions:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_a_region_is_refused_before_the_fabric_is_asked() {
    let (table, addr, _) = region(Access::Local, false);
    for (addr, len) in [(addr, 0), (0, 8), (usize::MAX, 2)] {
        let failed = table.register(addr, len, Access::Local).unwrap_err();
        let fault = HandleError::Region { base: addr as u64, len: len as u64 };
        let why = fault.to_string();
        assert_eq!(failed, EngineError::Register { addr, len, why, no_memory: false });
    }
}
