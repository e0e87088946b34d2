//! What the PEs other than PE 0 do: they move data, and between two turns look for a command.

use super::control::{Command, Control};
use super::exchange::answer;
use super::party::Party;
use super::patience::Patience;
use crate::callgrind::nvshmem_bench_mark;
use crate::times::case::Side;

/// Turns after the last arrival until everything that tells of it must have left.
const AFTER: u32 = 2000;

/// Serves until the last command.
///
/// # Errors
/// Wrong bytes, a failure of either side, or no command for too long.
pub(crate) fn serve(party: Party<'_>, mut control: Control) -> Result<(), String> {
    let served = serve_all(&mut Peer { party, served: Some(Side::Plugin) }, &mut control);
    if served.is_err() {
        control.fail();
    }
    served
}

fn serve_all(peer: &mut Peer<'_>, control: &mut Control) -> Result<(), String> {
    let mut wait = Patience::new("a command from PE 0");
    loop {
        peer.turn()?;
        if let Some(command) = control.take()? {
            peer.perform(command)?;
            control.done();
            if command == Command::Stop {
                return Ok(());
            }
            wait = Patience::new("a command from PE 0");
        }
        wait.turn()?;
    }
}

/// A peer of PE 0.
struct Peer<'a> {
    party: Party<'a>,
    /// What it progresses, if anything.
    served: Option<Side>,
}

impl Peer<'_> {
    #[inline]
    fn turn(&mut self) -> Result<(), String> {
        match self.served {
            Some(side) => self.party.turn(side),
            None => {
                std::thread::yield_now();
                Ok(())
            }
        }
    }

    fn perform(&mut self, command: Command) -> Result<(), String> {
        let ops = self.party.ops;
        match command {
            Command::Serve(side) => self.served = side,
            Command::Fill { slots, seed } => slots.fill(ops, seed)?,
            Command::Clear { slots } => slots.clear(ops)?,
            Command::Verify { slots, seed } => slots.verify(ops, seed)?,
            Command::Stamp { slots, seed } => slots.stamp(ops, seed)?,
            Command::Check { slots, seed } => slots.check(ops, seed)?,
            Command::CheckWord { word, value } => {
                let found = self.party.word(word)?;
                if found != value {
                    return Err(format!("the word at {word:?} is {found}, not {value}"));
                }
            }
            Command::AwaitStamps { slots, seed } => {
                let mut wait = Patience::new("puts");
                while slots.missing_stamp(ops, seed)?.is_some() {
                    wait.turn()?;
                    self.turn()?;
                }
                for _ in 0..AFTER {
                    self.turn()?;
                }
            }
            Command::AwaitWord { word, value } => {
                self.served = None;
                let mut wait = Patience::new("signals");
                while self.party.word(word)? < value {
                    self.party.turn(Side::Plugin)?;
                    wait.turn()?;
                }
            }
            Command::Answer { side, boxes, bytes, first, count } => {
                self.served = Some(side);
                answer(&mut self.party, side, boxes, bytes, first..first + count)?;
            }
            Command::Mark => nvshmem_bench_mark(),
            Command::Stop => {}
        }
        Ok(())
    }
}
