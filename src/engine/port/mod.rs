//! What the engine asks of a fabric.
//!
//! [`Port`] is the data path of one lane: post a segment on a rail, poll the rail's completions.
//! One thread at a time uses a port. [`MemoryPort`] registers memory for all lanes of the process
//! and may be called from any thread, also while a lane is posting.
//!
//! A *segment* is one operation of the fabric; an NVSHMEM operation is cut into one or more.

pub mod copies;
pub mod fabric_atomic;
pub mod outcome;
pub mod packet;

use std::fmt;

use crate::engine::atomic::Atomic;
use crate::engine::ids::{RailId, Token};
use crate::engine::port::copies::{Reach, Stager};
use crate::engine::port::fabric_atomic::FabricAtomic;
pub use crate::engine::port::outcome::{Failure, Polled, PortError, Posted};
use crate::engine::port::packet::Packet;

/// Most completions that one [`Port::poll`] returns.
///
/// Large enough to make the poll's fixed cost small beside its completions, small enough that
/// retries and new work are not starved by a long drain.
pub const POLL_BATCH: usize = 32;

/// The address of a peer's rail, as the port's own address table knows it (`fi_addr_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAddr(pub u64);

/// What a port names a token by towards the fabric, opaque to the engine (the address of the
/// operation's context).
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
    /// copies it before `post` returns. Only for writes of at most 8 bytes.
    Inline(u64),
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
    /// Whether a message sent after writes to the same peer, on this rail, is received after their
    /// data is visible (`FI_ORDER_SAW`).
    pub orders_messages: bool,
    /// Whether writes may carry remote data, see [`Port::post_with_data`].
    pub remote_data: bool,
}

/// What a poll has found beside completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Incoming {
    /// Nothing more.
    Nothing,
    /// A message, now in the packet given.
    Message,
    /// The remote data of a peer's write. The write's own data is visible.
    RemoteData(u32),
}

/// The data path of one lane.
///
/// # Threads
/// One at a time; the lane owns the port.
pub trait Port {
    /// What [`Port::post_short`] needs to know of a rail.
    type Short: Copy + fmt::Debug + Send;

    /// Limits of each rail, in rail order. Its length is the number of rails, 1 to 32.
    fn limits(&self) -> &[RailLimits];

    /// The name of a rail for messages: the NIC, interface or address it stands for.
    fn rail_name(&self, rail: RailId) -> &str;

    /// Posts one segment. Never blocks.
    ///
    /// `token` is below the number of segments that the lane has for the port's limits, and not in use.
    ///
    /// # Errors
    /// An error means that the fabric refused the segment for good; its token is free again.
    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError>;

    /// Whether local memory that is not registered may be used all the same, with no descriptor, even
    /// where [`RailLimits::needs_desc`] (host memory, where only that of devices must be registered).
    fn takes_unregistered(&self) -> bool {
        false
    }

    /// Whether [`Port::post_short`] can be used at all: not where local memory needs a descriptor.
    fn has_short(&self) -> bool;

    /// The fast path to post on a rail that there is.
    fn short(&self, rail: RailId) -> Self::Short;

    /// What [`Port::post_short`] is to name a token by.
    fn context(&self, token: Token) -> Context;

    /// As [`Port::post`], in few instructions and without reasons: whether the fabric has taken the
    /// segment. If not, nothing was taken, and [`Port::post`] tells why. Does not panic.
    ///
    /// `short` and `context` are of this port, and the context is the token's.
    fn post_short(
        &mut self,
        short: Self::Short,
        to: PeerAddr,
        token: Token,
        context: Context,
        transfer: &Transfer,
    ) -> bool;

    /// Posts a write that also tells the peer, by four bytes of remote data, when its data is visible
    /// there: the peer's [`Port::receive`] finds them, on the rail addressed, exactly once. Only on
    /// rails with [`RailLimits::remote_data`]; else as [`Port::post`].
    ///
    /// # Errors
    /// As [`Port::post`].
    fn post_with_data(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: u32,
    ) -> Result<Posted, PortError>;

