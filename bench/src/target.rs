//! PE 1: moves the data of the side it is told to serve, and looks at its memory when asked.

use std::time::Instant;

use nvshmem_sim::Ops;

use crate::area::{Areas, check_stamps, clear, fill, missing_stamp, stamp, verify};
use crate::case::Direction;
use crate::control::{Command, Control, PATIENCE, Side};
use crate::raw::Raw;

/// Turns between two looks at the clock.
const TURNS: u32 = 1 << 16;

/// Turns after the last arrival until everything that tells of it must have left.
const AFTER: u32 = 2000;

/// Serves until the command to stop.
///
/// # Errors
/// Wrong bytes, a failure of either side, or no command for too long.
pub(crate) fn serve(
    ops: &Ops,
    raw: Option<Raw>,
    control: Control,
    areas: Areas,
) -> Result<(), String> {
    let mut target = Target { ops, raw, control, areas, side: Side::Plugin };
    let served = target.serve();
    if served.is_err() {
        target.control.fail();
    }
    served
}

struct Target<'a> {
    ops: &'a Ops,
    raw: Option<Raw>,
    control: Control,
    areas: Areas,
    side: Side,
}

impl Target<'_> {
    fn serve(&mut self) -> Result<(), String> {
        let mut since = Instant::now();
        let mut turns = 0;
        loop {
            self.turn()?;
            if let Some(command) = self.control.take()? {
                if command == Command::Stop {
                    self.control.done();
                    return Ok(());
                }
                self.perform(command)?;
                self.control.done();
                (since, turns) = (Instant::now(), 0);
            }
            turns += 1;
            if turns == TURNS {
                turns = 0;
                if since.elapsed() > PATIENCE {
                    return Err(format!("no command from PE 0 for {PATIENCE:?}"));
                }
            }
        }
    }

    #[inline]
    fn turn(&mut self) -> Result<(), String> {
        match (self.side, &mut self.raw) {
            (Side::Raw, Some(raw)) => raw.turn().map_err(|e| e.to_string()),
            (Side::Raw, None) => Err(String::from("there is no raw side")),
            (Side::Plugin, _) => self.ops.progress().map_err(|e| e.to_string()),
        }
    }

    fn perform(&mut self, command: Command) -> Result<(), String> {
        let Areas { from, to } = self.areas;
        match command {
            Command::Serve(side) => self.side = side,
            Command::Prepare { direction: Direction::Put, len, .. } => clear(self.ops, to, len)?,
            Command::Prepare { direction: Direction::Get, len, seed } => {
                fill(self.ops, from, len, seed)?;
            }
            Command::Verify { len, seed } => verify(self.ops, to, len, seed)?,
            Command::Stamp { bytes, window, seed } => stamp(self.ops, from, bytes, window, seed)?,
            Command::CheckStamps { bytes, window, seed } => {
                check_stamps(self.ops, to, bytes, window, seed)?;
            }
            Command::Await { bytes, window, seed } => {
                let start = Instant::now();
                while missing_stamp(self.ops, to, bytes, window, seed)?.is_some() {
                    if start.elapsed() > PATIENCE {
                        return Err(format!("puts did not arrive within {PATIENCE:?}"));
                    }
                    self.turn()?;
                }
                for _ in 0..AFTER {
                    self.turn()?;
                }
            }
            Command::Stop => {}
        }
        Ok(())
    }
}
