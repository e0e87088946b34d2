//! The copy port: copies to and from memory that the fabric does not reach, and single words of it.
//!
//! Such memory is *staged*: its bytes pass through bounce buffers of *bounce memory*, host memory
//! that is registered with the fabric like any other region. The engine decides which bounce buffer
//! holds what; a [`CopyPort`] moves the bytes between bounce buffers and the memory behind. the
//! crate `cuda` implements it for devices, and the tests have a scripted one.

use std::fmt;

use crate::atomic::Atomic;
use crate::ids::Pe;
use crate::port::outcome::{PortError, Posted};

/// Most bounce buffers of bounce memory for one direction.
pub const MAX_BOUNCE_BUFFERS: u16 = 256;

/// How the bytes at an address are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The fabric and the CPU reach them by their address.
    Direct,
    /// The fabric reaches them, and a [`CopyPort`].
    Fabric,
    /// Only a [`CopyPort`] does.
    Staged,
}

/// Which way a copy goes.
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
    /// Which way.
    pub direction: CopyDirection,
    /// Address of the first byte in the memory.
    pub memory: usize,
    /// Address of the first byte in the bounce memory; for a copy in, perhaps in a peer's
    /// [`Window`].
    pub bounce: usize,
    /// Bytes; at least one, and inside one bounce buffer.
    pub len: usize,
}

/// One of several things that are done in their order: behind all steps before it, or in no order
/// with those before it, back to the last one that is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A copy in.
    Copy {
        /// The copy.
        copy: Copy,
        /// Whether it comes behind all before it.
        behind: bool,
    },
    /// An operation on a word, which fetches nothing.
    Apply {
        /// Address of the word.
        addr: usize,
        /// The operation.
        atomic: Atomic,
        /// Whether it comes behind all before it.
        behind: bool,
    },
}

/// Most steps that are started in their order.
pub const MOST_STEPS: usize = 192;

/// Most of them that are operations on words.
pub const MOST_WORDS: usize = 64;

/// Most copies that are started together.
pub const MOST_TOGETHER: usize = 256;

/// A copy, and what is told when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// The copy.
    pub copy: Copy,
    /// Copies in a row with the same tag are told of once, when all have ended.
    pub tag: u32,
}

/// A copy that has ended, or several of one tag.
#[derive(Debug)]
pub struct Copied {
    /// What it was started with.
    pub tag: u32,
    /// After an error the destination's bytes are undefined.
    pub result: Result<(), PortError>,
}

/// Bounce memory: bounce buffers of one length, one behind the other.
///
/// The first `out` bounce buffers are for bytes that leave the memory, the `inward` ones after them
/// for those that come in. They are never exchanged: that is what keeps staging free of deadlock.
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
    /// Bytes of all bounce buffers.
    pub fn bytes(&self) -> usize {
        self.bounce_len * (usize::from(self.out) + usize::from(self.inward))
    }
}

/// Bounce memory of a peer of the same host, where this process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Address of its first byte.
    pub addr: usize,
    /// Bytes of all its bounce buffers.
    pub len: usize,
}

impl Window {
    /// The address of `len` bytes at an offset, which a peer has named. None if they are not
    /// inside.
    pub fn at(&self, offset: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        (offset <= self.len && len <= self.len - offset).then(|| self.addr + offset)
    }
}

/// What orders bytes that are to be stored, and words that are to be changed, soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SoonOrder {
    /// They come behind what was stored or applied soon before.
    Behind,
    /// Among those that were stored or applied soon in a row, each with this, any may arrive first.
    /// Where they overlap, what is there in the end is the last one's.
    Any,
}

/// Copies and words, for one lane.
///
/// Unless it says otherwise a call neither waits nor allocates, unless it fails.
///
/// # Threads
/// One at a time.
pub trait CopyPort: Send + fmt::Debug {
    /// How `len` bytes of local memory, which the caller of an operation has not registered, are
    /// reached.
    ///
    /// # Errors
    /// They are of more than one kind, or nothing is known of them.
    fn reach(&mut self, addr: usize, len: usize) -> Result<Reach, PortError>;

