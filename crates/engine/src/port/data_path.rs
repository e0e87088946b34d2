//! One-sided operations of the fabric on the rails of one lane, and their completions.

use std::fmt;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Polled, PortError, Posted};

/// Most completions that one [`DataPath::drain`] returns.
///
/// Large enough to make the poll's fixed cost small beside its completions, small enough that
/// retries and new work are not starved by a long drain.
pub const POLL_BATCH: usize = 32;

/// The address of a peer's rail, as the port's own address table knows it (`fi_addr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerAddr(pub u64);

/// What a port names a work-request id by towards the fabric, opaque to the engine (the address of
/// the operation's context).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context(pub usize);

/// A local descriptor of registered memory, opaque to the engine (`fi_mr_desc` as an integer).
/// Zero where the rail needs none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Desc(pub usize);

/// The local side of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// Memory of this process: virtual address and descriptor. It stays valid and, for a write,
    /// unchanged until the segment completes.
    Memory {
        /// Virtual address of the first byte.
        addr: usize,
        /// Descriptor for the rail the segment is posted on.
        desc: Desc,
    },
    /// A value carried by the segment itself, in the first `len` bytes (little endian). The port
    /// copies it before it returns from [`DataPath::post`]. Only for writes of at most 8 bytes.
    Value(u64),
}

/// Direction of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Local memory to the peer. Complete when the data is visible in the peer's memory.
    Write,
    /// The peer's memory to local memory. Complete when the data is in local memory.
    Read,
}

/// One segment, ready to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Direction of the data.
    pub direction: Direction,
    /// Where the data is in this process.
    pub local: Local,
    /// Bytes to move. At least 1 and at most the rail's [`RailLimits::max_segment`].
    pub len: usize,
    /// Where the data is at the peer: a virtual address or an offset, as the peer's handle says.
    pub remote: u64,
    /// The peer's key for that memory on the rail addressed.
    pub key: u64,
}

/// An operation of the fabric.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// A write or a read.
    Transfer(&'a Transfer),
    /// A write that also tells the peer, by four or eight bytes of immediate data, when its data is
    /// visible there: the peer's [`Messaging::receive`] finds them, on the rail addressed, exactly
    /// once.
    /// Only on rails with [`RailLimits::immediate_data`].
    ///
    /// [`Messaging::receive`]: crate::port::Messaging::receive
    WriteWithImmediate(&'a Transfer, u64),
}

/// What a rail can do. Fixed once the port is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RailLimits {
    /// Largest segment in bytes. At least 1.
    pub max_segment: usize,
    /// Most segments that may be posted and not completed. At least 1. The port's completion
    /// queue holds at least this many, so it cannot overflow.
    pub depth: u32,
    /// Whether the local side needs the descriptor of a registered region (`FI_MR_LOCAL`; or
    /// `FI_MR_HMEM`, where that is so for device memory).
    pub needs_desc: bool,
    /// Whether writes may carry immediate data, see [`Operation::WriteWithImmediate`].
    pub immediate_data: bool,
    /// Bytes of the longest message that is worth sending rather than writing. At least
    /// [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE), and at most
    /// [`MAX_LONG_MESSAGE`](crate::port::packet::MAX_LONG_MESSAGE).
    pub longest_message: usize,
    /// Connections of the rail by which threads of the port move bytes in bulk, beside the thread
    /// that has the lane; see [`DataPath::post_bulk`]. None where the fabric's hardware moves them.
    pub bulk: u8,
}

/// Takes the completions of a poll.
pub trait Completions {
    /// Takes that of the work-request id with this index. False, and nothing has happened, if there
    /// is none in the lane's table.
    fn take(&mut self, index: usize) -> bool;

    /// Takes of the first ones as many as go together, in few instructions for each. How many.
    #[inline(always)]
    fn take_alike(&mut self, _indices: impl ExactSizeIterator<Item = usize>) -> usize {
        0
    }
}

