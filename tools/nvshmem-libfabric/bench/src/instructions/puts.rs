//! Puts, gets, quiet and progress: the PEs' part. PE 0 is counted.

use nvshmem_sim::{BoxError, Job, Piece};

use super::Counted;
use crate::pe::control::Command;
use crate::pe::part;
use crate::pe::window::{Direction, Window};
use crate::suites::signals::State;
use crate::times::case::Side;

type Source<'a> = crate::pe::source::Source<'a, State>;

/// Name of the scenario.
pub(super) const SCENARIO: &str = "count-puts";

/// Rails of the two jobs.
pub(super) const RAILS: [usize; 2] = [1, 4];

/// Operations in a window, of 8 bytes each.
const WINDOW: u64 = 64;
const BYTES: u64 = 8;

/// What a section repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Windows of puts, each polled for when all of its completions are there.
    Put,
    /// Windows in the loop that the comparison with raw libfabric runs.
    Tight(Direction),
    /// `quiet(pe)` with nothing outstanding.
    QuietEmpty,
    /// `progress` with nothing outstanding.
    ProgressIdle,
}

impl Kind {
    /// All, in the order in which they are run.
    const ALL: [Kind; 5] = [
        Kind::Put,
        Kind::Tight(Direction::Put),
        Kind::Tight(Direction::Get),
        Kind::QuietEmpty,
        Kind::ProgressIdle,
    ];

    /// Operations of the two sections.
    fn lengths(self) -> [u64; 2] {
        match self {
            Kind::Put => [10 * WINDOW, 110 * WINDOW],
            Kind::Tight(_) => [20 * WINDOW, 220 * WINDOW],
            Kind::QuietEmpty | Kind::ProgressIdle => [1000, 11000],
        }
    }

    fn describe(self) -> String {
        match self {
            Kind::Put => String::from("8-byte put, posted and completed"),
            Kind::Tight(direction) => {
                format!("8-byte {direction}, with the empty polls of a tight loop")
            }
            Kind::QuietEmpty => String::from("quiet(pe) with nothing outstanding"),
            Kind::ProgressIdle => String::from("progress with nothing outstanding"),
        }
    }

    fn name(self) -> String {
        match self {
            Kind::Put => String::from("put"),
            Kind::Tight(direction) => format!("{direction}_tight_loop"),
            Kind::QuietEmpty => String::from("quiet_empty"),
            Kind::ProgressIdle => String::from("progress_idle"),
        }
    }
}

/// The figures of a job, whose names end like this; those of puts may be broken down.
pub(super) fn counted(suffix: &str, broken_down: bool) -> Vec<Counted> {
    let figure = |(at, kind): (usize, Kind)| Counted {
        what: kind.describe(),
        name: format!("{}_instructions{suffix}", kind.name()),
        section: 2 * at,
        lengths: kind.lengths(),
        broken_down: broken_down && kind == Kind::Put,
    };
    Kind::ALL.into_iter().enumerate().map(figure).collect()
}

/// One PE.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    part(job, State::open, sections)
}

fn sections(source: &mut Source<'_>) -> Result<(), String> {
    let window = |direction| source.state.areas.window(direction, BYTES, WINDOW);
    let [puts, gets] = [Direction::Put, Direction::Get].map(window);
    let put_plan = source.party.plan(1, &puts)?;
    let get_plan = source.party.plan(1, &gets)?;
    source.control.ask(Command::Serve(Some(Side::Plugin)))?;
    // The first operations open what is opened at first use.
    for _ in 0..4 {
        source.party.window(Direction::Put, &put_plan)?;
        source.party.window(Direction::Get, &get_plan)?;
    }
    for kind in Kind::ALL {
        for length in kind.lengths() {
            source.section(false, |source| match kind {
                Kind::Put => windows(source, &puts, &put_plan, length),
                Kind::Tight(Direction::Put) => tight(source, &puts, &put_plan, length),
                Kind::Tight(Direction::Get) => tight(source, &gets, &get_plan, length),
                Kind::QuietEmpty => (0..length)
                    .try_for_each(|_| source.party.ops.quiet_pe(1))
                    .map_err(|e| e.to_string()),
                Kind::ProgressIdle => (0..length)
                    .try_for_each(|_| source.party.ops.progress())
                    .map_err(|e| e.to_string()),
            })?;
        }
    }
    Ok(())
}

/// Puts whose completions are all there before the first poll for them: as few polls find
/// nothing as the interface allows.
fn windows(
    source: &mut Source<'_>,
    window: &Window,
    plan: &[Piece],
    count: u64,
) -> Result<(), String> {
    let ops = source.party.ops;
    for _ in 0..count / WINDOW {
        let seed = source.stamp(window)?;
        plan.iter().try_for_each(|piece| ops.issue_put(piece)).map_err(|e| e.to_string())?;
        source.control.ask(Command::AwaitStamps { slots: window.to, seed })?;
        source.pause();
        ops.progress()
            .and_then(|()| ops.progress())
            .and_then(|()| ops.quiet_pe(1))
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn tight(
    source: &mut Source<'_>,
    window: &Window,
    plan: &[Piece],
    count: u64,
) -> Result<(), String> {
    let seed = source.stamp(window)?;
    for _ in 0..count / WINDOW {
        source.party.window(window.direction, plan)?;
    }
    source.check(window, seed)
}
