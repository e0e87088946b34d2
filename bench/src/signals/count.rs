//! Instructions of a put with signal, at the sender and at the receiver: the PEs' part.
//!
//! Both PEs run under callgrind; sections are marked on both at once. Who counts and how is as in
//! [`crate::count`].

use nvshmem_abi::c;
use nvshmem_sim::{BoxError, Job, Piece, PlannedAmo};

use super::case::Side;
use super::command::Command;
use super::party::Party;
use super::peer::Peer;
use super::places::Places;
use crate::area::stamp;
use crate::control::Control;
use crate::count::nvshmem_bench_mark;
use crate::{serve, setup};

/// Name of the scenario.
pub(crate) const SCENARIO: &str = "count-signals";

/// Operations in a window, of 8 bytes each.
const WINDOW: u64 = 64;
const BYTES: u64 = 8;

/// Operations of the two sections. Multiples of what one acknowledgement covers, which is at most
/// four windows.
pub(crate) const LENGTHS: [u64; 2] = [16 * WINDOW, 144 * WINDOW];

/// Which sections they are: one for each mark, and between those two what makes them begin alike.
pub(crate) const SECTIONS: [usize; 2] = [0, 2];

/// One PE. Parameter: `control`.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let control = setup::control(job)?;
    let host = job.init()?;
    let places = Places::alloc(&host)?;
    if job.pe() == 0 {
        host.proxy().run(move |ops| {
            let mut counted = Counted { party: Party::new(ops, None, places), control, signals: 0 };
            let sections = counted.sections();
            counted.control.ask(Command::Stop).and(sections)
        })??;
    } else {
        host.proxy().run(move |ops| {
            serve::serve(&mut Peer::new(Party::new(ops, None, places)), control)
        })??;
    }
    host.finalize()?;
    Ok(())
}

/// PE 0.
struct Counted<'a> {
    party: Party<'a>,
    control: Control<Command>,
    signals: u64,
}

impl Counted<'_> {
    fn sections(&mut self) -> Result<(), String> {
        let places = self.party.places;
        let signal = self.party.signal(1, c::NVT_AMO_SIGNAL_ADD, places.counter())?;
        let plan = (0..WINDOW).map(|slot| {
            let at = slot * BYTES;
            self.party.piece(1, places.areas.to.plus(at), places.areas.from.plus(at), BYTES)
        });
        let plan = plan.collect::<Result<Vec<Piece>, String>>()?;
        // The first operations open what is opened at first use, for which both PEs must poll.
        self.party.put_signal(Side::Plugin, &plan[0], &signal)?;
        self.party.quiet_all()?;
        self.signals += 1;
        self.settle()?;
        self.windows(&plan, &signal, 4 * WINDOW)?;
        let mut section = 0;
        for length in LENGTHS {
            self.settle()?;
            self.mark(section)?;
            self.windows(&plan, &signal, length)?;
            self.mark(section + 1)?;
            section += 2;
        }
        self.settle()
    }

    /// Has everything acknowledged, so that sections begin alike. From then on nobody polls.
    fn settle(&mut self) -> Result<(), String> {
        self.control.ask(Command::Serve(Side::Plugin))?;
        self.party.quiet_all()?;
        self.control.ask(Command::Rest)
    }

    fn mark(&mut self, section: u64) -> Result<(), String> {
        self.control.ask(Command::Mark { section })?;
        nvshmem_bench_mark(section);
        Ok(())
    }

    /// Windows whose signals are all there before the peer polls for the first of them, and whose
    /// acknowledgements before PE 0 does: as few polls find nothing as the interface allows.
    fn windows(&mut self, plan: &[Piece], signal: &PlannedAmo, count: u64) -> Result<(), String> {
        let ops = self.party.ops;
        let from = self.party.places.areas.from;
        for _ in 0..count / WINDOW {
            let seed = self.signals + 1;
            stamp(ops, from, BYTES, WINDOW, seed)?;
            for piece in plan {
                ops.issue_put_signal(piece, signal).map_err(|e| e.to_string())?;
            }
            self.signals += WINDOW;
            let signals = self.signals;
            self.control.ask(Command::Take { signals })?;
            ops.progress().map_err(|e| e.to_string())?;
            ops.progress().map_err(|e| e.to_string())?;
            self.control.ask(Command::Check { bytes: BYTES, slots: WINDOW, seed, signals })?;
        }
        Ok(())
    }
}