    /// How many tags may be started together in a direction now. None while so much is under way
    /// that what comes meanwhile had better go together.
    fn room(&self, direction: CopyDirection) -> usize;

    /// Starts copies, all in one direction, for which there is [room](CopyPort::room); at most
    /// [`MOST_TOGETHER`]. Both sides stay as they are, and valid, until they have ended. They are
    /// executed in any order. What was started before in the same direction has ended when they
    /// have. The memory is staged, or any that the CPU reaches.
    ///
    /// # Errors
    /// They were refused for good: some memory is not known, or a copy before has failed. None was
    /// started.
    fn start_all(&mut self, copies: &[Tagged]) -> Result<Posted, PortError>;

    /// Starts copies in and changes of words in their order, at most [`MOST_STEPS`] and
    /// [`MOST_WORDS`], if there is [room](CopyPort::room) for a tag, which tells of all at once.
    /// None, and nothing is started, where that cannot be had, as of memory whose words are not
    /// stored by the device: the caller waits for each of them then.
    ///
    /// # Errors
    /// As [`CopyPort::start_all`].
    fn start_in_order(&mut self, _steps: &[Step], _tag: u32) -> Result<Option<Posted>, PortError> {
        Ok(None)
    }

    /// A copy that has ended, if there is one that was not told of yet.
    fn poll(&mut self) -> Option<Copied>;

    /// Executes an atomic operation on a word of memory that the CPU does not reach, aligned to its
    /// width, and returns the word before. Atomic among all calls of this function in the process;
    /// who sees the word sees what was stored, or copied in, before. May wait for the device, not
    /// for kernels on it.
    ///
    /// # Errors
    /// The word cannot be reached.
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError>;

    /// Copies a few bytes, at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE), out of staged
    /// memory. May wait as [`CopyPort::apply`] does.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError>;

    /// Copies a few bytes, at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE), into staged
    /// memory. They are there when it returns. May wait as [`CopyPort::apply`] does.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError>;

    /// Stores `flag` as 8 bytes at `addr`, aligned to 8, in staged memory, so that whoever sees it
    /// also sees what was stored before.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError>;

    /// As [`CopyPort::store`], but the bytes may be there later: when [`CopyPort::settle`] has
    /// returned. They arrive before anything that is asked of the port later, and, unless `order`
    /// says otherwise, behind what was stored or applied *soon* before.
    ///
    /// # Errors
    /// As [`CopyPort::store`] and [`CopyPort::settle`]. Nothing of these bytes is stored then.
    fn store_soon(&mut self, addr: usize, bytes: &[u8], order: SoonOrder) -> Result<(), PortError>;

    /// As [`CopyPort::apply`] of an operation that returns nothing, likewise.
    ///
    /// # Errors
    /// As [`CopyPort::apply`] and [`CopyPort::settle`].
    fn apply_soon(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: SoonOrder,
    ) -> Result<(), PortError>;

    /// What was to be stored and applied soon is there when this returns.
    ///
    /// # Errors
    /// Any of it may be missing. This is told of all since the last call, also where an operation
    /// that had it stored first has told of it before: that was another one's.
    fn settle(&mut self) -> Result<(), PortError>;

    /// The bounce memory of a peer, from which copies in may be started. None unless the two
    /// processes share theirs.
    fn window(&self, _pe: Pe) -> Option<Window> {
        None
    }

    /// Whether a peer's lane copies from the bounce memory of this process.
    fn is_seen_by(&self, _pe: Pe) -> bool {
        false
    }

    /// The lane copies from windows from here on: peers that share their bounce memory are told.
    fn announce(&mut self) {}

    /// Whether the process of a peer that shares its bounce memory has ended. It reads nothing any
    /// more.
    fn has_ended(&self, _pe: Pe) -> bool {
        false
    }

    /// Bytes that copies were started for which the CPU has made.
    fn bytes_by_cpu(&self) -> u64 {
        0
    }
}

/// What a lane needs to stage: the copies, and the bounce memory, which stays as long as the port.
#[derive(Debug)]
pub struct Stager {
    /// The copies.
    pub copies: Box<dyn CopyPort>,
    /// The bounce buffers. Not registered with the fabric yet.
    pub bounce: Bounce,
}
