//! Instructions of the engine for a put and a get, by what local memory it is, over a fabric that
//! does nothing: memory that needs no look, memory whose descriptor is wanted, and memory of a
//! device that the fabric reaches.

use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::copies::Reach;
use engine::port::{Access, Direction};
use engine::request::{LocalSide, Request};
use engine::state::batch::Batch;
use engine::state::regions::RegionTable;
use engine::wire::handle::HandleBytes;
use nvshmem_sim::BoxError;

use super::null::{Null, of_peer};
use super::{Options, sections};
use crate::harness::report::Report;
use nvshmem_sim::PrivateDir;

/// What [`PART`](crate::suites::channel::PART) says for the process that is counted.
pub(super) const NAME: &str = "instructions-local";

/// Operations between two polls.
const BATCH: u64 = 32;

/// Operations of the two sections of each.
const LENGTHS: [u64; 2] = [10 * BATCH, 110 * BATCH];

const BYTES: usize = 8;

/// The local memories, how they are reached, and whether their descriptors are needed.
const MEMORIES: [(&str, Reach, bool); 3] = [
    ("host", Reach::Direct, false),
    ("described", Reach::Direct, true),
    ("device", Reach::Fabric, true),
];

/// The operations, in the order of their sections.
const OPERATIONS: [(&str, Direction); 2] = [("put", Direction::Write), ("get", Direction::Read)];

#[inline(never)]
fn repeat(
    lane: &mut Lane<Null>,
    direction: Direction,
    handle: &HandleBytes,
    addr: usize,
    count: u64,
) -> Result<(), BoxError> {
    for number in 1..=count {
        let request = Request {
            direction,
            pe: Pe(1),
            remote_handle: handle,
            remote_addr: addr as u64,
            local: LocalSide::Memory(addr + 64),
            len: BYTES,
        };
        if lane.start_fast(request, Batch::NONE).is_err() {
            return Err("an operation was not started at once".into());
        }
        if number % BATCH == 0 {
            lane.progress()?;
        }
    }
    Ok(())
}

/// The process that is counted.
pub(super) fn process() -> Result<(), BoxError> {
    let memory = vec![0_u64; 64];
    let (base, len) = (memory.as_ptr() as usize, size_of_val(&memory[..]));
    for (_, reach, needs_desc) in MEMORIES {
        let regions = RegionTable::new(Null::reaching(reach, needs_desc), Pe(0));
        let handle = of_peer(Pe(1), &regions.register(base, len, Access::LocalAndRemote)?)?;
        let mut lane = Null::reaching(reach, needs_desc).open(&regions, 2);
        // What is opened and looked up at first use.
        let get = Request {
            direction: Direction::Read,
            pe: Pe(1),
            remote_handle: &handle,
            remote_addr: base as u64,
            local: LocalSide::Memory(base),
            len: BYTES,
        };
        for _ in 0..2 {
            lane.start(&get)?;
        }
        lane.quiet(get.pe)?;
        for (_, direction) in OPERATIONS {
            sections(LENGTHS, |length| repeat(&mut lane, direction, &handle, base, length))?;
        }
    }
    Ok(())
}

/// Counts, and keeps the figures.
///
/// # Errors
/// No valgrind, or files that are not understood.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = PrivateDir::new("nvshmem-bench")?;
    let callgrind = super::process(options, &dir, NAME)?;
    for (of, (memory, ..)) in MEMORIES.into_iter().enumerate() {
        for (at, (operation, _)) in OPERATIONS.into_iter().enumerate() {
            let section = 2 * (of * OPERATIONS.len() + at);
            let cost = callgrind.cost(section, LENGTHS, |_| true)?;
            println!("{operation} of {memory} memory {:>20.1}", cost.ours);
            let name = format!("engine_{operation}_instructions_{memory}");
            report.push(name, cost.ours, "instructions");
        }
    }
    Ok(())
}
