//! The role of a fragment: whose put or get its bytes are of.

use crate::port::copies::CopyDirection;
use crate::wire::message::RequestId;

/// What a fragment is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A put of this PE.
    Put,
    /// A get of this PE.
    Get,
    /// A peer's put: its bytes are to be read and stored.
    Pull(RequestId),
    /// A peer's get: bytes are to be exposed to it.
    Ask(RequestId),
}

impl Role {
    /// The direction in which its bytes are copied on this side.
    pub(crate) fn direction(self) -> CopyDirection {
        match self {
            Role::Put | Role::Ask(_) => CopyDirection::Out,
            Role::Get | Role::Pull(_) => CopyDirection::In,
        }
    }
}
