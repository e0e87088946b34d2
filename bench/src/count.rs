//! Instructions per operation: the PEs' part.
//!
//! PE 0 runs under callgrind, which writes a dump and starts again from zero whenever the function
//! [`nvshmem_bench_mark`] is entered. Between two marks lies one section: so many operations of
//! one kind. Each kind has two sections of different length, and their difference over the
//! difference in operations is free of what begins and ends a section.

use std::hint::black_box;

use nvshmem_sim::{BoxError, Job, Ops, Piece};

use crate::area::{Areas, check_stamps, stamp};
use crate::case::Direction;
use crate::command::{Command, Side};
use crate::compare::plugin_window;
use crate::control::Control;
use crate::setup;
use crate::target;

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "count";

/// Name of the function that ends one dump and begins the next.
pub(crate) const MARK: &str = "nvshmem_bench_mark";

/// Operations in a window, of 8 bytes each.
const WINDOW: u64 = 64;
const BYTES: u64 = 8;

/// What a section repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Windows of puts, each polled for when all of its completions are there.
    Put,
    /// Windows of puts in the loop that the comparison with raw libfabric runs.
    PutTight,
    /// The same for gets.
    GetTight,
    /// `quiet(pe)` with nothing outstanding.
    QuietEmpty,
    /// `progress` with nothing outstanding.
    ProgressIdle,
}

impl Kind {
    /// All, in the order in which they are run.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Put, Kind::PutTight, Kind::GetTight, Kind::QuietEmpty, Kind::ProgressIdle];

    /// Operations of the two sections.
    pub(crate) fn lengths(self) -> [u64; 2] {
        match self {
            Kind::Put => [10 * WINDOW, 110 * WINDOW],
            Kind::PutTight | Kind::GetTight => [20 * WINDOW, 220 * WINDOW],
            Kind::QuietEmpty | Kind::ProgressIdle => [1000, 11000],
        }
    }

    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Kind::Put => "8-byte put, posted and completed",
            Kind::PutTight => "8-byte put, with the empty polls of a tight loop",
            Kind::GetTight => "8-byte get, with the empty polls of a tight loop",
            Kind::QuietEmpty => "quiet(pe) with nothing outstanding",
            Kind::ProgressIdle => "progress with nothing outstanding",
        }
    }
}

/// Ends one of callgrind's dumps and begins the next.
// SAFETY: no other function of this program or its libraries has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn nvshmem_bench_mark(section: u64) {
    black_box(section);
}

/// One PE. Parameter: `control`.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let control = setup::control(job)?;
    let host = job.init()?;
    let len = WINDOW * BYTES;
    let areas = Areas { from: host.alloc(len, 4096)?, to: host.alloc(len, 4096)? };
    if job.pe() == 0 {
        host.proxy().run(move |ops| {
            let mut source = Source { ops, control, areas, seed: 0 };
            let counted = source.sections();
            source.control.ask(Command::Stop).and(counted)
        })??;
    } else {
        host.proxy().run(move |ops| target::serve(ops, None, control, areas))??;
    }
    host.finalize()?;
    Ok(())
}

/// PE 0.
struct Source<'a> {
    ops: &'a Ops,
    control: Control<Command>,
    areas: Areas,
    seed: u64,
}

impl Source<'_> {
    fn sections(&mut self) -> Result<(), String> {
        let (puts, gets) = (self.plan(Direction::Put)?, self.plan(Direction::Get)?);
        self.control.ask(Command::Serve(Side::Plugin))?;
        // The first operations open what is opened at first use.
        for _ in 0..4 {
            plugin_window(self.ops, Direction::Put, &puts)?;
            plugin_window(self.ops, Direction::Get, &gets)?;
        }
        let mut section = 0;
        for kind in Kind::ALL {
            for length in kind.lengths() {
                nvshmem_bench_mark(section);
                section += 1;
                match kind {
                    Kind::Put => self.puts(&puts, length)?,
                    Kind::PutTight => self.tight(Direction::Put, &puts, length)?,
                    Kind::GetTight => self.tight(Direction::Get, &gets, length)?,
                    Kind::QuietEmpty => {
                        for _ in 0..length {
                            self.ops.quiet_pe(1).map_err(|e| e.to_string())?;
                        }
                    }
                    Kind::ProgressIdle => {
                        for _ in 0..length {
                            self.ops.progress().map_err(|e| e.to_string())?;
                        }
                    }
                }
            }
        }
        nvshmem_bench_mark(section);
        Ok(())
    }

    fn plan(&self, direction: Direction) -> Result<Vec<Piece>, String> {
        let Areas { from, to } = self.areas;
        let mut pieces = Vec::new();
        for slot in 0..WINDOW {
            let at = slot * BYTES;
            let (remote, local) = match direction {
                Direction::Put => (to, from),
                Direction::Get => (from, to),
            };
            let planned = self.ops.plan(1, remote.plus(at), local.plus(at), BYTES);
            pieces.extend(planned.map_err(|e| e.to_string())?);
        }
        Ok(pieces)
    }

    /// Puts whose completions are all there before the first poll for them: as few polls find
    /// nothing as the interface allows.
    fn puts(&mut self, plan: &[Piece], count: u64) -> Result<(), String> {
        for _ in 0..count / WINDOW {
            self.seed += 1;
            let seed = self.seed;
            stamp(self.ops, self.areas.from, BYTES, WINDOW, seed)?;
            for piece in plan {
                self.ops.issue_put(piece).map_err(|e| e.to_string())?;
            }
            self.control.ask(Command::Await { bytes: BYTES, window: WINDOW, seed })?;
            self.ops.progress().map_err(|e| e.to_string())?;
            self.ops.progress().map_err(|e| e.to_string())?;
            self.ops.quiet_pe(1).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn tight(&mut self, direction: Direction, plan: &[Piece], count: u64) -> Result<(), String> {
        self.seed += 1;
        let (bytes, window, seed) = (BYTES, WINDOW, self.seed);
        match direction {
            Direction::Put => stamp(self.ops, self.areas.from, bytes, window, seed)?,
            Direction::Get => self.control.ask(Command::Stamp { bytes, window, seed })?,
        }
        for _ in 0..count / WINDOW {
            plugin_window(self.ops, direction, plan)?;
        }
        match direction {
            Direction::Put => self.control.ask(Command::CheckStamps { bytes, window, seed }),
            Direction::Get => check_stamps(self.ops, self.areas.to, bytes, window, seed),
        }
    }
}
