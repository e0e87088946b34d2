//! One-sided operations on the rails of a lane, and their completions.

use std::fmt;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Polled, PortError, Posted};

/// Maximum number of completions that one [`DataPath::drain`] returns.
///
/// Large enough to amortise the fixed cost of a poll, small enough that retries and new work are
/// not starved by a long drain.
pub const POLL_BATCH: usize = 32;

/// Address of a peer's rail in the port's address vector (`fi_addr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerAddr(pub u64);

/// A local descriptor of registered memory, opaque to the engine (`fi_mr_desc` as an integer).
/// Zero where the rail needs none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Desc(pub usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// Memory of this process: virtual address, and descriptor for the rail the segment is posted
    /// on. It stays valid and, for a write, unchanged until the segment completes.
    Memory { addr: usize, desc: Desc },
    /// A value carried by the segment itself, in its first `len` bytes (little endian). The port
    /// copies it before [`DataPath::post`] returns. Only for writes of at most 8 bytes.
    Value(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Local memory to the peer. Complete when the data is visible in the peer's memory, as far as
    /// the provider keeps `FI_DELIVERY_COMPLETE` (docs/providers.md).
    Write,
    /// The peer's memory to local memory. Complete when the data is in local memory.
    Read,
}

/// One segment, ready to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    pub direction: Direction,
    /// Source or destination in this process.
    pub local: Local,
    /// Bytes to move. At least 1 and at most the rail's [`RailLimits::max_segment`].
    pub len: usize,
    /// Source or destination at the peer: a virtual address or an offset, as the peer's handle
    /// says.
    pub remote: u64,
    /// The peer's key for that memory on the rail addressed.
    pub key: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    Transfer(&'a Transfer),
    /// A write that also notifies the peer, by four or eight bytes of immediate data, once its data
    /// is visible there: the peer's [`Messaging::receive`] returns them, on the addressed rail,
    /// exactly once. Only on rails with [`RailLimits::immediate_data`].
    ///
    /// [`Messaging::receive`]: crate::port::Messaging::receive
    WriteWithImmediate(&'a Transfer, u64),
}

/// Capabilities and limits of a rail, constant once the port is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RailLimits {
    /// Largest segment in bytes. At least 1.
    pub max_segment: usize,
    /// Maximum number of segments in flight, at least 1. The port's completion queue holds at least
    /// this many, so it cannot overflow.
    pub depth: u32,
    /// Whether the local side needs the descriptor of a registered region (`FI_MR_LOCAL`, or
    /// `FI_MR_HMEM` for device memory).
    pub needs_desc: bool,
    /// Whether writes may carry immediate data, see [`Operation::WriteWithImmediate`].
    pub immediate_data: bool,
    /// Bytes of the longest message that is worth sending rather than writing. At least
    /// [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE), and at most
    /// [`MAX_LONG_MESSAGE`](crate::port::packet::MAX_LONG_MESSAGE).
    pub longest_message: usize,
    /// Connections over which threads of the port move long transfers, beside the thread that owns
    /// the lane; see [`DataPath::post_bulk`]. 0 where the NIC's hardware moves them.
    pub bulk: u8,
}

/// Consumer of the completions of a poll.
pub trait Completions {
    /// Takes the completion of the work-request id with this index. Returns false, without effect,
    /// if the lane's table has none.
    fn take(&mut self, index: usize) -> bool;

    /// Takes as many of the first completions as end together. Returns how many.
    #[inline(always)]
    fn take_alike(&mut self, _indices: impl ExactSizeIterator<Item = usize>) -> usize {
        0
    }
}

/// Passes the completions of a poll to `completions`, in runs that end together. When the next
/// entry is not in the lane's table, `others` gets the remaining entries, consumes that one and any
/// number of further foreign entries after it, and returns how many.
#[inline(always)]
pub fn dispatch_completions<E>(
    completions: &mut impl Completions,
    entries: &[E],
    index_of: impl Fn(&E) -> usize,
    mut others: impl FnMut(&[E]) -> usize,
) {
    let mut left = entries;
    loop {
        let alike = completions.take_alike(left.iter().map(&index_of));
        if alike == left.len() {
            break;
        }
        left = left.get(alike..).unwrap_or_default();
        let Some(entry) = left.first() else { break };
        let taken = if completions.take(index_of(entry)) { 1 } else { others(left).max(1) };
        left = left.get(taken..).unwrap_or_default();
    }
}

