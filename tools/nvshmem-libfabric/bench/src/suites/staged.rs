//! Puts and gets of device memory that the fabric does not reach: beside the same operations on
//! host memory, and beside copies of the driver alone.
//!
//! All sides go through the plugin of the same two processes, over the same connections: the heap's
//! last chunk is host memory that the fabric reaches, and the one before is on the device. Only the
//! proxy threads are bound to cores: the threads of a stand-in's streams, which copy, begin before
//! that and run where there is room.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvshmem_abi::c;
use nvshmem_sim::{
    BoxError, Faults, Host, Job, JobSettings, MemoryKind, Piece, PlainCopies, PlannedAmo, SymAddr,
    UserMapped,
};

use crate::harness::fabric::{Fabric, absolute};
use crate::harness::launch;
use crate::harness::pace::Rates;
use crate::harness::report::Report;
use crate::harness::suite::Suite;
use crate::pe::Opened;
use crate::pe::control::Command;
use crate::pe::party::RawSide;
use crate::pe::source::Source;
use crate::pe::window::{Areas, Direction, Window};
use crate::times::case::{Case, Figure, Shape, Side, Size, Unit, Value};
use crate::times::rounds::{Rounds, Schedule, Took};
use crate::times::stats::median;

/// Which device, and which cases.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    device: Device,
    /// These cases alone, such as put_1MiB,get_1MiB
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Moves::named)]
    cases: Vec<Moves>,
}

/// A driver with a device.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Device {
    /// A stand-in: the libcuda.so.1 in DIR is the driver
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    cuda_driver: Option<PathBuf>,
    /// The machine's own driver, and its GPU
    #[arg(long)]
    gpu: bool,
}

/// The suite.
pub(crate) struct Staged {
    /// The directory of a stand-in for the driver.
    driver: Option<PathBuf>,
    cases: Vec<Moves>,
}

/// What is issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// Puts or gets.
    Move(Direction),
    /// Puts with a signal in the memory that they write.
    Signal,
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moves {
    op: Op,
    /// Bytes of one operation.
    bytes: u64,
    /// Operations posted before the loop waits for all of them.
    window: u64,
    /// Whether there is host memory to compare with.
    host: bool,
}

/// Puts of this size stand beside copies of the driver.
const COPIED: u64 = 1 << 20;

const PUT: Op = Op::Move(Direction::Put);

const ALL: [Moves; 6] = [
    Moves { op: PUT, bytes: COPIED, window: 32, host: true },
    Moves { op: PUT, bytes: 4 << 20, window: 8, host: true },
    Moves { op: PUT, bytes: 16 << 20, window: 2, host: true },
    Moves { op: Op::Move(Direction::Get), bytes: 1 << 20, window: 32, host: true },
    Moves { op: PUT, bytes: 8, window: 1, host: true },
    Moves { op: Op::Signal, bytes: 4 << 10, window: 1, host: true },
];

/// Bytes of the largest window.
const LARGEST: u64 = 32 << 20;

/// Bytes of a chunk: two areas, and the signal with room to spare. A power of two.
const CHUNK_BYTES: u64 = 4 * LARGEST;

const _: () = assert!(CHUNK_BYTES.is_power_of_two());

/// What a driver answers that has no memory of the host's for its VMM interface.
const NO_HOST_MEMORY: &str = "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED";

/// What a side works on: a chunk of the heap.
#[derive(Clone, Copy, Debug)]
struct Memory {
    areas: Areas,
    /// The word that puts with signal set.
    signal: SymAddr,
}

impl Memory {
    fn alloc(host: &Host<'_>) -> Result<Self, BoxError> {
        let memory = Self { areas: Areas::alloc(host, LARGEST)?, signal: host.alloc(8, 8)? };
        // All of the chunk, so that the next one is another's.
        host.alloc(CHUNK_BYTES - 2 * LARGEST - 8, 1)?;
        Ok(memory)
    }
}

/// What a PE keeps.
pub(crate) struct State {
    device: Memory,
    host: Option<Memory>,
    copies: PlainCopies,
    /// Tells of the copies that the device has made, where it is a stand-in.
    counter: Option<Faults>,
    /// The last value that a signal was set to.
    signalled: u64,
}

/// A window on one memory, ready to be issued.
struct Plan {
    op: Op,
    window: Window,
    pieces: Vec<Piece>,
    word: SymAddr,
    signal: PlannedAmo,
}

/// Measures the suite, and makes the figures that are of all providers.
///
/// # Errors
/// Those of the jobs.
pub(crate) fn measure(
    options: Options,
    fabric: &Fabric,
    rates: &Rates,
    report: &mut Report,
) -> Result<(), BoxError> {
    let Options { device, cases } = options;
    let cases = if cases.is_empty() { ALL.into() } else { cases };
    let suite = Staged { driver: device.cuda_driver, cases };
    let measured = launch::measure(suite, fabric, rates, report)?;
    if let Some(least) = report.least("staged_put_1MiB_ratio_") {
        report.push(String::from("staged_put_1MiB_ratio"), least, "ratio");
    }
    for (name, side) in [("driver_copy_out", Side::CopyOut), ("driver_copy_in", Side::CopyIn)] {
        let rounds = measured.iter().flat_map(|(_, jobs)| jobs);
        let seconds: Vec<f64> = rounds.flat_map(|rounds| rounds.seconds(side)).collect();
        if let Some(seconds) = median(&seconds) {
            report.push(String::from(name), COPIED as f64 / seconds / 1e9, "GB/s");
        }
    }
    Ok(())
}

