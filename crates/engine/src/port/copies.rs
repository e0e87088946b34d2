//! Copy port: copies between *staged* memory, which the fabric does not reach, and bounce buffers
//! in registered host memory, and operations on staged words. The crate `cuda` implements it for
//! devices; the tests have a scripted one.

use std::fmt;

use crate::atomic::Atomic;
use crate::ids::Pe;
use crate::port::outcome::{PortError, Posted};

/// Maximum number of bounce buffers for one direction.
pub const MAX_BOUNCE_BUFFERS: u16 = 256;

/// Means by which the bytes at an address can be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The fabric and the CPU reach them by their address.
    Direct,
    /// The fabric reaches them, and a [`CopyPort`].
    Fabric,
    /// Only a [`CopyPort`] reaches them.
    Staged,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyDirection {
    /// From the memory to the bounce buffer.
    Out,
    /// From the bounce buffer to the memory.
    In,
}

/// A copy between memory of this process, of any kind, and a bounce buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    pub direction: CopyDirection,
    /// Address of the first byte in the memory.
    pub memory: usize,
    /// First byte in the bounce memory; for a copy in, possibly in a [`PeerBounce`].
    pub bounce: usize,
    /// Bytes; at least one, and inside one bounce buffer.
    pub len: usize,
}

/// Step of an ordered batch. It runs after all steps before it, except that a copy may be
/// unordered: back to the last ordered step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderedStep {
    /// A copy in direction [`CopyDirection::In`].
    Copy { copy: Copy, is_ordered: bool },
    /// An operation on a word that fetches nothing.
    Apply { addr: usize, atomic: Atomic },
}

/// Maximum number of steps of an ordered batch.
pub const MAX_STEPS: usize = 192;

/// Maximum number of steps of an ordered batch that are operations on words.
pub const MAX_WORDS: usize = 64;

/// Maximum number of copies started by one call.
pub const MAX_BATCH_COPIES: usize = 256;

/// A copy with the tag that reports its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaggedCopy {
    pub copy: Copy,
    /// Tag. Adjacent copies with the same tag are reported once, when all of them have ended.
    pub tag: u32,
}

/// End of the copies of one tag.
#[derive(Debug)]
pub struct Copied {
    pub tag: u32,
    /// Result. After an error the destination's bytes are undefined.
    pub result: Result<(), PortError>,
}

/// Bounce memory: contiguous bounce buffers of one length. The first `out` are for bytes that leave
/// the memory, the `inward` ones after them for bytes that come in. They are never exchanged, which
/// keeps staging free of deadlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounce {
    /// Address of the first bounce buffer.
    pub addr: usize,
    /// Bytes of a bounce buffer, a multiple of 4096.
    pub bounce_len: usize,
    /// Bounce buffers for bytes on their way out. 1 to [`MAX_BOUNCE_BUFFERS`].
    pub out: u16,
    /// Bounce buffers for bytes on their way in. 1 to [`MAX_BOUNCE_BUFFERS`].
    pub inward: u16,
}

impl Bounce {
    pub fn bytes(&self) -> usize {
        self.bounce_len * (usize::from(self.out) + usize::from(self.inward))
    }
}

/// Bounce memory of a peer on the same host, mapped into this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerBounce {
    /// Address of its first byte.
    pub addr: usize,
    /// Bytes of all its bounce buffers.
    pub len: usize,
}

impl PeerBounce {
    /// Returns the address of `len` bytes at an offset chosen by the peer, if all are inside.
    pub fn at(&self, offset: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.addr + offset)
    }
}

/// Order of a deferred write relative to earlier deferred writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeferredOrder {
    /// After all earlier deferred writes.
    After,
    /// Unordered within a run of writes with this value; where they overlap, the last one wins.
    Any,
}

