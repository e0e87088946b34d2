//! Answers of a fabric to posts and polls, and its errors.

use thiserror::Error;

use crate::ids::WrId;

/// Answer to a post that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Posted {
    /// The fabric has taken the segment; a completion with its work-request id will follow.
    Yes,
    /// The fabric has no capacity at present (`FI_EAGAIN`). Nothing was taken; try again later.
    Again,
}

#[derive(Debug)]
#[must_use]
pub enum Polled {
    Empty,
    /// Number of work-request ids that have completed. Received messages are not included.
    Completed(usize),
    /// A segment failed, or the rail as a whole (no work-request id). Poll again for further
    /// completions. Boxed, so that the result of a successful poll stays small.
    Failed(Box<Failure>),
}

/// A segment or a rail that failed.
#[derive(Debug)]
pub struct Failure {
    /// The failed segment or message; none when the rail as a whole failed.
    pub wr_id: Option<WrId>,
    /// Whether a message failed. Its work-request id is the one it was sent with, no segment's.
    pub is_message: bool,
    pub error: PortError,
}

/// Error of the fabric, with the call that failed and the fabric's text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{call} failed: {text} (error {code})")]
pub struct PortError {
    /// The failed call by the name of its man page, or the operation attempted.
    pub call: &'static str,
    /// The positive `fi_errno` value.
    pub code: i32,
    /// The fabric's text for the code, and the provider's own where it gives one.
    pub text: String,
}
