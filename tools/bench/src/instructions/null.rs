//! A fabric that does nothing: what is posted is complete at the next poll. What is left of an operation's
//! cost is ours.

use nvshmem_transport_libfabric::engine::atomic::Atomic;
use nvshmem_transport_libfabric::engine::ids::{RailId, Token};
use nvshmem_transport_libfabric::engine::port::copies::Reach;
use nvshmem_transport_libfabric::engine::port::{
    Access, Addressing, Context, Desc, Incoming, MemoryPort, POLL_BATCH, PeerAddr, Polled, Port,
    PortError, Posted, RailLimits, Registered, Transfer,
};
use nvshmem_transport_libfabric::engine::wire::message::Packet;

#[derive(Debug)]
pub(crate) struct Null {
    limits: [RailLimits; 1],
    posted: Vec<Token>,
    now: u64,
}

impl Null {
    pub(crate) fn new() -> Self {
        let rail = RailLimits {
            max_segment: 1 << 20,
            depth: 256,
            needs_desc: false,
            orders_messages: true,
            remote_data: false,
        };
        Self { limits: [rail], posted: Vec::with_capacity(256), now: 0 }
    }
}

impl Port for Null {
    type Short = ();

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, _rail: RailId) -> &str {
        "null"
    }

    fn post(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        token: Token,
        _transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.posted.push(token);
        Ok(Posted::Yes)
    }

    fn has_short(&self) -> bool {
        true
    }

    fn short(&self, _rail: RailId) -> Self::Short {}

    fn context(&self, token: Token) -> Context {
        Context(token.index())
    }

    fn post_short(
        &mut self,
        _short: Self::Short,
        _to: PeerAddr,
        token: Token,
        _context: Context,
        _transfer: &Transfer,
    ) -> bool {
        self.posted.push(token);
        true
    }

    fn post_with_data(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        _data: u32,
    ) -> Result<Posted, PortError> {
        self.post(rail, to, token, transfer)
    }

    fn poll(&mut self, _rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled {
        let count = self.posted.len().min(POLL_BATCH);
        if count == 0 {
            return Polled::Empty;
        }
        for (place, token) in done.iter_mut().zip(self.posted.drain(..count)) {
            *place = token;
        }
        Polled::Completed(count)
    }

    fn send(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        _token: Token,
        _bytes: &[u8],
    ) -> Result<Posted, PortError> {
        Ok(Posted::Yes)
    }

    fn has_message(&self, _rail: RailId) -> bool {
        false
    }

    fn receive(&mut self, _rail: RailId, _into: &mut Packet) -> Incoming {
        Incoming::Nothing
    }

    fn apply(&mut self, _addr: usize, _atomic: &Atomic) -> Result<u64, PortError> {
        Ok(0)
    }

    fn load(&mut self, _addr: usize, _into: &mut [u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn store(&mut self, _addr: usize, _bytes: &[u8]) -> Result<(), PortError> {
        Ok(())
    }

    fn store_flag(&mut self, _addr: usize, _flag: u64) -> Result<(), PortError> {
        Ok(())
    }

    fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn relax(&mut self) {}
}

impl MemoryPort for Null {
    type Region = ();

    fn register(
        &self,
        _addr: usize,
        _len: usize,
        _access: Access,
    ) -> Result<Registered<()>, PortError> {
        Ok(Registered {
            owner: (),
            keys: vec![1],
            proxy_descs: vec![Desc(0)],
            host_descs: vec![Desc(0)],
            addressing: Addressing::Virtual,
            reach: Reach::Direct,
        })
    }
}
