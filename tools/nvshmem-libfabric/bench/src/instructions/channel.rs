//! Instructions per descriptor: everything from the ring to the engine, and back until it is
//! published as done, over a fabric that does nothing; less what the same puts cost when the engine
//! is called directly.

use channel_producer::Producer;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::{Access, Direction};
use engine::request::{LocalSide, Request};
use engine::state::batch::Batch;
use engine::state::regions::RegionTable;
use engine::wire::handle::HandleBytes;
use nvshmem_sim::BoxError;
use nvshmem_transport_libfabric::channel::measure::Pump;

use super::null::{Null, of_peer};
use super::{Options, sections};
use crate::callgrind::nvshmem_bench_mark;
use crate::harness::report::{Report, breakdown};
use nvshmem_sim::PrivateDir;

/// What [`PART`](crate::suites::channel::PART) says for the process that is counted.
pub(super) const NAME: &str = "instructions-channel";

/// Descriptors that the proxy takes at a time, and so what is put into a batch of the engine.
const BATCH: u64 = 32;

/// Descriptors of the two sections of each side.
const LENGTHS: [u64; 2] = [10 * BATCH, 110 * BATCH];

/// Slots of the ring: more than a section has.
const SLOTS: u64 = 4096;

const BYTES: usize = 8;

struct Bed {
    pump: Pump,
    lane: Lane<Null>,
    memory: Vec<u64>,
    handle: HandleBytes,
}

impl Bed {
    fn new() -> Result<Self, BoxError> {
        let memory = vec![0_u64; 64];
        let regions = RegionTable::new(Null::new(), Pe(0));
        let (base, len) = (memory.as_ptr() as usize, size_of_val(&memory[..]));
        let handle = of_peer(Pe(1), &regions.register(base, len, Access::LocalAndRemote)?)?;
        let mut pump = Pump::new(SLOTS)?;
        pump.set_region(base, len, handle)?;
        Ok(Self { pump, lane: Null::lane(&regions, 2), memory, handle })
    }

    fn fill(&self, count: u64) -> Result<(), BoxError> {
        // SAFETY: the context is the pump's, and lives as long; its region is `memory`.
        let producer = unsafe { Producer::new(self.pump.context()) };
        let words = self.memory.as_ptr().cast_mut();
        for _ in 0..count {
            let status = producer.put_nbi(words.cast(), words.wrapping_add(8).cast(), BYTES, 1);
            if status != 0 {
                return Err(format!("a push failed with {status}").into());
            }
        }
        Ok(())
    }

    fn pump(&mut self, count: u64) -> Result<(), BoxError> {
        for _ in 0..count / BATCH {
            self.pump.iterate(&mut self.lane)?;
        }
        Ok(())
    }

    /// The same puts, as the engine is called by who has their addresses at hand.
    #[inline(never)]
    fn direct(&mut self, count: u64) -> Result<(), BoxError> {
        let Self { lane, memory, handle, .. } = self;
        let addr = memory.as_ptr() as u64;
        for _ in 0..count / BATCH {
            let batch = lane.begin_batch().ok_or("no batch is free")?;
            for _ in 0..BATCH {
                start(lane, handle, addr, batch)?;
            }
            lane.progress()?;
            if !lane.is_batch_done(batch) {
                return Err("a batch is not over".into());
            }
            lane.end_batch(batch);
        }
        Ok(())
    }
}

#[inline(always)]
fn start(
    lane: &mut Lane<Null>,
    handle: &HandleBytes,
    addr: u64,
    batch: Batch,
) -> Result<(), BoxError> {
    let put = Request {
        direction: Direction::Write,
        pe: Pe(1),
        remote_handle: handle,
        remote_addr: addr,
        local: LocalSide::Memory(addr as usize + 64),
        len: BYTES,
    };
    lane.start_fast(put, batch).map_err(|_| "a put was not started at once".into())
}

/// The process that is counted.
pub(super) fn process() -> Result<(), BoxError> {
    let mut bed = Bed::new()?;
    // What is opened at first use, by the long way of the engine.
    bed.fill(4 * BATCH)?;
    bed.pump(4 * BATCH)?;
    bed.direct(4 * BATCH)?;
    for length in LENGTHS {
        bed.fill(length)?;
        nvshmem_bench_mark();
        bed.pump(length)?;
        nvshmem_bench_mark();
    }
    sections(LENGTHS, |length| bed.direct(length))
}

/// Counts, and keeps the figure.
///
/// # Errors
/// No valgrind, or files that are not understood.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = PrivateDir::new("nvshmem-bench")?;
    let callgrind = super::process(options, &dir, NAME)?;
    let cost = |section| callgrind.cost(section, LENGTHS, |_| true);
    let (through, direct) = (cost(0)?, cost(2)?);
    println!("{:<52}{:>10.1}", "from the ring, and back until it is done", through.ours);
    println!("{:<52}{:>10.1}", "the engine, called directly", direct.ours);
    breakdown("from the ring, and back until it is done", &through);
    let name = String::from("channel_instructions_per_descriptor");
    report.push(name, through.ours - direct.ours, "instructions");
    Ok(())
}