/// Hands the completions of a poll over: what goes together at a stretch. `others` gets those that
/// are left when the first of them is not in the lane's table; it takes that one, and as many
/// behind it as it likes that are not either, and says how many.
#[inline(always)]
pub fn hand_over<E>(
    completions: &mut impl Completions,
    entries: &[E],
    index_of: impl Fn(&E) -> usize,
    mut others: impl FnMut(&[E]) -> usize,
) {
    let mut left = entries;
    loop {
        let alike = completions.take_alike(left.iter().map(&index_of));
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

/// The data path of one lane.
pub trait DataPath {
    /// What [`DataPath::try_post`] needs to know of a rail.
    type Fast: Copy + fmt::Debug + Send;

    /// Limits of each rail, in rail order. Its length is the number of rails, 1 to 32.
    fn limits(&self) -> &[RailLimits];

    /// The name of a rail for messages: the NIC, interface or address it stands for.
    fn rail_name(&self, rail: RailId) -> &str;

    /// Whether local memory that is not registered may be used all the same, with no descriptor,
    /// even where [`RailLimits::needs_desc`] (host memory, where only that of devices must be
    /// registered).
    fn takes_unregistered(&self) -> bool {
        false
    }

    /// Posts an operation. Never blocks.
    ///
    /// `wr_id` is below the number of segments that the lane has for the port's limits, and not in
    /// use.
    ///
    /// # Errors
    /// An error means that the fabric refused the operation for good; its work-request id is free
    /// again.
    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Posted, PortError>;

    /// As [`DataPath::post`], for bytes in bulk: where the rail has connections for these
    /// ([`RailLimits::bulk`]), another thread moves them. Its completion comes as any other, after
    /// and before others in any order. What the fabric refuses for good may fail there, too. None,
    /// and nothing has happened, if no connection can take it now: it is for [`DataPath::post`].
    ///
    /// # Errors
    /// As [`DataPath::post`].
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

    /// Returns a peer whose process has ended, as the system says: each such peer once. To be asked
    /// now and then. Of peers on other hosts nothing is known.
    fn ended_process(&mut self) -> Option<Pe> {
        None
    }

    /// Returns what has gone wrong with a rail as a whole and is told by no completion, each time
    /// once.
    fn trouble(&mut self, _rail: RailId) -> Option<PortError> {
        None
    }

    /// Whether [`DataPath::try_post`] can be used at all.
    fn has_fast_path(&self) -> bool;

    /// The fast path to a rail that there is.
    fn fast(&self, rail: RailId) -> Self::Fast;

    /// What the fabric is to name a work-request id by.
    fn context(&self, wr_id: WrId) -> Context {
        Context(wr_id.index())
    }

    /// As [`DataPath::post`] of a transfer, in few instructions and without reasons: whether the
    /// fabric has taken it. If not, nothing was taken, and [`DataPath::post`] tells why. Does not
    /// panic.
    ///
    /// `fast` is this port's for the rail, and the context is the work-request id's.
    #[inline(always)]
    fn try_post(
        &mut self,
        _fast: Self::Fast,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        _context: Context,
        transfer: &Transfer,
    ) -> bool {
        matches!(self.post(rail, to, wr_id, Operation::Transfer(transfer)), Ok(Posted::Yes))
    }

    /// Polls, and says whether there is anything for [`DataPath::drain`] on the same rail, which is
    /// called next then. It is the whole of an idle poll.
    #[inline(always)]
    fn has_completions(&mut self, _rail: RailId) -> bool {
        true
    }

    /// Takes what [`DataPath::has_completions`] has found, or polls, and lets the fabric make
    /// progress. Never blocks. Each work-request id's index is given to `completions`, at most
    /// [`POLL_BATCH`] of them. It may also be given what is no work-request id's index.
    ///
    /// What has come in waits for [`Messaging::receive`], which takes all of it before the next
    /// poll of a rail that peers send to: then at most a batch of it waits at a time.
    ///
    /// [`Messaging::receive`]: crate::port::Messaging::receive
    fn drain(&mut self, rail: RailId, completions: &mut impl Completions) -> Polled;
}
