//! Puts with signal, and signals alone: the PEs' part. Both PEs are counted, in sections that are
//! marked on both at once.

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

/// Operations in a window.
const WINDOW: u64 = 64;

/// The parameter for the bytes of each, 8 unless given.
pub(super) const BYTES: &str = "bytes";
/// Too many for one message.
pub(super) const LONG: u64 = 256;
/// Of those there are fewer in a window, so that each may be under way, and fewer in all.
const FEWER: u64 = 8;

/// Operations of the two sections. Multiples of what one acknowledgement covers, which is at most
/// four windows.
const LENGTHS: [u64; 2] = [16 * WINDOW, 144 * WINDOW];

/// What a section repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Puts with signal.
    PutSignal,
    /// Signals without data: atomics that fetch nothing.
    Signal,
}

impl Kind {
    /// All, in the order in which they are run.
    pub(super) const ALL: [Kind; 2] = [Kind::PutSignal, Kind::Signal];

    /// In the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::PutSignal => "put_signal",
            Kind::Signal => "signal",
        }
    }
}

/// The figures, of PE 0 and of PE 1. Their names end like this. Of signals alone only where no put
/// is long.
pub(super) fn counted(suffix: &str, long: bool) -> Vec<Vec<Counted>> {
    let bytes = if long { LONG } else { 8 };
    let kinds = if long { &Kind::ALL[..1] } else { &Kind::ALL };
    let figure = |kind: Kind, end| Counted {
        what: format!("{bytes}-byte {}, {end}", kind.name()),
        name: format!("{}_{end}_instructions{suffix}", kind.name()),
        section: 2 * kind as usize,
        lengths: LENGTHS.map(|length| if long { length / FEWER } else { length }),
        broken_down: kind == Kind::PutSignal,
    };
    let of = |end| kinds.iter().map(|&kind| figure(kind, end)).collect();
    ["sender", "receiver"].map(of).into()
}

/// One PE.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let bytes = job.param_or(BYTES, 8)?;
    part(job, State::open, move |source| sections(source, bytes))
}

fn sections(source: &mut Source<'_>, bytes: u64) -> Result<(), String> {
    let fewer = if bytes == LONG { FEWER } else { 1 };
    let signal = source.party.signal(1, c::NVT_AMO_SIGNAL_ADD, source.state.counter)?;
    let window = source.state.areas.window(Direction::Put, bytes, WINDOW / fewer);
    let plan = source.party.plan(1, &window)?;
    // The first operations open what is opened at first use, for which both PEs must poll.
    source.party.put_signal(Side::Plugin, &plan[0], &signal)?;
    source.party.quiet_all()?;
    source.state.signals += 1;
    settle(source)?;
    for kind in Kind::ALL {
        // Signals wait for puts before them.
        settle(source)?;
        windows(source, kind, &window, &plan, &signal, 4 * WINDOW / fewer)?;
        for length in LENGTHS.map(|length| length / fewer) {
            settle(source)?;
            source
                .section(true, |source| windows(source, kind, &window, &plan, &signal, length))?;
        }
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
    kind: Kind,
    window: &Window,
    plan: &[Piece],
    signal: &PlannedAmo,
    count: u64,
) -> Result<(), String> {
    let (ops, word) = (source.party.ops, source.state.counter);
    let in_window = plan.len() as u64;
    for _ in 0..count / in_window {
        let seed = source.stamp(window)?;
        plan.iter()
            .try_for_each(|piece| match kind {
                Kind::PutSignal => ops.issue_put_signal(piece, signal),
                Kind::Signal => ops.issue_amo(signal),
            })
            .map_err(|e| e.to_string())?;
        source.state.signals += in_window;
        let value = source.state.signals;
        source.pause();
        if in_window < WINDOW {
            // Signals that wait for their data to be delivered leave now.
            ops.progress().and_then(|()| ops.progress()).map_err(|e| e.to_string())?;
            source.pause();
        }
        let wanted = Command::AwaitWord { word, value };
        source.control.begin(wanted)?;
        // A NIC beside may be late all the same, and then the sender has to poll.
        source.control.finish_with(wanted, || ops.progress().map_err(|e| e.to_string()))?;
        source.pause();
        ops.progress().and_then(|()| ops.progress()).map_err(|e| e.to_string())?;
        if kind == Kind::PutSignal {
            source.check(window, seed)?;
        }
        source.control.ask(Command::CheckWord { word, value })?;
    }
    Ok(())
}
