use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::port::copies::Stager;
use crate::port::{Access, MemoryPort, PortError, Registered};
use crate::wire::handle::{HandleBytes, HandleView};

const BASE: usize = 1 << 20;
const LEN: usize = 4096;

/// Registers everything, as memory of the kind that is set.
struct Memory {
    reach: Mutex<Reach>,
    closes: AtomicBool,
    /// Held while the device is waited for.
    device: Mutex<()>,
}

impl Memory {
    fn table() -> Arc<RegionTable<Self>> {
        let (reach, closes) = (Mutex::new(Reach::Direct), AtomicBool::new(true));
        let memory = Self { reach, closes, device: Mutex::new(()) };
        RegionTable::new(memory, Pe(0))
    }
}

impl MemoryPort for Memory {
    type Region = ();

    fn register(&self, _: usize, len: usize, _: Access) -> Result<Registered<()>, PortError> {
        if len == 13 {
            let text = String::from("no memory");
            return Err(PortError { call: "fi_mr_regattr", code: 12, text });
        }
        // As many rails as the length says, if it is short.
        let keys = vec![7; if len <= MAX_RAILS + 1 { len } else { 1 }];
        let registered = Registered::without_descs((), keys, Addressing::Virtual);
        Ok(match *lock(&self.reach) {
            Reach::Staged => Registered::staged(()),
            reach => Registered { reach, ..registered },
        })
    }

    fn take_stager(&self) -> Option<Stager> {
        drop(lock(&self.device));
        None
    }

    fn close(&self, (): &mut ()) -> Result<(), PortError> {
        if self.closes.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(PortError { call: "fi_close", code: 16, text: String::from("busy") })
    }
}

fn id(handle: &HandleBytes) -> u32 {
    HandleView::check(handle).unwrap().region()
}

fn lane(table: &RegionTable<Memory>) -> LaneRegions {
    let mut regions = LaneRegions::new(table.directory(), LaneKind::Proxy, false);
    regions.sync();
    regions
}

/// A registering thread may wait for kernels, and these for the proxy thread.
#[test]
fn provision_waits_for_no_registration() {
    let table = Memory::table();
    *lock(&table.memory().reach) = Reach::Staged;
    let busy = lock(&table.memory().device);
    let (told, answer) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| table.register(BASE, LEN, Access::LocalAndRemote));
        while table.installing.try_lock().is_ok() {
            thread::yield_now();
        }
        scope.spawn(|| told.send(table.provide((BASE, 8))));
        let answer = answer.recv_timeout(Duration::from_secs(5));
        drop(busy);
        assert_eq!(answer, Ok(Ok(())));
    });
}

#[test]
fn null_is_no_place() {
    assert!(Range::ALL.has(1, 8) && Range::ALL.has(usize::MAX - 8, 8));
    assert!(!Range::ALL.has(0, 1) && !Range::ALL.has(0, 8));
    assert!(!Range::NONE.has(0, 1) && !Range::NONE.has(8, 8));
}

#[test]
fn peers_stay_inside_remote_regions() {
    for (access, reach) in [
        (Access::LocalAndRemote, Reach::Direct),
        (Access::LocalAndRemote, Reach::Staged),
        (Access::Local, Reach::Direct),
    ] {
        let table = Memory::table();
        *lock(&table.memory().reach) = reach;
        let id = id(&table.register(BASE, LEN, access).unwrap());
        let mut lane = lane(&table);
        for (offset, len, fits) in [
            (0, LEN, true),
            (LEN, 0, true),
            (LEN - 8, 8, true),
            (LEN - 7, 8, false),
            (LEN, 1, false),
            (LEN + 1, 0, false),
            (0, LEN + 1, false),
        ] {
            let spot = RegionAddr { region: id, offset: offset as u64 };
            let at = (fits && access.is_remote()).then_some(BASE + offset);
            let target = at.filter(|_| reach == Reach::Direct);
            assert_eq!(lane.target(spot, len), target, "{offset} {len}");
            assert_eq!(lane.locate(spot, len).ok().map(|place| place.addr), at);
        }
        // Neither the place beside it, nor a region that had its place before.
        for id in [id + 1, id ^ 1 << INDEX_BITS, id ^ 1 << 31] {
            let spot = RegionAddr { region: id, offset: 0 };
            assert!(lane.locate(spot, 0).is_err() && lane.target(spot, 0).is_none());
        }
    }
}

#[test]
fn too_many_rails_are_refused() {
    let table = Memory::table();
    assert!(table.register(BASE, MAX_RAILS + 1, Access::Local).is_err() && table.is_empty());
    let handle = table.register(BASE, MAX_RAILS, Access::Local).unwrap();
    assert!(!table.is_empty());
    assert_eq!(table.release(&handle), Ok(()));
    assert!(table.is_empty());
    let none = lane(&table).provide_stager((BASE, LEN)).unwrap_err().to_string();
    assert!(none.contains("nothing stages memory here"), "{none}");
}

