//! The end of a wait of one PE for another.

use std::time::{Duration, Instant};

/// Longest wait of one PE for another.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Turns between two looks at the clock.
const TURNS: u32 = 1 << 16;

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
