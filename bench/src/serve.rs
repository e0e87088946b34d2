//! What the PEs other than PE 0 do: they move data, and between two turns look for a command.

use std::time::Instant;

use crate::control::{Command, Control, PATIENCE};

/// Turns between two looks at the clock.
pub(crate) const TURNS: u32 = 1 << 16;

/// One that serves.
pub(crate) trait Server {
    type Command: Command;

    /// Moves data once.
    fn turn(&mut self) -> Result<(), String>;

    /// Does what it is asked for. Whether more commands follow.
    fn perform(&mut self, command: Self::Command) -> Result<bool, String>;
}

/// Serves until the last command.
///
/// # Errors
/// Those of the server, or no command for too long.
pub(crate) fn serve<S: Server>(
    server: &mut S,
    mut control: Control<S::Command>,
) -> Result<(), String> {
    let served = serve_all(server, &mut control);
    if served.is_err() {
        control.fail();
    }
    served
}

fn serve_all<S: Server>(server: &mut S, control: &mut Control<S::Command>) -> Result<(), String> {
    let mut wait = Patience::new("a command from PE 0");
    loop {
        server.turn()?;
        if let Some(command) = control.take()? {
            let more = server.perform(command)?;
            control.done();
            if !more {
                return Ok(());
            }
            wait = Patience::new("a command from PE 0");
        }
        wait.turn()?;
    }
}

/// Ends a loop that waits for too long, and looks at the clock only rarely.
pub(crate) struct Patience {
    what: &'static str,
    start: Option<Instant>,
    turns: u32,
}

impl Patience {
    /// Begins to wait for something.
    #[inline]
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, start: None, turns: 0 }
    }

    /// Another turn in vain.
    ///
    /// # Errors
    /// It was one too many.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        self.turns += 1;
        if self.turns == TURNS { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), String> {
        self.turns = 0;
        if self.start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(format!("waited for {} for {PATIENCE:?}", self.what));
        }
        Ok(())
    }
}
