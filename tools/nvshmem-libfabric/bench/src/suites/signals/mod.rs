//! Puts with signal, fences and fetching atomics: the plugin beside raw libfabric, and beside a
//! reference that orders as the shipped transport does.
//!
//! The reference is driven through the plugin's own interface: put, then quiet for every PE, then
//! the signal as an atomic. So it moves the same bytes by the same code, and what differs is how
//! the signal is kept behind its data.

mod source;

use std::fmt;
use std::path::Path;

use nvshmem_sim::{BoxError, Host, Job, JobSettings, MemoryKind, SymAddr, UserMapped};

use crate::harness::suite::Suite;
use crate::pe::exchange::{LARGEST, Mailboxes, WORD};
use crate::pe::party::RawSide;
use crate::pe::source::Source;
use crate::pe::window::Areas;
use crate::pe::{Opened, open_raw};
use crate::raw::{Messages, Promise};
use crate::times::case::{Case, Figure, Shape, Side, Size, Unit, Value};
use crate::times::rounds::{Rounds, Schedule};

/// The suite.
pub(crate) struct Signals;

/// Sizes of a put.
const SIZES: [u64; 3] = [8, 4 << 10, LARGEST];

/// Size of the puts that keep every peer busy.
const BUSY_BYTES: u64 = 4 << 10;

/// Most peers of PE 0.
const PEERS: u64 = 7;

/// Bytes of the areas that windows read and write: the largest window is 16 of the largest puts.
const AREA_BYTES: u64 = 16 * LARGEST;

/// Bytes of the heap, in one chunk, so that no operation is cut.
const HEAP_BYTES: u64 = 4 << 20;

const _: () = assert!(2 * AREA_BYTES + PEERS * LARGEST + (16 << 10) <= HEAP_BYTES);

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Windows of operations, round robin over the peers.
    Rate,
    /// A message to every peer, and its answer.
    Latency,
    /// A fence and a signal behind it, while puts to every peer are under way.
    Fence,
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signalled {
    shape: Shape,
    what: What,
    /// Bytes of a put.
    bytes: u64,
}

/// Where things are in the heap, and what has become of them: the same places on every PE.
pub(crate) struct State {
    /// What windows read and write.
    pub(crate) areas: Areas,
    boxes: Mailboxes,
    /// Counts the signals of windows.
    pub(crate) counter: SymAddr,
    /// Signals that each peer has counted.
    pub(crate) signals: u64,
    /// What is fetched and added to.
    fetched: SymAddr,
    /// Where PE 0 gets the old value, and the flag after it.
    result: SymAddr,
    /// What the word that is fetched and added to must hold.
    sum: u64,
}

impl State {
    fn alloc(host: &Host<'_>) -> Result<Self, BoxError> {
        let areas = Areas::alloc(host, AREA_BYTES)?;
        let raw = host.alloc(PEERS * LARGEST, 4096)?;
        let words = host.alloc((PEERS + 3) * WORD, 4096)?;
        let word = |at| words.plus((PEERS + at) * WORD);
        let boxes = Mailboxes { outgoing: areas.from, incoming: areas.to, signals: words, raw };
        let (counter, fetched, result) = (word(0), word(1), word(2));
        Ok(Self { areas, boxes, counter, signals: 0, fetched, result, sum: 0 })
    }

    /// A PE's memory alone, without a raw side. It is host memory, behind what there is of a
    /// device's.
    pub(crate) fn open(host: &Host<'_>) -> Result<Opened<Self>, BoxError> {
        let description = match host.device() {
            Some(device) => {
                host.alloc(HEAP_BYTES, 1)?;
                format!("the plugin alone, in host memory beside that of {device}")
            }
            None => String::from("the plugin alone"),
        };
        Ok(Opened { raw: RawSide::Nothing, state: Self::alloc(host)?, description })
    }

    /// A job whose heap has room for it.
    pub(crate) fn job(job: JobSettings) -> JobSettings {
        job.heap(HEAP_BYTES, HEAP_BYTES)
    }

    /// The same, of processes with CUDA: the heap's first chunk is on the device of a stand-in, the
    /// last is host memory.
    pub(crate) fn job_with_device(job: JobSettings, driver: &Path) -> JobSettings {
        job.env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
            .memory(MemoryKind::DeviceVmm)
            .heap(2 * HEAP_BYTES, HEAP_BYTES)
            .user_mapped(UserMapped::HostNuma)
            .cuda_driver(driver)
    }
}

impl Suite for Signals {
    const NAME: &'static str = "bench-signals";
    const SHAPES: &'static [Shape] =
        &[Shape { peers: 1, rails: 1 }, Shape { peers: 1, rails: 2 }, Shape { peers: 7, rails: 2 }];

    type Case = Signalled;
    type State = State;

    fn job(&self, job: JobSettings) -> JobSettings {
        State::job(job)
    }

    fn of_job(_job: &Job) -> Result<Self, BoxError> {
        Ok(Self)
    }

    fn cases(&self, shape: Shape) -> Vec<Signalled> {
        let of = |what| SIZES.map(|bytes| Signalled { shape, what, bytes });
        let mut cases = Vec::from(of(What::Rate));
        // With one peer as raw libfabric does it, over one endpoint; with many as a job would.
        if shape.peers > 1 || shape.rails == 1 {
            cases.extend(of(What::Latency));
        }
        if shape.peers > 1 {
            cases.push(Signalled { shape, what: What::Fence, bytes: BUSY_BYTES });
        }
        cases
    }

