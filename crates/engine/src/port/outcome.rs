//! Answers of a fabric: taken or not, completed, failed, and why.

use std::fmt;

use crate::ids::WrId;

/// Answer to a post that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Posted {
    /// The fabric has taken the segment; a completion with its work-request id will follow.
    Yes,
    /// The fabric has no room at present (`FI_EAGAIN`). Nothing was taken; try again later.
    Again,
}

/// Answer to a poll.
#[derive(Debug)]
#[must_use]
pub enum Polled {
    /// Nothing has completed.
    Empty,
    /// So many work-request ids have completed. Messages that have come in are none of them.
    Completed(usize),
    /// One segment failed, or the rail as a whole (no work-request id). Poll again for what
    /// follows. In a box, so that polls that succeed have little to give.
    Failed(Box<Failure>),
}

/// A segment or a rail that failed.
#[derive(Debug)]
pub struct Failure {
    /// The segment that failed; none when the rail as a whole did.
    pub wr_id: Option<WrId>,
    /// It was a message that failed. The work-request id is the one it was sent with, which is no
    /// segment's.
    pub is_message: bool,
    /// What the fabric said.
    pub error: PortError,
}

/// An error of the fabric, with what was tried and the fabric's own text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortError {
    /// The call that failed, by its man page's name, or what was attempted.
    pub call: &'static str,
    /// The positive `fi_errno` value.
    pub code: i32,
    /// The fabric's text for the code, and the provider's own where it gives one.
    pub text: String,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} (error {})", self.call, self.text, self.code)
    }
}

impl std::error::Error for PortError {}

const NO_MEMORY: i32 = 12;

impl PortError {
    /// Whether it is for lack of memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == NO_MEMORY
    }

    pub(crate) fn not_offered(call: &'static str, why: &str) -> Self {
        Self { call, code: 0, text: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_told_from_other_errors() {
        let error = |code| PortError { call: "fi_mr_reg", code, text: String::new() };
        assert_eq!([11, 12, 13].map(|code| error(code).is_out_of_memory()), [false, true, false]);
    }
}
