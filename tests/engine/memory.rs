//! What a lane allocates, counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use engine::Watchdog;
use engine::lane::LaneConfig;
use engine::rails::paths::{Path, PathTable};
use engine::regions::RegionTable;
use engine::wire::handle::Handle;
use engine::wire::immediate::ImmediateCodec;
use sim_fabric::lane_config;

use crate::job::cookie;
use crate::prelude::*;

/// The system's allocator, which counts what each thread has.
struct Counting;

thread_local! {
    /// Bytes in use that this thread has allocated. Wraps where it frees what others have.
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract. The
// counters have no destructor and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get().wrapping_add(layout.size()));
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: `at` came from `System.alloc` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// PEs of the jobs that show what a peer costs that is never talked to.
const FEW: u32 = 4096;
const MANY: u32 = 65_536;
const PEERS: u32 = 10_000;
const RAILS: u8 = 4;

#[test]
fn silent_peers_cost_little_memory() {
    let fabric = FakeFabric::new(1, 2, CALM);
    let regions = RegionTable::new(fabric.memory(Pe(1), RAILS), Pe(1));
    let base = fabric.alloc(Pe(1), 4096);
    let handle = regions.register(base, 4096, Access::LocalAndRemote).unwrap();
    let shape = Shape { rails: RAILS, depth: 256, needs_desc: false, ..PLAIN };

    let lane_bytes = |n_pes: u32| {
        let before = BYTES.get();
        let port = fabric.port(Pe(0), shape.limits());
        // All PEs share PE 1's memory: what is counted is the lane, not the fabric.
        let path =
            |rail| Path { to: FakeFabric::address(Pe(1), RailId(rail)), remote: RailId(rail) };
        let all: Vec<Path> = (0..n_pes).flat_map(|_| (0..RAILS).map(path)).collect();
        let paths = PathTable::new(&all, usize::from(RAILS));
        drop(all);
        let watchdog = Watchdog::new(Some(Duration::from_secs(10)), None);
        let config = LaneConfig { watchdog, ..lane_config(Pe(0), paths, regions.directory()) };
        let lane = Lane::new(port, config);
        (lane, BYTES.get() - before)
    };

    let (small, small_bytes) = lane_bytes(FEW);
    let (many, many_bytes) = lane_bytes(MANY);
    drop((small, many));
    let per_peer = (many_bytes - small_bytes) as f64 / f64::from(MANY - FEW);
    println!("MEASURE bytes_per_silent_peer {per_peer:.1} bytes");
    assert!(per_peer <= 16.0, "a peer never talked to costs {per_peer} bytes");
    let (mut lane, _) = lane_bytes(PEERS);

    // Each PE is made the owner of PE 1's memory.
    let owned_by = |pe| Handle { owner: Pe(pe), ..Handle::decode(&handle).unwrap() }.encode();
    let handles: Vec<_> = (0..PEERS).map(owned_by).collect();
    let put = |lane: &mut Lane<_>, pe: u32| {
        let request = Request {
            direction: Direction::Write,
            pe: Pe(pe),
            remote_handle: &handles[pe as usize],
            remote_addr: base as u64,
            local: LocalSide::Value(7),
            len: 8,
        };
        lane.start(&request).unwrap();
    };
    let before = BYTES.get();
    for pe in 0..PEERS {
        put(&mut lane, pe);
        lane.quiet(Pe(pe)).unwrap();
    }
    let active = (BYTES.get() - before) / PEERS as usize;
    println!("a peer talked to: {active} bytes more (limit: 1024 per rail)");
    assert!(active <= 1024 * usize::from(RAILS), "{active}");

    // A counted put from each of them, whose signal has not come.
    let before = BYTES.get();
    for pe in 0..PEERS {
        let codec = ImmediateCodec::new(cookie(), Pe(pe), PEERS, 8);
        fabric.forge_immediate_data(Pe(0), RailId(0), codec.encode(Pe(0), Tag::FIRST));
        lane.progress().unwrap();
    }
    let counts = (BYTES.get() - before) / PEERS as usize;
    println!("a peer whose segments are counted: {counts} bytes more");
    assert!(counts > 0 && active + counts <= 1024 * usize::from(RAILS), "{active} + {counts}");

    // Once a queue has been as long, queueing allocates nothing. The fake does for what is posted;
    // to a peer that is stalled, nothing is.
    let mut queue = || {
        fabric.stall(Pe(1));
        put(&mut lane, 0);
        lane.fence(Pe(0)).unwrap();
        let calls = CALLS.get();
        for _ in 0..200 {
            put(&mut lane, 0);
            lane.fence(Pe(0)).unwrap();
        }
        let calls = CALLS.get() - calls;
        fabric.resume(Pe(1));
        lane.quiet(Pe(0)).unwrap();
        calls
    };
    queue();
    assert_eq!(queue(), 0, "queueing a put allocated");
}
