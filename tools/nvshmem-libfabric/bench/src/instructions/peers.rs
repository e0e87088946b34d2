//! Instructions of the calls that every job makes all the time, by the number of peers that have
//! been talked to, over a fabric that does nothing. They are to be the same however many there are.

use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::{Access, Direction};
use engine::request::{LocalSide, Request};
use engine::state::regions::RegionTable;
use nvshmem_sim::BoxError;

use super::null::{Null, of_peer};
use super::{Options, sections};
use crate::harness::report::Report;
use nvshmem_sim::PrivateDir;

/// What [`PART`](crate::suites::channel::PART) says for the process that is counted.
pub(super) const NAME: &str = "instructions-peers";

/// Peers that have been talked to.
const FEW: u32 = 8;
const MANY: u32 = 4096;

/// The calls, in the order of their sections.
const CALLS: [&str; 4] = ["progress", "fence", "quiet", "want_acks"];

/// Calls of the two sections of each.
const LENGTHS: [u64; 2] = [100, 1100];

/// The PE that is fenced and waited for.
const PEER: Pe = Pe(1);

/// A lane that has put a word to each of so many peers.
fn lane(peers: u32, memory: &[u64]) -> Result<Lane<Null>, BoxError> {
    let regions = RegionTable::new(Null::new(), Pe(0));
    let (base, len) = (memory.as_ptr() as usize, size_of_val(memory));
    let own = regions.register(base, len, Access::LocalAndRemote)?;
    let mut lane = Null::lane(&regions, peers + 1);
    for pe in (1..=peers).map(Pe) {
        let handle = of_peer(pe, &own)?;
        let local = LocalSide::Value(1);
        let (direction, remote_handle, remote_addr) = (Direction::Write, &handle, base as u64);
        lane.start(&Request { direction, pe, remote_handle, remote_addr, local, len: 8 })?;
        lane.quiet(pe)?;
    }
    Ok(lane)
}

#[inline(never)]
fn repeat(lane: &mut Lane<Null>, call: &str, count: u64) -> Result<(), BoxError> {
    for _ in 0..count {
        match call {
            "progress" => {
                lane.progress()?;
            }
            "fence" => lane.fence(PEER)?,
            // What everybody calls who waits for room.
            "want_acks" => lane.want_acks(),
            _ => lane.quiet(PEER)?,
        }
    }
    Ok(())
}

/// The process that is counted.
pub(super) fn process() -> Result<(), BoxError> {
    let memory = vec![0_u64; 8];
    for peers in [FEW, MANY] {
        let mut lane = lane(peers, &memory)?;
        for call in CALLS {
            sections(LENGTHS, |length| repeat(&mut lane, call, length))?;
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
    for (at, call) in CALLS.into_iter().enumerate() {
        let section = |of: usize| callgrind.cost(2 * (of * CALLS.len() + at), LENGTHS, |_| true);
        let (few, many) = (section(0)?, section(1)?);
        println!("{call:<10} {:>8.1} with {FEW} peers, {:>8.1} with {MANY}", few.ours, many.ours);
        let name = format!("{call}_instructions_{MANY}_peers_over_{FEW}");
        report.push(name, many.ours / few.ours, "ratio");
    }
    Ok(())
}
