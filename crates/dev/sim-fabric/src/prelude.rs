//! What most of the fake speaks of.

pub(crate) use std::collections::{HashMap, HashSet, VecDeque};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use engine::atomic::Atomic;
pub(crate) use engine::ids::{Pe, RailId, WrId};
pub(crate) use engine::port::copies::{
    Bounce, Copied, Copy, CopyDirection, CopyPort, DeferredOrder, MAX_BATCH_COPIES, MAX_STEPS,
    MAX_WORDS, OrderedStep, PeerBounce, Reach, Stager, TaggedCopy,
};
pub(crate) use engine::port::packet::{LongPacket, MAX_MESSAGE};
pub(crate) use engine::port::{
    Access, Addressing, Clock, Completions, DataPath, Desc, Direction, Failure, Incoming, Local,
    LocalMemory, MemoryPort, Messaging, Operation, POLL_BATCH, PeerAddr, Polled, PortError, Posted,
    RailLimits, Registered, Tail, Transfer, dispatch_completions,
};

pub(crate) use crate::fabric::FakeFabric;
pub(crate) use crate::script::{Call, Delivery, Event, PortCall, Script};
pub(crate) use crate::world::mail::Mail;
pub(crate) use crate::world::memory::{HOST, Memory, change};
pub(crate) use crate::world::operations::{Done, Target};
pub(crate) use crate::world::{World, fault};