    /// Whether [`Port::post_more`] spares the fabric work.
    fn batches(&self) -> bool {
        false
    }

    /// As [`Port::post`] of a write, with the promise that another write to the same peer is posted on
    /// this rail next: the fabric may put off ringing the device's doorbell until then.
    ///
    /// # Errors
    /// As [`Port::post`].
    fn post_more(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.post(rail, to, token, transfer)
    }

    /// Posts an atomic operation on a word of a peer's memory. Never blocks. Its completion says that
    /// it was carried out and, if it fetches, that [`Port::fetched`] has the word before.
    ///
    /// # Errors
    /// The fabric refused it for good, as one that has no atomics does.
    fn post_atomic(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        atomic: &FabricAtomic,
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, token, atomic);
        let text = String::from("this fabric carries out no atomics");
        Err(PortError { call: "posting an atomic", code: 0, text })
    }

    /// The word that the atomic with this token has fetched, in the low bytes; others are zero.
    /// Between its completion and the next use of the token.
    fn fetched(&mut self, token: Token) -> u64 {
        let _ = token;
        0
    }

    /// Takes up to [`POLL_BATCH`] completions of a rail, and lets the fabric make progress. Never
    /// blocks. What has come in waits for [`Port::receive`], which takes all of it before the next
    /// poll of a rail that peers send to: then at most a batch of it waits at a time.
    fn poll(&mut self, rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled;

    /// Polls, and says whether there is anything for [`Port::drain`] on the same rail, which is called
    /// next then. It is the whole of an idle poll.
    #[inline(always)]
    fn has_completions(&mut self, _rail: RailId) -> bool {
        true
    }

    /// As [`Port::poll`], or with what [`Port::has_completions`] has found, giving each token's index to `each` instead, at most [`POLL_BATCH`] times.
    /// It may also give what is no token's index: `each` says whether it is one in the lane's table,
    /// and does nothing if not.
    #[inline(always)]
    fn drain(&mut self, rail: RailId, mut each: impl FnMut(usize) -> bool) -> Polled {
        let mut done = [Token(0); POLL_BATCH];
        let polled = self.poll(rail, &mut done);
        if let Polled::Completed(count) = polled {
            for token in done.into_iter().take(count) {
                each(token.index());
            }
        }
        polled
    }

    /// Sends a message of at most [`MAX_MESSAGE`](crate::engine::port::packet::MAX_MESSAGE) bytes, which are copied
    /// before this returns. Never blocks. Its arrival is not reported: the peer acknowledges
    /// messages itself.
    ///
    /// # Errors
    /// The fabric refused the message for good. One that fails later is reported by a poll as a
    /// failure with this token, which the caller chooses; it takes no part in anything else.
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> Result<Posted, PortError>;

    /// As [`Port::send`], where there is a fast path, without reasons: whether the message has left.
    #[inline(always)]
    fn send_short(
        &mut self,
        _short: Self::Short,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> bool {
        matches!(self.send(rail, to, token, bytes), Ok(Posted::Yes))
    }

    /// Whether [`Port::receive`] may have something to give.
    #[inline(always)]
    fn has_message(&self, _rail: RailId) -> bool {
        true
    }

    /// Takes one thing that the last poll of the rail found: a message, copied into the packet, or the
    /// remote data of a write.
    fn receive(&mut self, rail: RailId, into: &mut Packet) -> Incoming;

    /// Whether [`Port::reset_rail`] can be done.
    fn can_reset(&self, rail: RailId) -> bool {
        let _ = rail;
        false
    }

    /// Closes a rail's endpoint with its completion queue, and opens others in their place: nothing that
    /// was posted on the rail or sent to it before touches memory here from then on, and no token of it
    /// comes back. What had come in and was not taken is lost. Registered memory, the addresses of peers
    /// and what local descriptors name stay as they are; [`Port::short`] is asked again. Gives the new
    /// address.
    ///
    /// # Errors
    /// There is no new endpoint. Nothing has changed then.
    fn reset_rail(&mut self, rail: RailId) -> Result<Vec<u8>, PortError> {
        let _ = rail;
        let text = String::from("this fabric does not open rails again");
        Err(PortError { call: "opening a rail again", code: 0, text })
    }

    /// Sends a message to the control endpoint of a peer's rail, from that of one of ours. These endpoints
    /// are never closed: what is sent there concerns the others. It may be lost.
    ///
    /// # Errors
    /// The fabric refused it.
    fn send_control(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, bytes);
        Ok(Posted::Again)
    }

    /// Takes one message that has come to the control endpoint of a rail. Whether there was one.
    fn receive_control(&mut self, rail: RailId, into: &mut Packet) -> bool {
        let _ = (rail, into);
        false
    }

    /// Makes the new address of a peer's rail known to one of ours.
    ///
    /// # Errors
    /// The fabric refused it.
    fn insert_address(&mut self, rail: RailId, address: &[u8]) -> Result<PeerAddr, PortError> {
        let _ = (rail, address);
        let text = String::from("this fabric takes no more addresses");
        Err(PortError { call: "inserting an address", code: 0, text })
    }

    /// Carries out an atomic operation on a word of this process' memory and returns the word
    /// before. Atomic among all calls of this function in the process.
    ///
    /// `addr` is aligned to the operation's width and inside a registered region.
    ///
    /// # Errors
    /// The word cannot be reached.
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError>;

    /// Copies bytes out of this process' memory.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError>;

    /// Stores bytes into this process' memory, inside a registered region.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError>;

    /// Stores `flag` as 8 bytes at `addr`, aligned to 8, so that whoever sees it also sees what was
    /// stored before.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError>;

    /// Nanoseconds since some fixed moment. Never goes backwards.
    fn now(&mut self) -> u64;

    /// Called by a waiting loop that found nothing to do: gives the core to somebody else.
    fn relax(&mut self);
}

