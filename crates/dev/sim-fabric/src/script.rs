//! The script of the fake fabric, which says how it behaves, and the events that a test is told.

use crate::prelude::*;

/// How the fabric behaves. All choices are drawn from the seed.
#[derive(Clone, Debug)]
pub struct Script {
    /// Of a hundred posts, how many find no room.
    pub again_percent: u32,
    /// Nanoseconds from posting to delivery and from delivery to completion: least and most. A
    /// wide range reorders.
    pub delay: (u64, u64),
    /// How much longer these rails take, wherever they are: (rail, factor).
    pub slow_rails: Vec<(RailId, u64)>,
    /// How much these rails of each PE carry: (rail, bytes per microsecond). What is posted on one
    /// goes through it one after the other, and takes [`Script::delay`] besides. Others carry any
    /// amount.
    pub rates: Vec<(RailId, u64)>,
    /// Of a hundred messages, how many are delivered twice.
    pub duplicate_percent: u32,
    /// A rail has one queue for segments and messages, of its depth: a message has a place in it
    /// until it has left, and that was polled.
    pub shared_queue: bool,
    /// Nanoseconds, least and most, from the first attempt to send something to a PE over a rail
    /// until the fabric has room for it.
    pub connecting: (u64, u64),
    /// Whether the fabric addresses regions by their addresses, and not from 0 on.
    pub is_virtual: bool,
    /// Whether devices take copies and words in an order, as one list.
    pub takes_lists: bool,
}

pub const CALM: Script = Script {
    again_percent: 0,
    delay: (1_000, 20_000),
    slow_rails: Vec::new(),
    rates: Vec::new(),
    duplicate_percent: 0,
    shared_queue: false,
    connecting: (0, 0),
    is_virtual: false,
    takes_lists: false,
};

impl Default for Script {
    fn default() -> Self {
        CALM
    }
}

/// One segment that reached its target, at an address there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    pub to: Pe,
    pub direction: Direction,
    pub addr: usize,
    pub len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The fabric moved data.
    Delivered(Delivery),
    /// Bytes were copied into staged memory.
    Copied { pe: Pe, addr: usize, len: usize },
    /// A lane stored data or applied an atomic to its own PE's memory.
    Applied { pe: Pe, addr: usize },
}

/// A call of a port, or what comes of one, that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortCall {
    Post,
    Send,
    /// A rail is polled; it has failed as a whole.
    Poll,
    Load,
    Store,
    Apply,
    Register,
    Copy,
    /// An operation is delivered: it completes with an error, and has moved nothing.
    Deliver,
}

impl PortCall {
    pub const ALL: [Self; 9] = [
        Self::Post,
        Self::Send,
        Self::Poll,
        Self::Load,
        Self::Store,
        Self::Apply,
        Self::Register,
        Self::Copy,
        Self::Deliver,
    ];
}

/// What a lane has asked of its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// An operation or a message that a PE's rail has taken.
    Post(Pe, RailId),
    Copy(Pe),
}