    fn open(&self, job: &Job, host: &Host<'_>) -> Result<Opened<State>, BoxError> {
        let state = State::alloc(host)?;
        // One message to each peer, and one from it.
        // SAFETY: it lives in the PE's part, which ends before `finalize`.
        let raw = unsafe { open_raw(job, host, Promise::Default, 2)? };
        let description = raw.describe();
        // SAFETY: the slots are in the heap, and nothing else is put there.
        let messages = unsafe { Messages::new(raw, state.boxes.raw.0, LARGEST as usize)? };
        Ok(Opened { raw: RawSide::Messages(messages), state, description })
    }

    fn measure(
        source: &mut Source<'_, State>,
        case: Signalled,
        schedule: Schedule,
    ) -> Result<Rounds, String> {
        source::measure(source, case, schedule)
    }
}

impl Signalled {
    /// Slots in each peer's memory that a window fills.
    fn slots(self) -> u64 {
        match (self.what, self.shape.peers, self.bytes) {
            (What::Latency, ..) => 1,
            (What::Fence, ..) => 4,
            (What::Rate, 1, LARGEST) => 16,
            (What::Rate, 1, _) => 64,
            // About as many in all.
            (What::Rate, _, LARGEST) => 2,
            (What::Rate, ..) => 9,
        }
    }

    /// What an operation is, in the times reported: a put with signal, a round trip, a fence with a
    /// signal.
    fn ops_per_repeat(self) -> u64 {
        match self.what {
            What::Rate => self.slots() * u64::from(self.shape.peers),
            What::Latency => 1,
            // One signal to each peer in turn.
            What::Fence => u64::from(self.shape.peers),
        }
    }
}

impl Case for Signalled {
    fn sides(&self) -> Vec<Side> {
        match (self.what, self.shape.peers, self.bytes) {
            (What::Latency, 1, 8) => {
                vec![Side::Raw, Side::Plugin, Side::Reference, Side::FetchAdd]
            }
            (What::Latency, ..) => vec![Side::Raw, Side::Plugin, Side::Reference],
            (What::Rate | What::Fence, ..) => vec![Side::Plugin, Side::Reference],
        }
    }

    fn unit(&self) -> Unit {
        match self.what {
            What::Rate => Unit::Rate,
            // One way, for one peer; there and back for several, which no half belongs to.
            What::Latency if self.shape.peers == 1 => Unit::HalfTime,
            What::Latency | What::Fence => Unit::Time,
        }
    }

    fn figures(&self, provider: &str) -> Vec<Figure> {
        let size = Size(self.bytes);
        // What the figures are about, where a name does not say it: one peer, and two rails for
        // rates, one for latency.
        let suffix = match (self.what, self.shape) {
            (What::Rate, Shape { peers: 1, rails: 1 }) => String::from("_1_rail"),
            (What::Rate | What::Latency, Shape { peers, .. }) if peers > 1 => {
                format!("_{peers}_peers")
            }
            _ => String::new(),
        };
        let name = |what: &str, over: Side| format!("{what}_over_{over}_{provider}{suffix}");
        let time = |what: &str, of, over| Figure::time_over(name(what, over), of, over);
        let (plugin, reference) = (Side::Plugin, Side::Reference);
        match self.what {
            What::Rate => {
                let name = name(&format!("put_signal_{size}_rate"), reference);
                vec![Figure::rate_over(name, plugin, reference)]
            }
            What::Latency => {
                let what = format!("put_signal_{size}_latency");
                let mut figures =
                    vec![time(&what, plugin, Side::Raw), time(&what, plugin, reference)];
                if self.sides().contains(&Side::FetchAdd) {
                    figures.push(time("fetch_add", Side::FetchAdd, Side::Raw));
                }
                figures
            }
            What::Fence => {
                let whole = Figure {
                    name: name("fence_signal_delivered", reference),
                    value: Value::WholeRatio { of: plugin, over: reference },
                };
                vec![time("fence_signal_cost", plugin, reference), whole]
            }
        }
    }
}

impl fmt::Display for Signalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Rate => "rate",
            What::Latency => "latency",
            What::Fence => "fence",
        };
        write!(f, "{what} {} B, {}", self.bytes, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::suite::tests::names_of;

    #[test]
    fn figures_are_named_by_operation_size_sides_and_kind_of_job() {
        let names = names_of(&Signals);
        for name in [
            "put_signal_8B_rate_over_reference_tcp",
            "put_signal_64KiB_rate_over_reference_tcp_1_rail",
            "put_signal_4KiB_rate_over_reference_tcp_7_peers",
            "put_signal_8B_latency_over_raw_tcp",
            "put_signal_8B_latency_over_reference_tcp_7_peers",
            "fence_signal_cost_over_reference_tcp",
            "fence_signal_delivered_over_reference_tcp",
            "fetch_add_over_raw_tcp",
        ] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
    }

    #[test]
    fn every_window_fits() {
        let cases = Signals::SHAPES.iter().flat_map(|shape| Signals.cases(*shape));
        assert_eq!(cases.map(|case| case.bytes * case.slots()).max(), Some(AREA_BYTES));
        assert_eq!(Signals::SHAPES.iter().map(|shape| shape.peers.into()).max(), Some(PEERS));
    }
}