/// Copies and words for one lane, used by one thread at a time. Unless stated otherwise, a call
/// neither blocks nor, while it succeeds, allocates.
pub trait CopyPort: Send + fmt::Debug {
    /// Returns how `len` bytes of unregistered local memory can be reached.
    ///
    /// # Errors
    /// The bytes are of more than one kind, or of unknown memory.
    fn reach(&mut self, addr: usize, len: usize) -> Result<Reach, PortError>;

    /// Returns how many tags may be started in a direction now. 0 while the device has enough to
    /// do, so that later copies can be started together.
    fn capacity(&self, direction: CopyDirection) -> usize;

    /// Starts copies, all in one direction, for which there is [capacity](CopyPort::capacity); at
    /// most [`MAX_BATCH_COPIES`]. Both sides stay valid and unchanged until the copies have ended.
    /// They run in any order; when they have ended, so have all copies started before in the same
    /// direction. The memory is staged, or any that the CPU reaches.
    ///
    /// # Errors
    /// Refused for good, with none started: some memory is unknown, or an earlier copy failed.
    fn start_all(&mut self, copies: &[TaggedCopy]) -> Result<Posted, PortError>;

    /// Starts copies in and operations on words as an ordered batch of at most [`MAX_STEPS`] and
    /// [`MAX_WORDS`], if there is [capacity](CopyPort::capacity) for the tag, which reports the
    /// whole batch. Returns None, with nothing started, where the device cannot order it, as with
    /// words that the device does not store: the caller then waits between the steps.
    fn start_in_order(
        &mut self,
        _steps: &[OrderedStep],
        _tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        Ok(None)
    }

    /// Returns a tag whose copies have ended, each once.
    fn poll(&mut self) -> Option<Copied>;

    /// Executes an atomic operation on a word that the CPU does not reach, aligned to its width,
    /// and returns the old value. Atomic among all calls in the process. A thread that sees the new
    /// value also sees earlier stores and copies in. May wait for the device, not for kernels.
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError>;

    /// Loads at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE) bytes of staged memory. May
    /// wait as [`CopyPort::apply`] does.
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError>;

    /// Stores at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE) bytes into staged memory
    /// before it returns. May wait as [`CopyPort::apply`] does.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError>;

    /// Stores `flag` as 8 bytes at `addr`, aligned to 8, in staged memory. Whoever sees the flag
    /// also sees earlier stores.
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError>;

    /// Stores bytes as [`CopyPort::store`] does, but deferred: they may become visible only when
    /// [`CopyPort::flush`] returns. They do so before the effect of any later call, and after
    /// earlier deferred writes unless `order` says otherwise.
    ///
    /// # Errors
    /// As [`CopyPort::store`] and [`CopyPort::flush`]. None of these bytes is stored then.
    fn queue_write(
        &mut self,
        addr: usize,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError>;

    /// As [`CopyPort::apply`] without a result, deferred as in [`CopyPort::queue_write`].
    fn queue_atomic(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError>;

    /// Completes all deferred writes.
    ///
    /// # Errors
    /// Any deferred write since the last call may be missing. The error is returned even if a call
    /// that had to complete them first has already reported it to its own caller.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Returns the bounce memory of a peer, if the two processes share theirs.
    fn peer_bounce(&self, pe: Pe) -> Option<PeerBounce>;

    /// Returns true if a peer's lane copies from the bounce memory of this process.
    fn is_mapped_by(&self, pe: Pe) -> bool;

    /// Tells peers that share bounce memory that this lane copies from theirs from now on.
    fn announce(&mut self);

    /// Returns true if the process of a peer that shares its bounce memory has ended.
    fn has_ended(&self, pe: Pe) -> bool;

    /// Returns the bytes that the CPU copied on behalf of started copies.
    fn bytes_by_cpu(&self) -> u64;
}

/// Means of staging for a lane: copies, and bounce memory that stays valid as long as the port.
#[derive(Debug)]
pub struct Stager {
    pub copies: Box<dyn CopyPort>,
    /// Bounce buffers, not yet registered with the fabric.
    pub bounce: Bounce,
}
