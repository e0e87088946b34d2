//! Puts with signal: the PEs' part. Both PEs are counted, in sections that are marked on both at once.

use nvshmem_abi::c;
use nvshmem_sim::{BoxError, Job, Piece, PlannedAmo};

use super::Counted;
use crate::pe::control::Command;
use crate::pe::part;
use crate::pe::window::{Direction, Window};
use crate::suites::signals::State;
use crate::times::case::Side;

type Source<'a> = crate::pe::source::Source<'a, State>;

/// Name of the scenario.
pub(super) const SCENARIO: &str = "count-signals";

/// Operations in a window, of 8 bytes each.
const WINDOW: u64 = 64;
const BYTES: u64 = 8;

/// Operations of the two sections. Multiples of what one acknowledgement covers, which is at most
/// four windows.
const LENGTHS: [u64; 2] = [16 * WINDOW, 144 * WINDOW];

/// The figures: of PE 0 and of PE 1.
pub(super) fn counted() -> Vec<Vec<Counted>> {
    let figure = |end| Counted {
        what: format!("8-byte put_signal, {end}"),
        name: format!("put_signal_{end}_instructions"),
        section: 0,
        lengths: LENGTHS,
        broken_down: true,
    };
    ["sender", "receiver"].map(|end| vec![figure(end)]).into()
}

/// One PE.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    part(job, State::open, sections).map(drop)
}

fn sections(source: &mut Source<'_>) -> Result<(), String> {
    let signal = source.party.signal(1, c::NVT_AMO_SIGNAL_ADD, source.state.counter)?;
    let window = source.state.areas.window(Direction::Put, BYTES, WINDOW);
    let plan = source.party.plan(1, &window)?;
    // The first operations open what is opened at first use, for which both PEs must poll.
    source.party.put_signal(Side::Plugin, &plan[0], &signal)?;
    source.party.quiet_all()?;
    source.state.signals += 1;
    settle(source)?;
    windows(source, &window, &plan, &signal, 4 * WINDOW)?;
    for length in LENGTHS {
        settle(source)?;
        source.section(true, |source| windows(source, &window, &plan, &signal, length))?;
    }
    settle(source)
}

/// Has everything acknowledged, so that sections begin alike. From then on nobody polls.
fn settle(source: &mut Source<'_>) -> Result<(), String> {
    source.control.ask(Command::Serve(Some(Side::Plugin)))?;
    source.party.quiet_all()?;
    source.control.ask(Command::Serve(None))
}

/// Windows whose signals are all there before the peer polls for the first of them, and whose
/// acknowledgements before PE 0 does: as few polls find nothing as the interface allows.
fn windows(
    source: &mut Source<'_>,
    window: &Window,
    plan: &[Piece],
    signal: &PlannedAmo,
    count: u64,
) -> Result<(), String> {
    let (ops, word) = (source.party.ops, source.state.counter);
    for _ in 0..count / WINDOW {
        let seed = source.stamp(window)?;
        plan.iter()
            .try_for_each(|piece| ops.issue_put_signal(piece, signal))
            .map_err(|e| e.to_string())?;
        source.state.signals += WINDOW;
        let value = source.state.signals;
        source.control.ask(Command::AwaitWord { word, value })?;
        ops.progress().and_then(|()| ops.progress()).map_err(|e| e.to_string())?;
        source.check(window, seed)?;
        source.control.ask(Command::CheckWord { word, value })?;
    }
    Ok(())
}