impl<F: FnMut(usize) -> bool> Completions for F {
    fn take(&mut self, index: usize) -> bool {
        self(index)
    }
}

pub trait DataPath {
    /// State that [`DataPath::try_post`] needs of a rail.
    type Fast: Copy + fmt::Debug + Send;

    /// Returns the limits of each rail, in rail order. The number of rails is 1 to 32.
    fn limits(&self) -> &[RailLimits];

    /// Returns the name of a rail for users: its NIC, interface or address.
    fn rail_name(&self, rail: RailId) -> &str;

    /// Returns true if unregistered local memory may be used without descriptor even where
    /// [`RailLimits::needs_desc`] (host memory, where only device memory must be registered).
    fn takes_unregistered(&self) -> bool {
        false
    }

    /// Posts an operation. Never blocks.
    ///
    /// `wr_id` is unused and below the number of segments that the lane has for the port's limits.
    ///
    /// # Errors
    /// The fabric refused the operation for good; its work-request id is free again.
    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Posted, PortError>;

    /// Posts a long transfer as [`DataPath::post`] does where the rail has connections for these
    /// ([`RailLimits::bulk`]): another thread moves the bytes. Its completion comes like any other,
    /// in any order with others, and may report what the fabric refuses for good. Returns None,
    /// with no side effect, if no connection can take it now: use [`DataPath::post`] then.
    #[inline]
    fn post_bulk(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        _wr_id: WrId,
        _operation: Operation<'_>,
    ) -> Result<Option<Posted>, PortError> {
        Ok(None)
    }

    /// Returns a peer whose process has ended according to the system, each such peer once. To be
    /// polled now and then. Nothing is known of peers on other hosts.
    fn ended_process(&mut self) -> Option<Pe> {
        None
    }

    /// Returns an error of a whole rail that no completion reports, each error once.
    fn endpoint_error(&mut self, _rail: RailId) -> Option<PortError> {
        None
    }

    /// Returns true if [`DataPath::try_post`] may post something.
    fn has_fast_path(&self) -> bool {
        true
    }

    /// Returns what [`DataPath::try_post`] takes for a rail.
    fn fast(&self, rail: RailId) -> Self::Fast;

    /// Posts a transfer on the fast path: returns true if the fabric has taken it. Otherwise there
    /// is no side effect, and [`DataPath::post`] tells the reason. Never panics.
    ///
    /// `fast` is this port's state of the rail. Of `wr_id` the same holds as for
    /// [`DataPath::post`].
    #[inline(always)]
    fn try_post(
        &mut self,
        _fast: Self::Fast,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        transfer: &Transfer,
    ) -> bool {
        matches!(self.post(rail, to, wr_id, Operation::Transfer(transfer)), Ok(Posted::Yes))
    }

    /// Polls. Returns true if the rail has something for [`DataPath::drain`], which must be called
    /// next. An idle poll is this call alone.
    #[inline(always)]
    fn has_completions(&mut self, _rail: RailId) -> bool {
        true
    }

    /// Takes the completions that [`DataPath::has_completions`] has found, or polls; drives the
    /// fabric's progress. Never blocks. Passes the index of each completed work-request id to
    /// `completions`, at most [`POLL_BATCH`] of them, and possibly indices that are no work-request
    /// id's.
    ///
    /// Received messages wait for [`Messaging::receive`], which must take all of them before the
    /// next poll of the rail: so at most one batch waits at a time.
    ///
    /// [`Messaging::receive`]: crate::port::Messaging::receive
    fn drain(&mut self, rail: RailId, completions: &mut impl Completions) -> Polled;
}
