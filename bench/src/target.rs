//! PE 1: moves the data of the side it is told to serve, and looks at its memory when asked.

use nvshmem_sim::Ops;

use crate::area::{Areas, check_stamps, clear, fill, missing_stamp, stamp, verify};
use crate::case::Direction;
use crate::command::{Command, Side};
use crate::control::Control;
use crate::raw::Raw;
use crate::serve::{self, Patience, Server};

/// Turns after the last arrival until everything that tells of it must have left.
const AFTER: u32 = 2000;

/// Serves until the command to stop.
///
/// # Errors
/// Wrong bytes, a failure of either side, or no command for too long.
pub(crate) fn serve(
    ops: &Ops,
    raw: Option<Raw>,
    control: Control<Command>,
    areas: Areas,
) -> Result<(), String> {
    serve::serve(&mut Target { ops, raw, areas, side: Side::Plugin }, control)
}

struct Target<'a> {
    ops: &'a Ops,
    raw: Option<Raw>,
    areas: Areas,
    side: Side,
}

impl Server for Target<'_> {
    type Command = Command;

    #[inline]
    fn turn(&mut self) -> Result<(), String> {
        match (self.side, &mut self.raw) {
            (Side::Raw, Some(raw)) => raw.turn().map_err(|e| e.to_string()),
            (Side::Raw, None) => Err(String::from("there is no raw side")),
            (Side::Plugin, _) => self.ops.progress().map_err(|e| e.to_string()),
        }
    }

    fn perform(&mut self, command: Command) -> Result<bool, String> {
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
                let mut wait = Patience::new("puts");
                while missing_stamp(self.ops, to, bytes, window, seed)?.is_some() {
                    wait.turn()?;
                    self.turn()?;
                }
                for _ in 0..AFTER {
                    self.turn()?;
                }
            }
            Command::Stop => return Ok(false),
        }
        Ok(true)
    }
}
