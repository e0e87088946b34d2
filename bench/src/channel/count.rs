//! Instructions per descriptor: everything from the ring to the engine, and back until it is published as
//! done, over a fabric that does nothing; less what the same puts cost when the engine is called directly.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use channel_producer::Producer;
use nvshmem_sim::BoxError;
use nvshmem_transport_libfabric::channel::measure::Pump;
use nvshmem_transport_libfabric::engine::Watchdog;
use nvshmem_transport_libfabric::engine::ids::{Pe, RailId};
use nvshmem_transport_libfabric::engine::lane::fast_path::{Common, Rest};
use nvshmem_transport_libfabric::engine::lane::{Lane, LaneConfig, SignalEngine};
use nvshmem_transport_libfabric::engine::port::{Access, Desc, Direction, Local, PeerAddr};
use nvshmem_transport_libfabric::engine::state::batch::Batch;
use nvshmem_transport_libfabric::engine::state::paths::{Path, PathTable};
use nvshmem_transport_libfabric::engine::state::regions::{LaneKind, RegionTable};
use nvshmem_transport_libfabric::engine::striping::balance::Spread;
use nvshmem_transport_libfabric::engine::wire::handle::HandleBytes;

use super::PART;
use super::null::Null;
use crate::callgrind::Profile;
use crate::count::{MARK, nvshmem_bench_mark};
use crate::launch::WorkDir;
use crate::options::Options;
use crate::report::Report;

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
        let handle = regions.register(base, len, Access::LocalAndRemote)?;
        let path = Path { to: PeerAddr(0), remote: RailId(0) };
        let config = LaneConfig {
            me: Pe(0),
            kind: LaneKind::Proxy,
            paths: PathTable::new(vec![path; 2], 1),
            regions: regions.index(),
            watchdog: Watchdog::new(None, None),
            signals: SignalEngine::Auto,
            counted: 0,
            spread: Spread::ROUND_ROBIN,
            devices: false,
        };
        let mut pump = Pump::new(SLOTS)?;
        pump.set_region(base, len, handle)?;
        Ok(Self { pump, lane: Lane::new(Null::new(), config), memory, handle })
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
            self.pump.turn(&mut self.lane)?;
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
    let local = Local::Memory { addr: addr as usize + 64, desc: Desc(0) };
    let direction = Direction::Write;
    match lane
        .start_at_once_in(Common { direction, pe: Pe(1), handle, addr, local, len: BYTES }, batch)
    {
        Ok(()) => Ok(()),
        Err(Rest::Whole(_) | Rest::Declined(_)) => Err("a put was not started at once".into()),
    }
}

/// The process that is counted.
pub(crate) fn part() -> Result<(), BoxError> {
    let mut bed = Bed::new()?;
    // What is opened at first use, by the long way of the engine.
    bed.fill(4 * BATCH)?;
    bed.pump(4 * BATCH)?;
    bed.direct(4 * BATCH)?;
    let mut section = 0;
    let mut mark = || {
        nvshmem_bench_mark(section);
        section += 1;
    };
    for length in LENGTHS {
        bed.fill(length)?;
        mark();
        bed.pump(length)?;
        mark();
    }
    for length in LENGTHS {
        mark();
        bed.direct(length)?;
        mark();
    }
    Ok(())
}

/// Counts, and keeps the figure.
///
/// # Errors
/// No valgrind, or files that are not understood.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = WorkDir::create()?;
    let files = options.keep.as_deref().unwrap_or(dir.path());
    fs::create_dir_all(files)?;
    let out = files.join("callgrind.channel.out");
    let status = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg(format!("--dump-before={MARK}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe()?)
        .env(PART, "count")
        .status()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !status.success() {
        return Err(format!("counting: {status}").into());
    }
    // A mark ends a part; the first ends what came before the first section. Between two sections lies
    // a part of its own.
    let section = |at: usize| -> Result<Profile, BoxError> {
        let path = PathBuf::from(format!("{}.{}", out.display(), 2 * at + 2));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Profile::parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
    };
    let profiles = (0..4).map(section).collect::<Result<Vec<_>, BoxError>>()?;
    let total = |profile: &Profile| {
        profile.by(|_| true, |_| ()).get(&()).copied().unwrap_or_default() as f64
    };
    let more = (LENGTHS[1] - LENGTHS[0]) as f64;
    let per = |short: &Profile, long: &Profile| (total(long) - total(short)) / more;
    let through = per(&profiles[0], &profiles[1]);
    let direct = per(&profiles[2], &profiles[3]);
    println!("\ninstructions per 8-byte put, over a fabric that does nothing");
    println!("{:<52}{through:>10.1}", "from the ring, and back until it is done");
    println!("{:<52}{direct:>10.1}", "the engine, called directly");
    if options.profile {
        println!("\nfrom the ring: by source line");
        let by = |profile: &Profile| {
            profile.by(|_| true, |place| format!("{}:{}", place.file, place.line))
        };
        let (short, long) = (by(&profiles[0]), by(&profiles[1]));
        let mut lines: Vec<(f64, &String)> = long
            .iter()
            .map(|(line, cost)| {
                (((*cost as f64) - short.get(line).copied().unwrap_or(0) as f64) / more, line)
            })
            .collect();
        lines.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (cost, line) in lines.iter().take(70) {
            println!("{cost:>8.2}  {line}");
        }
    }
    let name = String::from("channel_instructions_per_descriptor");
    report.push(name, through - direct, "instructions");
    Ok(())
}
