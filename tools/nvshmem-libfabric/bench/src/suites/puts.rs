//! Puts and gets: the plugin beside raw libfabric, or by itself at every size.
//!
//! Both sides run on the same memory, in the same loop: post a window, with a poll after every 32
//! posts as NVSHMEM's proxy does, then wait for all of it.

use std::fmt;

use nvshmem_sim::{BoxError, Host, Job, JobSettings, Piece};

use crate::by_size::BySize;
use crate::harness::pace::Effort;
use crate::harness::suite::Suite;
use crate::pe::party::RawSide;
use crate::pe::source::Source;
use crate::pe::window::{Areas, Direction, Window};
use crate::pe::{Opened, open_raw};
use crate::raw::Promise;
use crate::times::case::{Case, Figure, Shape, Side, Size, Unit};
use crate::times::rounds::{Rounds, Schedule, Took};

/// The suite.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Puts {
    /// The plugin beside raw libfabric.
    BesideRaw,
    /// The plugin alone.
    Alone(BySize),
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfers {
    pub(crate) direction: Direction,
    /// Bytes of one operation.
    pub(crate) bytes: u64,
    /// Operations posted before the loop waits for all of them.
    pub(crate) window: u64,
    /// Who moves them.
    pub(crate) sides: &'static [Side],
}

/// Sizes and windows. Small operations are posted in windows as a benchmark's user would; large
/// ones fill any pipe with a few.
const SIZES: [(u64, u64); 6] =
    [(8, 64), (64, 64), (4 << 10, 64), (64 << 10, 16), (1 << 20, 4), (16 << 20, 4)];

/// Up to this size it is the rate of messages that counts.
const RATE_BYTES: u64 = 64;

/// Largest window of those beside raw libfabric.
const SLOTS: usize = 64;

/// The sides, in the order in which they are reported.
const BOTH: &[Side] = &[Side::Raw, Side::Plugin];

impl Puts {
    /// Bytes of the largest window: of each of the two areas.
    fn area(self) -> u64 {
        let cases = self.cases(Self::SHAPES[0]);
        cases.iter().map(|case| case.bytes * case.window).max().unwrap_or(0)
    }
}

impl Suite for Puts {
    const NAME: &'static str = "bench-puts";
    const EFFORT: Effort = Effort { jobs: 5, rounds: 24 };

    type Case = Transfers;
    type State = Areas;

    fn job(&self, job: JobSettings) -> JobSettings {
        // One chunk, so that no operation is cut.
        let heap = 2 * self.area().next_power_of_two().max(4096);
        let job = job.heap(heap, heap);
        match self {
            Puts::BesideRaw => job,
            Puts::Alone(by_size) => by_size.tell(job),
        }
    }

    fn of_job(job: &Job) -> Result<Self, BoxError> {
        Ok(BySize::told(job)?.map_or(Puts::BesideRaw, Puts::Alone))
    }

    fn cases(&self, _shape: Shape) -> Vec<Transfers> {
        let of = |direction| {
            SIZES.map(|(bytes, window)| Transfers { direction, bytes, window, sides: BOTH })
        };
        match self {
            Puts::BesideRaw => [of(Direction::Put), of(Direction::Get)].concat(),
            Puts::Alone(by_size) => by_size.cases(),
        }
    }

    fn open(&self, job: &Job, host: &Host<'_>) -> Result<Opened<Areas>, BoxError> {
        let state = Areas::alloc(host, self.area())?;
        if let Puts::Alone(_) = self {
            return Ok(Opened { description: String::new(), raw: RawSide::Nothing, state });
        }
        // SAFETY: it lives in the PE's part, which ends before `finalize`.
        let raw = unsafe { open_raw(job, host, Promise::Delivered, SLOTS)? };
        Ok(Opened { description: raw.describe(), raw: RawSide::Transfers(raw), state })
    }

    fn measure(
        source: &mut Source<'_, Areas>,
        case: Transfers,
        schedule: Schedule,
    ) -> Result<Rounds, String> {
        let window = source.state.window(case.direction, case.bytes, case.window);
        let plan = source.party.plan(1, &window)?;
        let issue = |side| {
            let (window, plan) = (&window, &plan);
            move |source: &mut Source<'_, Areas>| issue(source, side, window, plan)
        };
        for &side in case.sides {
            source.prove(side, &window, issue(side)).map_err(|e| format!("{side}: {e}"))?;
        }
        schedule.run(case.sides, case.window, |side, windows| {
            let took = source.timed(side, &window, windows, issue(side));
            took.map(Took::from).map_err(|e| format!("{side}: {e}"))
        })
    }
}

#[inline]
fn issue(
    source: &mut Source<'_, Areas>,
    side: Side,
    window: &Window,
    plan: &[Piece],
) -> Result<(), String> {
    match side {
        Side::Raw => source.party.raw_window(window),
        _ => source.party.window(window.direction, plan),
    }
}

impl Case for Transfers {
    fn sides(&self) -> Vec<Side> {
        self.sides.into()
    }

    fn unit(&self) -> Unit {
        if self.bytes <= RATE_BYTES { Unit::Rate } else { Unit::Bandwidth(self.bytes) }
    }

    fn figures(&self, provider: &str) -> Vec<Figure> {
        if !self.sides.contains(&Side::Raw) {
            return Vec::new();
        }
        let rate = if self.bytes <= RATE_BYTES { "_rate" } else { "" };
        let name = format!("{self}{rate}_over_raw_{provider}");
        vec![Figure::rate_over(name, Side::Plugin, Side::Raw)]
    }
}

impl fmt::Display for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.direction, Size(self.bytes))?;
        // A size may have several windows there.
        if self.sides.contains(&Side::Raw) { Ok(()) } else { write!(f, "_by_{}", self.window) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::suite::tests::names_of;

    #[test]
    fn figures_are_named_by_direction_size_and_provider() {
        let names = names_of(&Puts::BesideRaw);
        assert_eq!(names.len(), 12);
        for name in ["put_8B_rate_over_raw_tcp", "put_64KiB_over_raw_tcp", "get_16MiB_over_raw_tcp"]
        {
            assert!(names.contains(name), "{name}: {names:?}");
        }
    }

    #[test]
    fn every_window_fits() {
        let cases = Puts::BesideRaw.cases(Puts::SHAPES[0]);
        assert_eq!(cases.iter().map(|case| case.window as usize).max(), Some(SLOTS));
    }
}
