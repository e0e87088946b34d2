//! What most of these tests speak of.

pub(crate) use std::time::Duration;

pub(crate) use engine::atomic::{Atomic, AtomicOp, Width};
pub(crate) use engine::channel::counts::TAGS;
pub(crate) use engine::error::EngineError;
pub(crate) use engine::ids::{Pe, RailId};
pub(crate) use engine::lane::batches::Batch;
pub(crate) use engine::lane::{Lane, SignalChoice};
pub(crate) use engine::port::copies::Reach;
pub(crate) use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
pub(crate) use engine::port::{Access, Direction};
pub(crate) use engine::rails::Spread;
pub(crate) use engine::request::{
    AtomicRequest, FetchTarget, LocalSide, PutSignalRequest, Request,
};
pub(crate) use engine::wire::handle::HandleBytes;
pub(crate) use engine::wire::message::{
    Body, MAP_BYTES, MAX_EAGER, RegionAddr, Seq, Tag, WINDOW, eager_in,
};
pub(crate) use engine::wire::staging::{
    GetId, MAX_PAYLOAD, Pull, PullSource, PullTarget, WireRecord,
};
pub(crate) use sim_fabric::{CALM, Call, Event, FakeFabric, PortCall, Script};
pub(crate) use test_support::random::Random;
pub(crate) use test_support::seeds::for_seeds;

pub(crate) use crate::job::{Job, Member, Outcome, PATIENCE, PLAIN, Shape, Targets};
pub(crate) use crate::race::{race, random_script, random_shape};
