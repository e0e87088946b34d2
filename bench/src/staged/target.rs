//! PE 1: moves data, and looks at its memory when asked.

use nvshmem_sim::Ops;

use super::command::Command;
use super::places::Places;
use crate::area::{check_stamps, clear, fill, stamp, verify};
use crate::case::Direction;
use crate::serve::Server;

/// PE 1.
pub(crate) struct Target<'a> {
    pub(crate) ops: &'a Ops,
    pub(crate) places: Places,
}

impl Server for Target<'_> {
    type Command = Command;

    #[inline]
    fn turn(&mut self) -> Result<(), String> {
        self.ops.progress().map_err(|e| e.to_string())
    }

    fn perform(&mut self, command: Command) -> Result<bool, String> {
        let (ops, places) = (self.ops, self.places);
        match command {
            Command::Prepare { side, direction: Direction::Put, len, .. } => {
                clear(ops, places.of(side)?.areas.to, len)?;
            }
            Command::Prepare { side, direction: Direction::Get, len, seed } => {
                fill(ops, places.of(side)?.areas.from, len, seed)?;
            }
            Command::Verify { side, len, seed } => {
                verify(ops, places.of(side)?.areas.to, len, seed)?;
            }
            Command::Stamp { side, bytes, window, seed } => {
                stamp(ops, places.of(side)?.areas.from, bytes, window, seed)?;
            }
            Command::CheckStamps { side, bytes, window, seed } => {
                check_stamps(ops, places.of(side)?.areas.to, bytes, window, seed)?;
            }
            Command::CheckSignal { side, value } => {
                let word = ops.local(places.of(side)?.signal, 8).map_err(|e| e.to_string())?;
                let found = word.load_acquire().map_err(|e| e.to_string())?;
                if found != value {
                    return Err(format!("the signal is {found}, not {value}"));
                }
            }
            Command::Stop => return Ok(false),
        }
        Ok(true)
    }
}
