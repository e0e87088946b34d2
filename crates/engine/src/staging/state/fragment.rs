//! A fragment: bytes that pass through staging as one, and how both ends of them are reached.

use crate::port::Desc;
use crate::staging::state::bounce_buffers::BounceBuffer;
use crate::staging::state::lists::List;
use crate::staging::state::role::Role;
use crate::wire::message::Spot;
use crate::wire::staged::Exposure;
use crate::wire::window::Seq;

/// How the peer's side of a fragment is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RemoteEnd {
    /// By the fabric: address and key for the segment's path.
    Fabric { remote: u64, key: u64 },
    /// By asking the peer, for a place of its own.
    Peer(Spot),
    /// What the peer has exposed.
    Exposed(Exposure),
}

/// How this side of a fragment is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalEnd {
    /// Through a bounce buffer.
    BounceBuffer,
    /// The fabric reaches it: with this descriptor for reads into it, exposed as this to be read.
    Fabric { desc: Desc, exposed: Exposure },
}

/// The puts of a pull that a list tells of; none of a pull that is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) count: u16,
    /// Whether some come behind those before them, or it is one put with its signal.
    pub(crate) in_order: bool,
}

/// Bytes that pass through staging as one, known by their segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) role: Role,
    /// Bytes, and how many of them the fabric has moved.
    pub(crate) len: usize,
    pub(crate) moved: usize,
    pub(crate) memory: usize,
    pub(crate) local_end: LocalEnd,
    pub(crate) remote_end: RemoteEnd,
    pub(crate) bounce: Option<BounceBuffer>,
    pub(crate) counts: bool,
    /// For a pull: it is copied behind all requests of its peer before this number.
    pub(crate) mark: Option<Seq>,
    /// The list of puts that it is, if it is several.
    pub(crate) list: Option<List>,
    /// For a pull of several: of which; of this lane's own, whether they have their order.
    pub(crate) listed: Listed,
    /// For one of several in their order: with which of them the group begins that is copied next,
    /// or [`ALL`].
    pub(crate) next: Option<u16>,
}

/// In [`Fragment::next`]: all of them are with the device.
pub(crate) const ALL: u16 = u16::MAX;

impl Fragment {
    pub(crate) const NONE: Fragment = Fragment {
        role: Role::Put,
        len: 0,
        moved: 0,
        memory: 0,
        local_end: LocalEnd::BounceBuffer,
        remote_end: RemoteEnd::Peer(Spot { slot: 0, offset: 0 }),
        bounce: None,
        counts: false,
        mark: None,
        list: None,
        listed: Listed { count: 0, in_order: false },
        next: None,
    };
}

impl Fragment {
    pub(crate) fn has_list(&self) -> bool {
        let Self { list, listed, remote_end, .. } = self;
        let was_listed = matches!(remote_end, RemoteEnd::Peer(to) if to.count_listed().is_some());
        list.is_some() || listed.count != 0 || was_listed
    }

    pub(crate) fn copies_from_peer(&self) -> bool {
        let Self { role, remote_end, .. } = self;
        matches!((role, remote_end), (Role::Pull(_), RemoteEnd::Exposed(from)) if from.is_in_bounce())
    }
}

/// What exposes nothing.
pub(crate) const NOWHERE: Exposure = Exposure { slot: u32::MAX, stamp: 0, offset: 0 };