#[test]
fn unclosed_memory_is_kept() {
    let table = Memory::table();
    let handle = table.register(BASE, LEN, Access::LocalAndRemote).unwrap();
    table.memory().closes.store(false, Ordering::Relaxed);
    for _ in 0..2 {
        let why = table.release(&handle).unwrap_err();
        assert!(matches!(why, EngineError::Unclosed { addr: BASE, len: LEN, .. }), "{why}");
        assert_eq!(table.len(), 1);
        let spot = RegionAddr { region: id(&handle), offset: 0 };
        assert!(lane(&table).locate(spot, 8).is_err(), "messages name it no more");
    }
    // Nor is its place another's meanwhile.
    let other = table.register(BASE, LEN, Access::Local).unwrap();
    assert_ne!(index_of(id(&other)), index_of(id(&handle)));
    table.memory().closes.store(true, Ordering::Relaxed);
    assert_eq!(table.release(&handle), Ok(()));
    assert_eq!(table.release(&handle), Err(HandleError::Stale.into()));
    assert_eq!(table.len(), 1);
    let failed = table.register(BASE, 13, Access::Local).unwrap_err();
    assert!(matches!(failed, EngineError::Register { no_memory: true, .. }), "{failed:?}");
}

#[test]
fn impossible_regions_are_refused() {
    for (addr, len) in [(BASE, 0), (0, 8), (usize::MAX, 2)] {
        let failed = Memory::table().register(addr, len, Access::Local).unwrap_err();
        let why = HandleError::Region { base: addr as u64, len: len as u64 }.to_string();
        assert_eq!(failed, EngineError::Register { addr, len, why, no_memory: false });
    }
}

/// A region of a test: its offset, its length, and its kind.
type Kinded = (usize, usize, Reach);

fn check(lane: &mut LaneRegions, needs_desc: bool, regions: &[Kinded], at: usize, len: usize) {
    let overlaps = |&&(base, size, _): &&Kinded| base < at + len && at < base + size;
    let holds = |&&(base, size, _): &&Kinded| base <= at && at + len <= base + size;
    let is_device = regions.iter().filter(overlaps).any(|(.., reach)| *reach != Reach::Direct);
    let by_fabric = regions.iter().filter(holds).any(|(.., reach)| *reach != Reach::Staged);
    let case = format!("{len} bytes at {at} of {regions:?}");
    let addr = BASE + at;
    let found = lane.lookup(addr, len);
    assert_eq!((found.device, found.fabric.is_some()), (is_device, by_fabric), "{case}");
    assert_eq!(found.whole, regions.iter().any(|region| holds(&region)), "{case}");
    lane.find(addr, len, needs_desc);
    let fabric = lane.recent_desc(addr, len, RailId(0)).is_some();
    assert!(!lane.is_known_cpu_memory(addr, len) || !is_device, "{case}: touches a device");
    assert!(!by_fabric || fabric, "{case}");
    assert!(!fabric || by_fabric || !needs_desc && !is_device, "{case}");
}

/// However regions of any kinds overlap, the processor touches no byte that one of them says is a
/// device's, and the fabric finds each byte that one of them holds.
#[test]
fn overlapping_regions_of_all_kinds() {
    const KINDS: [Reach; 3] = [Reach::Direct, Reach::Fabric, Reach::Staged];
    // Equal, inside, at the head, at the tail, across both ends, beside both ends.
    const SECOND: [(usize, usize); 8] =
        [(64, 128), (96, 32), (64, 32), (160, 32), (32, 64), (160, 64), (32, 32), (192, 32)];
    let thirds: Vec<_> = std::iter::once(None).chain(SECOND.into_iter().map(Some)).collect();
    let kinds = KINDS.into_iter().flat_map(|one| KINDS.map(|two| (one, two)));
    let seconds = SECOND.into_iter().flat_map(|two| thirds.iter().map(move |three| (two, *three)));
    let cases = kinds.flat_map(|kinds| seconds.clone().map(move |places| (kinds, places)));
    for (((one, two), (second, third)), reversed) in
        cases.flat_map(|case| [(case, false), (case, true)])
    {
        let mut regions = vec![(64, 128, one), (second.0, second.1, two)];
        regions.extend(third.map(|(base, len)| (base, len, KINDS[(base / 32 + len / 32) % 3])));
        if reversed {
            regions.reverse();
        }
        let table = Memory::table();
        let mut ids = Vec::new();
        for (base, len, reach) in &regions {
            *lock(&table.memory().reach) = *reach;
            let handle = table.register(BASE + base, *len, Access::LocalAndRemote).unwrap();
            ids.push(id(&handle));
        }
        let (mut with_descs, mut without) = (lane(&table), lane(&table));
        for (at, len) in (16..240).step_by(16).flat_map(|at| [1, 16, 40, 128].map(|len| (at, len)))
        {
            check(&mut with_descs, true, &regions, at, len);
            check(&mut without, false, &regions, at, len);
        }
        // By the id in a message of a peer, whichever of the regions that names.
        for (&(base, size, reach), id) in regions.iter().zip(ids) {
            for (offset, len) in [(0, 8), (size - 8, 8), (0, size)] {
                let spot = RegionAddr { region: id, offset: offset as u64 };
                let (at, addr) = (base + offset, BASE + base + offset);
                let touches = |of: usize, to: usize| {
                    let overlaps = |(base, size, _): &&Kinded| *base < to && of < base + size;
                    regions.iter().filter(overlaps).any(|(.., reach)| *reach != Reach::Direct)
                };
                let is_host = !touches(at, at + len);
                let place = with_descs.locate(spot, len).unwrap();
                let by_cpu = place.reach == Reach::Direct;
                assert_eq!((place.addr, by_cpu), (addr, is_host && reach == Reach::Direct));
                let target = (!touches(base, base + size)).then_some(addr);
                assert_eq!(with_descs.target(spot, len), target, "{regions:?}");
            }
        }
    }
}
