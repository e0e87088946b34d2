//! The order of things inside one turn of the loop.

use std::sync::{Arc, Mutex};

use nvshmem_transport_libfabric::engine::atomic::Atomic;
use nvshmem_transport_libfabric::engine::fake::{FakeFabric, FakePort, Script};
use nvshmem_transport_libfabric::engine::ids::{Pe, RailId, Token};
use nvshmem_transport_libfabric::engine::lane::{Lane, LaneConfig, SignalEngine};
use nvshmem_transport_libfabric::engine::port::{
    Access, Context, Direction, Incoming, POLL_BATCH, PeerAddr, Polled, Port, PortError, Posted,
    RailLimits, Transfer,
};
use nvshmem_transport_libfabric::engine::rails::balance::Spread;
use nvshmem_transport_libfabric::engine::request::{LocalSide, Request};
use nvshmem_transport_libfabric::engine::state::regions::{LaneKind, RegionTable};
use nvshmem_transport_libfabric::engine::wire::message::Packet;

use super::job::{Shape, limits, paths, watchdog};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    Poll(RailId),
    Post,
}

/// Writes down what the lane asks of the port.
struct Recorder {
    inner: FakePort,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Port for Recorder {
    type Short = RailId;

    fn limits(&self) -> &[RailLimits] {
        self.inner.limits()
    }
    fn rail_name(&self, rail: RailId) -> &str {
        self.inner.rail_name(rail)
    }
    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.events.lock().unwrap().push(Event::Post);
        self.inner.post(rail, to, token, transfer)
    }
    fn has_short(&self) -> bool {
        self.inner.has_short()
    }

    fn short(&self, rail: RailId) -> RailId {
        rail
    }

    fn context(&self, token: Token) -> Context {
        Context(token.index())
    }
    fn post_short(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        context: Context,
        transfer: &Transfer,
    ) -> bool {
        self.events.lock().unwrap().push(Event::Post);
        self.inner.post_short(rail, to, token, context, transfer)
    }
    fn post_with_data(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: u32,
    ) -> Result<Posted, PortError> {
        self.events.lock().unwrap().push(Event::Post);
        self.inner.post_with_data(rail, to, token, transfer, data)
    }
    fn poll(&mut self, rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled {
        self.events.lock().unwrap().push(Event::Poll(rail));
        self.inner.poll(rail, done)
    }
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        self.events.lock().unwrap().push(Event::Post);
        self.inner.send(rail, to, token, bytes)
    }
    fn receive(&mut self, rail: RailId, into: &mut Packet) -> Incoming {
        self.inner.receive(rail, into)
    }
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        self.inner.apply(addr, atomic)
    }
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        self.inner.load(addr, into)
    }
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.inner.store(addr, bytes)
    }
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.inner.store_flag(addr, flag)
    }
    fn now(&mut self) -> u64 {
        self.inner.now()
    }
    fn relax(&mut self) {
        self.inner.relax();
    }
}

#[test]
fn handling_completions_never_posts() {
    let shape = Shape { rails: 3, depth: 1, needs_desc: false, ..Shape::default() };
    let fabric = FakeFabric::new(1, 2, Script::default());
    let regions = RegionTable::new(fabric.memory(Pe(1), shape.rails), Pe(1));
    let base = fabric.alloc(Pe(1), 4096);
    let handle = regions.register(base, 4096, Access::LocalAndRemote).unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let port = Recorder { inner: fabric.port(Pe(0), limits(&shape)), events: Arc::clone(&events) };
    let config = LaneConfig {
        me: Pe(0),
        kind: LaneKind::Proxy,
        paths: paths(2, shape.rails),
        regions: regions.index(),
        watchdog: watchdog(),
        signals: SignalEngine::Auto,
        counted: 0,
        spread: Spread::ROUND_ROBIN,
        devices: false,
    };
    let mut lane = Lane::new(port, config);
    for at in 0..100 {
        let request = Request {
            direction: Direction::Write,
            pe: Pe(1),
            remote_handle: &handle,
            remote_addr: (base + at * 8) as u64,
            local: LocalSide::Value(at as u64),
            len: 8,
        };
        lane.start(&request).unwrap();
        if at % 3 == 0 {
            lane.fence(Pe(1)).unwrap();
        }
    }
    lane.quiet(Pe(1)).unwrap();
    // Within a turn the rails are polled 0, 1, 2. Every completion of rail r is handled before
    // rail r + 1 is polled, so a post between two polls would have come from handling one.
    let events = events.lock().unwrap();
    let mut turns = 0;
    for pair in events.windows(2) {
        if let Event::Poll(RailId(rail)) = pair[0] {
            turns += 1;
            if rail < 2 {
                assert_eq!(pair[1], Event::Poll(RailId(rail + 1)));
            }
        }
    }
    assert!(turns > 100, "the queues were meant to fill");
    assert_eq!(events.iter().filter(|event| **event == Event::Post).count(), 100);
}