impl Suite for Staged {
    const NAME: &'static str = "bench-staged";

    type Case = Moves;
    type State = State;

    fn job(&self, job: JobSettings) -> JobSettings {
        let host = self.cases.iter().any(|case| case.host);
        let names: Vec<String> = self.cases.iter().map(Moves::to_string).collect();
        let mut job = job
            // Also where the fabric would reach it.
            .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
            .memory(MemoryKind::DeviceVmm)
            .heap(if host { 2 * CHUNK_BYTES } else { CHUNK_BYTES }, CHUNK_BYTES)
            .param("host", host)
            .param("cases", names.join(","));
        if host {
            job = job.user_mapped(UserMapped::HostNuma);
        }
        match &self.driver {
            Some(directory) => job.cuda_driver(directory),
            None => job,
        }
    }

    fn of_job(job: &Job) -> Result<Self, BoxError> {
        let (host, names) = (job.param("host")?, job.param::<String>("cases")?);
        let case = |name| Moves::named(name).map(|case| Moves { host, ..case });
        let cases = names.split(',').map(case).collect::<Result<_, _>>()?;
        Ok(Self { driver: None, cases })
    }

    fn cases(&self, _shape: Shape) -> Vec<Moves> {
        self.cases.clone()
    }

    fn open(&self, _job: &Job, host: &Host<'_>) -> Result<Opened<State>, BoxError> {
        let with_host = self.cases.iter().any(|case| case.host);
        let state = State {
            device: Memory::alloc(host)?,
            host: with_host.then(|| Memory::alloc(host)).transpose()?,
            copies: host.plain_copies(CHUNK_BYTES)?.ok_or("there is no device to copy from")?,
            counter: host.faults().filter(|faults| faults.offered()),
            signalled: 0,
        };
        let description = host.device().ok_or("the heap is not on a device")?;
        Ok(Opened { raw: RawSide::Nothing, state, description })
    }

    fn measure(
        source: &mut Source<'_, State>,
        case: Moves,
        schedule: Schedule,
    ) -> Result<Rounds, String> {
        let mut plans = Vec::new();
        for side in case.sides() {
            if let Some(memory) = source.state.memory(side) {
                plans.push((side, plan(source, case, memory)?));
            }
        }
        for (side, plan) in &plans {
            prove(source, case, *side, plan).map_err(|e| format!("{side}: {e}"))?;
        }
        let rounds = schedule.run(&case.sides(), case.window, |side, windows| {
            let took = match plans.iter().find(|(of, _)| *of == side) {
                Some((_, plan)) => timed(source, side, plan, windows),
                None => source.state.copy(side, case, windows),
            };
            took.map(Took::from).map_err(|e| format!("{side}: {e}"))
        })?;
        // Every byte once more: after the rounds nothing has gone wrong that stamps do not show.
        for (side, plan) in &plans {
            prove(source, case, *side, plan).map_err(|e| format!("{side}, at the end: {e}"))?;
        }
        Ok(rounds)
    }

    fn retreat(&mut self, error: &BoxError) -> bool {
        let with_host = self.cases.iter().any(|case| case.host);
        if !with_host || !error.to_string().contains(NO_HOST_MEMORY) {
            return false;
        }
        println!("the device maps no memory of the host: only device memory is measured");
        self.cases.iter_mut().for_each(|case| case.host = false);
        true
    }
}

impl State {
    /// The memory of a side that has symmetric memory.
    fn memory(&self, side: Side) -> Option<Memory> {
        match side {
            Side::Staged => Some(self.device),
            Side::Host => self.host,
            _ => None,
        }
    }

    /// Copies that the device has made, where it tells.
    fn copied(&self) -> Result<Option<u64>, String> {
        self.counter.map(|counter| counter.copies().map_err(text)).transpose()
    }

    /// What so many windows of the driver's copies take.
    fn copy(&self, side: Side, case: Moves, windows: u64) -> Result<Duration, String> {
        let window = || match side {
            Side::CopyIn => self.copies.inward(case.bytes, case.window),
            _ => self.copies.out(case.bytes, case.window),
        };
        window().map_err(text)?;
        let start = Instant::now();
        for _ in 0..windows {
            window().map_err(text)?;
        }
        Ok(start.elapsed())
    }
}

fn plan(source: &Source<'_, State>, case: Moves, memory: Memory) -> Result<Plan, String> {
    let window = memory.areas.window(case.direction(), case.bytes, case.window);
    let pieces = source.party.plan(1, &window)?;
    let signal = source.party.signal(1, c::NVT_AMO_SIGNAL_SET, memory.signal)?;
    Ok(Plan { op: case.op, window, pieces, word: memory.signal, signal })
}

