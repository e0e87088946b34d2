//! The peers of PE 0.

use super::case::Side;
use super::command::Command;
use super::party::Party;
use crate::area::{check_stamps, verify};
use crate::count::nvshmem_bench_mark;
use crate::serve::{Patience, Server};

/// A peer.
pub(crate) struct Peer<'a> {
    party: Party<'a>,
    /// What it progresses, if anything.
    served: Option<Side>,
}

impl<'a> Peer<'a> {
    pub(crate) fn new(party: Party<'a>) -> Self {
        Self { party, served: Some(Side::Plugin) }
    }

    fn signals(&self) -> Result<u64, String> {
        let Party { ops, places, .. } = &self.party;
        let word = ops.local(places.counter(), 8).map_err(|e| e.to_string())?;
        word.load_acquire().map_err(|e| e.to_string())
    }

    fn answer(&mut self, side: Side, bytes: u64, first: u64, count: u64) -> Result<(), String> {
        let (outgoing, exchanges) = (self.party.outgoing(bytes)?, self.party.exchanges(bytes)?);
        for number in first..first + count {
            self.party.await_all(side, &exchanges, number)?;
            outgoing.stamp(number)?;
            for exchange in &exchanges {
                self.party.send(side, exchange, number)?;
            }
        }
        Ok(())
    }
}

impl Server for Peer<'_> {
    type Command = Command;

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

    fn perform(&mut self, command: Command) -> Result<bool, String> {
        let (ops, to) = (self.party.ops, self.party.places.areas.to);
        match command {
            Command::Serve(side) => self.served = Some(side),
            Command::Rest => self.served = None,
            Command::Verify { len, seed } => verify(ops, to, len, seed)?,
            Command::Check { bytes, slots, seed, signals } => {
                check_stamps(ops, to, bytes, slots, seed)?;
                let counted = self.signals()?;
                if counted != signals {
                    return Err(format!("{counted} signals have been counted, not {signals}"));
                }
            }
            Command::Answer { side, bytes, first, count } => {
                self.served = Some(side);
                self.answer(side, bytes, first, count)?;
            }
            Command::Take { signals } => {
                self.served = None;
                let mut wait = Patience::new("signals");
                while self.signals()? < signals {
                    self.party.turn(Side::Plugin)?;
                    wait.turn()?;
                }
            }
            Command::Mark { section } => nvshmem_bench_mark(section),
            Command::Stop => return Ok(false),
        }
        Ok(true)
    }
}