/// What memory is registered for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Local side of operations; peers may read it, on every proxy rail, when they are asked to.
    Local,
    /// Peers may read and write it as well, on every proxy rail.
    LocalAndRemote,
}

/// How peers address a region on a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// By the owner's virtual address (`FI_MR_VIRT_ADDR`).
    Virtual,
    /// By the offset from the region's first byte.
    Offset,
}

/// A registered region. Dropping `owner` ends the registration on every rail.
#[derive(Debug)]
pub struct Registered<R> {
    /// Keeps the registration alive.
    pub owner: R,
    /// Key for peers per proxy rail, in rail order.
    pub keys: Vec<u64>,
    /// Descriptor per proxy rail, in rail order.
    pub proxy_descs: Vec<Desc>,
    /// Descriptor per rail of the host lane, in rail order.
    pub host_descs: Vec<Desc>,
    /// How peers address it. The same on every rail of one provider.
    pub addressing: Addressing,
    /// How it is reached. Staged memory has neither keys nor descriptors.
    pub reach: Reach,
}

/// Registers memory with every rail of the process.
///
/// # Threads
/// Any, at any time, also while lanes post and poll.
pub trait MemoryPort: Send + Sync {
    /// What keeps a registration alive.
    type Region: Send + Sync;

    /// Registers `len` bytes at `addr`. It takes a system call per rail at least: not for the hot
    /// path.
    ///
    /// # Errors
    /// The first rail that refused, by name; registrations already made are undone.
    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<Self::Region>, PortError>;

    /// Whether NICs reach some device memory by themselves that has been registered here, now or before.
    fn reaches_devices(&self) -> bool {
        false
    }

    /// What stages the memory that was registered as such: there once some was, and given out once.
    /// It is made with the first such region, since making it may wait for the device.
    fn take_stager(&self) -> Option<Stager> {
        None
    }
}