/// Shows that every byte of a window arrives, and that it goes the way that is meant: copied by the
/// device, or not at all.
fn prove(
    source: &mut Source<'_, State>,
    case: Moves,
    side: Side,
    plan: &Plan,
) -> Result<(), String> {
    let mut copied = None;
    source.prove(side, &plan.window, |source| {
        let before = source.state.copied()?;
        issue(source, plan)?;
        copied = Option::zip(before, source.state.copied()?).map(|(before, after)| after - before);
        Ok(())
    })?;
    match (side, copied) {
        // A few bytes may go by words, which the device need not copy.
        (Side::Staged, Some(0)) if !case.is_latency() => {
            Err(String::from("the device has copied nothing"))
        }
        (Side::Host, Some(count @ 1..)) => Err(format!("the device has copied {count} times")),
        _ => Ok(()),
    }
}

/// What so many windows take.
fn timed(
    source: &mut Source<'_, State>,
    side: Side,
    plan: &Plan,
    windows: u64,
) -> Result<Duration, String> {
    let elapsed = source.timed(side, &plan.window, windows, |source| issue(source, plan))?;
    if plan.op == Op::Signal {
        let (word, value) = (plan.word, source.state.signalled);
        source.control.ask(Command::CheckWord { word, value })?;
    }
    Ok(elapsed)
}

/// A window, and the wait until all of it is delivered.
#[inline]
fn issue(source: &mut Source<'_, State>, plan: &Plan) -> Result<(), String> {
    let Op::Signal = plan.op else {
        return source.party.window(plan.window.direction, &plan.pieces);
    };
    for piece in &plan.pieces {
        source.state.signalled += 1;
        let signal = plan.signal.with_value(source.state.signalled);
        source.party.put_signal(Side::Plugin, piece, &signal)?;
    }
    source.party.ops.quiet_pe(1).map_err(text)
}

impl Moves {
    /// The case of that name.
    fn named(name: &str) -> Result<Self, String> {
        let case = ALL.into_iter().find(|case| case.to_string() == name);
        case.ok_or_else(|| {
            format!("no case {name}; there are {}", ALL.map(|c| c.to_string()).join(", "))
        })
    }

    fn direction(self) -> Direction {
        match self.op {
            Op::Move(direction) => direction,
            Op::Signal => Direction::Put,
        }
    }

    /// Whether copies of the driver are among the sides.
    fn has_copies(self) -> bool {
        self.op == PUT && self.bytes == COPIED
    }

    /// Whether its figure is the time of one operation; otherwise it is what staging reaches of the
    /// bandwidth on host memory.
    fn is_latency(self) -> bool {
        self.window == 1
    }
}

impl Case for Moves {
    fn sides(&self) -> Vec<Side> {
        let host = self.host.then_some(Side::Host);
        let copies = if self.has_copies() { &[Side::CopyOut, Side::CopyIn][..] } else { &[] };
        host.into_iter().chain([Side::Staged]).chain(copies.iter().copied()).collect()
    }

    fn unit(&self) -> Unit {
        if self.is_latency() { Unit::Time } else { Unit::Bandwidth(self.bytes) }
    }

    fn figures(&self, provider: &str) -> Vec<Figure> {
        let mut figures = Vec::new();
        if self.is_latency() {
            let name = format!("staged_{self}_latency_{provider}");
            figures.push(Figure { name, value: Value::Micros(Side::Staged) });
        } else if self.host {
            let name = format!("staged_{self}_ratio_{provider}");
            figures.push(Figure::rate_over(name, Side::Staged, Side::Host));
        }
        if self.has_copies() {
            // Every byte is copied both ways: the direction counts in which copies are slower.
            let value = Value::Ratio { of: vec![Side::CopyOut, Side::CopyIn], over: Side::Staged };
            figures.push(Figure { name: format!("staged_{self}_over_copy_{provider}"), value });
        }
        figures
    }
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Op::Move(direction) => write!(f, "{direction}_{}", Size(self.bytes)),
            Op::Signal => write!(f, "put_signal_{}", Size(self.bytes)),
        }
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::suite::tests::names_of;

    #[test]
    fn figures_are_named_by_operation_size_and_provider() {
        let mut suite = Staged { driver: None, cases: ALL.into() };
        let names = names_of(&suite);
        assert_eq!(names.len(), 7);
        for name in [
            "staged_put_16MiB_ratio_tcp",
            "staged_get_1MiB_ratio_tcp",
            "staged_put_8B_latency_tcp",
            "staged_put_signal_4KiB_latency_tcp",
            "staged_put_1MiB_over_copy_tcp",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        // A device that maps no host memory has no ratios over it.
        assert!(suite.retreat(&BoxError::from(format!("PE 0: {NO_HOST_MEMORY}"))));
        assert_eq!(names_of(&suite).len(), 3);
        assert!(!suite.retreat(&BoxError::from(NO_HOST_MEMORY)));
    }

    #[test]
    fn every_window_fits() {
        let largest = ALL.into_iter().map(|case| case.bytes * case.window).max();
        assert_eq!(largest, Some(LARGEST));
    }
}
