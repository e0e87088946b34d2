//! Messages that a lane owes its peers: answers, and news that they wait for.
//!
//! They have no numbers, and are not acknowledged, unless rails are monitored: then all but replies
//! to fetches have, see [`crate::posting::peers::answers`]. How many there are is bounded by what
//! peers may ask for at a time: fetches
//! ([`FETCHES`](crate::state::messages::reliable_channel::FETCHES)) and requests about staged
//! memory, and the keys of a region are told to a peer once.

use std::sync::Arc;

use crate::ids::Pe;
use crate::state::regions::View;
use crate::wire::format::RequestId;
use crate::wire::staged::{Exposure, MAX_PAYLOAD};
use crate::wire::window::Seq;

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Unnumbered {
    pub(crate) pe: Pe,
    pub(crate) what: Owed,
}

/// What it says.
#[expect(clippy::large_enum_variant, reason = "few wait at a time, and none is to be allocated")]
#[derive(Clone, Debug)]
pub(crate) enum Owed {
    /// The word before a fetching operation.
    Word { request_id: RequestId, value: u64 },
    /// The bytes of a pull are there.
    Pulled { request_id: RequestId },
    /// A few bytes that were asked for.
    Loaded { request_id: RequestId, bytes: [u8; MAX_PAYLOAD], len: usize },
    /// Where bytes that were asked for can be read.
    Exposed { request_id: RequestId, from: Exposure },
    /// Something cannot be done.
    Refused { request_id: RequestId, why: Arc<str> },
    /// What was exposed has been read.
    Release { request_id: RequestId },
    /// The keys of a region, from this rail on.
    Keys { view: Arc<View>, first: u8 },
}

impl Owed {
    /// What a message of it has in the place of a number, if it has none of its own: that of the
    /// request that a reply answers.
    pub(crate) fn request(&self) -> Seq {
        if let Owed::Word { request_id, .. } = self { request_id.seq } else { Seq(0) }
    }

    pub(crate) fn is_word(&self) -> bool {
        matches!(self, Owed::Word { .. })
    }

    pub(crate) fn tells_keys(&self) -> bool {
        matches!(self, Owed::Keys { .. })
    }

    pub(crate) fn needs_keys(&self) -> bool {
        matches!(self, Owed::Exposed { .. })
    }
}

/// The request id of a request that has none.
pub(crate) const NO_TICKET: RequestId = RequestId { slot: u32::MAX, seq: Seq(0) };
