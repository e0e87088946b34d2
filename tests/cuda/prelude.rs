//! What most of these cases speak of.

pub(crate) use std::ffi::{c_int, c_void};
pub(crate) use std::sync::Arc;

pub(crate) use cuda::{
    Context, GDRCOPY_LIBRARY, Kind, Memory, Ordinal, Pointer, StagedRegion, Staging,
    StagingOptions, WordsOptions, flush_writes,
};
pub(crate) use engine::atomic::{AtomicOp, Width};
pub(crate) use engine::port::copies::{Copy, CopyDirection, DeferredOrder, Reach, TaggedCopy};
pub(crate) use engine::port::{Access, Posted};
pub(crate) use test_support::random::pattern;

pub(crate) use crate::bed::case::cases;
pub(crate) use crate::bed::stage::{CHUNK, IN, OUT, Stage, atomic, options, register};
pub(crate) use crate::bed::{
    Bed, GRANULARITY, HANG, ON_DEVICE, ON_NUMA_NODE, allocations, call, fill, peek, refused, status,
};
pub(crate) use crate::words::stream_only;
