//! Instructions of what goes on when something waits for each of many peers, or many are known,
//! over a fabric in which nothing moves: an iteration while peers wait for bounce buffers and none
//! is free, an answer while as many are due that cannot leave, and a look at rails. They are to be
//! the same however many peers there are.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId, WrId};
use engine::lane::{Lane, LaneConfig};
use engine::port::copies::{
    Bounce, Copied, CopyDirection, CopyPort, MOST_TOGETHER, Reach, SoonOrder, Stager, Tagged,
};
use engine::port::packet::MAX_MESSAGE;
use engine::port::{
    Access, Addressing, Clock, Completions, DataPath, Direction, Incoming, LocalMemory, LongPacket,
    MemoryPort, Messaging, Operation, POLL_BATCH, Packet, PeerAddr, Polled, PortError, Posted,
    RailControl, RailLimits, Registered, hand_over,
};
use engine::recovery::health::RailHealth;
use engine::request::{LocalSide, Request};
use engine::state::regions::RegionTable;
use engine::wire::handle::{Handle, HandleBytes};
use engine::wire::message::{Body, Message, RequestId, Spot};
use engine::wire::seal::Seal;
use engine::wire::window::Seq;
use nvshmem_sim::{BoxError, PrivateDir};

use super::null::{RAIL, config, cookie, of_peer};
use super::{Options, sections};
use crate::harness::report::Report;

/// What [`PART`](crate::suites::channel::PART) says for the process that is counted.
pub(super) const NAME: &str = "instructions-crowd";

/// Peers, and how figures have it. A job has 65 536 PEs at most.
const PEERS: [(u32, &str); 3] = [(8, "8"), (4096, "4096"), (65_535, "65536")];

/// What is counted, by the beginnings and the ends of the figures' names.
const KINDS: [(&str, &str); 3] = [
    ("no_bounce_iteration_instructions", "_peers"),
    ("answers_instructions", ""),
    ("rail_look_instructions", "_peers"),
];

/// Turns, answers or looks of the two sections of each.
const LENGTHS: [u64; 2] = [100, 600];

/// Operations that there is room for where nothing is to wait, or by which peers get known.
const DEPTH: u32 = 16;

/// Bounce buffers each way, fewer than the fewest peers.
const CHUNKS: u16 = 4;
const CHUNK: usize = 4096;

/// The number of a connection's first message.
const FIRST: u32 = u32::MAX - 99;

/// Longer than two looks are apart.
const LOOK: u64 = 300_000_000;

/// What the fabric does, and what has come in.
#[derive(Debug, Default)]
struct World {
    /// Nothing completes.
    holds: bool,
    now: u64,
    posted: VecDeque<WrId>,
    mail: VecDeque<Packet>,
}

/// A fabric on which what is posted completes unless that is held up, and no message ever leaves.
#[derive(Clone, Debug)]
struct Crowd {
    limits: [RailLimits; 1],
    world: Arc<Mutex<World>>,
}

impl Crowd {
    /// With room for so many operations.
    fn new(depth: u32) -> Self {
        Self { limits: [RailLimits { depth, ..RAIL }], world: Arc::default() }
    }

    fn world<T>(&self, what: impl FnOnce(&mut World) -> T) -> T {
        what(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// PE 0's proxy lane over it, in a job with so many others.
    fn open(&self, regions: &RegionTable<Memory>, peers: u32) -> Lane<Self> {
        let config = LaneConfig {
            devices: true,
            longest_message: MAX_MESSAGE,
            ..config(regions.index(), peers + 1)
        };
        Lane::new(self.clone(), config)
    }
}

impl DataPath for Crowd {
    type Fast = ();

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, _rail: RailId) -> &str {
        "crowd"
    }

    fn post(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        wr_id: WrId,
        _operation: Operation<'_>,
    ) -> Result<Posted, PortError> {
        self.world(|world| world.posted.push_back(wr_id));
        Ok(Posted::Yes)
    }

    fn has_fast_path(&self) -> bool {
        false
    }

    fn fast(&self, _rail: RailId) {}

    fn drain(&mut self, _rail: RailId, completions: &mut impl Completions) -> Polled {
        let done = self.world(|world| {
            let count = if world.holds { 0 } else { world.posted.len().min(POLL_BATCH) };
            world.posted.drain(..count).collect::<Vec<_>>()
        });
        hand_over(completions, &done, |wr_id| wr_id.index(), |_| 1);
        if done.is_empty() { Polled::Empty } else { Polled::Completed(done.len()) }
    }
}

impl Messaging for Crowd {
    fn send(
        &mut self,
        _rail: RailId,
        _to: PeerAddr,
        _wr_id: WrId,
        _bytes: &[u8],
    ) -> Result<Posted, PortError> {
        Ok(Posted::Again)
    }

    fn receive(&mut self, _rail: RailId, into: &mut LongPacket) -> Incoming {
        match self.world(|world| world.mail.pop_front()) {
            None => Incoming::Nothing,
            Some(packet) => {
                into.fill(packet.bytes());
                Incoming::Message
            }
        }
    }
}

impl RailControl for Crowd {}

impl LocalMemory for Crowd {
    fn apply(&mut self, _addr: usize, _atomic: &Atomic) -> Result<u64, PortError> {
        Ok(0)
    }

    fn load(&mut self, _addr: usize, _into: &mut [u8]) -> Result<(), PortError> {
        unreachable!("bytes are loaded")
    }

    fn store(&mut self, _addr: usize, _bytes: &[u8]) -> Result<(), PortError> {
        unreachable!("bytes are stored")
    }

    fn store_flag(&mut self, _addr: usize, _flag: u64) -> Result<(), PortError> {
        unreachable!("a flag is stored")
    }
}

impl Clock for Crowd {
    fn now(&mut self) -> u64 {
        self.world(|world| world.now)
    }

    fn relax(&mut self) {}
}

/// Memory of which what is for local use alone is staged.
#[derive(Debug)]
struct Memory {
    bounce: Mutex<Option<Bounce>>,
}

impl Memory {
    fn new(bounces: &[u8]) -> Self {
        let addr = bounces.as_ptr() as usize;
        let bounce = Bounce { addr, bounce_len: CHUNK, out: CHUNKS, inward: CHUNKS };
        Self { bounce: Mutex::new(Some(bounce)) }
    }
}

impl MemoryPort for Memory {
    type Region = ();

    fn register(
        &self,
        _addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<()>, PortError> {
        let is_bounce = len == CHUNK * 2 * usize::from(CHUNKS);
        Ok(match access {
            Access::Local if !is_bounce => Registered::staged(()),
            _ => Registered::without_descs((), vec![1], Addressing::Virtual),
        })
    }

    fn reaches_devices(&self) -> bool {
        false
    }

    fn take_stager(&self) -> Option<Stager> {
        let bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Stager { copies: Box::new(Stands), bounce })
    }
}

/// Copies that never end.
#[derive(Debug)]
struct Stands;

impl CopyPort for Stands {
    fn reach(&mut self, _addr: usize, _len: usize) -> Result<Reach, PortError> {
        Ok(Reach::Direct)
    }

    fn room(&self, _direction: CopyDirection) -> usize {
        MOST_TOGETHER
    }

    fn start_all(&mut self, _copies: &[Tagged]) -> Result<Posted, PortError> {
        Ok(Posted::Yes)
    }

    fn poll(&mut self) -> Option<Copied> {
        None
    }

    fn apply(&mut self, _addr: usize, _atomic: &Atomic) -> Result<u64, PortError> {
        unreachable!("a word of the device changes")
    }

    fn load(&mut self, _addr: usize, _into: &mut [u8]) -> Result<(), PortError> {
        unreachable!("bytes are loaded from the device")
    }

    fn store(&mut self, _addr: usize, _bytes: &[u8]) -> Result<(), PortError> {
        unreachable!("bytes are stored on the device")
    }

    fn store_flag(&mut self, _addr: usize, _flag: u64) -> Result<(), PortError> {
        unreachable!("a flag is stored on the device")
    }

    fn store_soon(&mut self, _: usize, _: &[u8], _: SoonOrder) -> Result<(), PortError> {
        unreachable!("bytes are stored on the device")
    }

    fn apply_soon(
        &mut self,
        _addr: usize,
        _atomic: &Atomic,
        _order: SoonOrder,
    ) -> Result<(), PortError> {
        unreachable!("a word of the device changes")
    }

    fn settle(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}

/// What is counted with so many peers.
struct Bench {
    regions: Arc<RegionTable<Memory>>,
    memory: Vec<u64>,
    /// The memory, as peers have it.
    own: HandleBytes,
    peers: u32,
}

impl Bench {
    fn new(peers: u32, bounces: &[u8]) -> Result<Self, BoxError> {
        let regions = RegionTable::new(Memory::new(bounces), Pe(0));
        let memory = vec![0_u64; 64];
        let own =
            regions.register(addr(&memory), size_of_val(&memory[..]), Access::LocalAndRemote)?;
        Ok(Self { regions, memory, own, peers })
    }

    /// Puts a word to a peer.
    fn put(&self, lane: &mut Lane<Crowd>, pe: Pe, local: LocalSide) -> Result<(), BoxError> {
        let remote_handle = &of_peer(pe, &self.own)?;
        let (direction, remote_addr) = (Direction::Write, addr(&self.memory) as u64);
        Ok(lane.start(&Request { direction, pe, remote_handle, remote_addr, local, len: 8 })?)
    }

    /// Turns, while something waits for a bounce buffer for each of the peers, and all bounce
    /// buffers are in use.
    fn no_bounce(&self) -> Result<(), BoxError> {
        let device = vec![0_u64; 8];
        self.regions.register(addr(&device), 64, Access::Local)?;
        let mut lane = Crowd::new(2 * self.peers).open(&self.regions, self.peers);
        let local = LocalSide::Memory(addr(&device));
        for pe in 1..=self.peers {
            self.put(&mut lane, Pe(pe), local)?;
        }
        sections(LENGTHS, |count| {
            for _ in 0..count {
                lane.progress()?;
            }
            Ok(())
        })
    }

    /// A fetch of each peer, whose answer does not leave, and then others.
    fn answers(&self) -> Result<(), BoxError> {
        let fabric = Crowd::new(DEPTH);
        let mut lane = fabric.open(&self.regions, self.peers);
        let at = Spot { slot: Handle::decode(&self.own)?.slot, offset: 0 };
        let atomic = Atomic {
            op: AtomicOp::FetchInc,
            width: Width::Eight,
            float: false,
            operand: 1,
            compare: 0,
        };
        // What a message is closed with goes by its receiver.
        let seal = Seal::new(cookie(), Pe(1));
        let mut number = 0;
        let mut fetch = |lane: &mut Lane<Crowd>| {
            let (from, seq) = (Pe(1 + number % self.peers), number / self.peers);
            let seq = Seq(FIRST.wrapping_add(seq));
            let body = Body::Fetch { at, atomic, request_id: RequestId { slot: 0, seq }, place: 0 };
            let mut packet = Packet::EMPTY;
            Message { from, seq, ack: Seq(FIRST), behind: 0, body }.encode(&mut packet);
            seal.close(Pe(0), &mut packet);
            fabric.world(|world| world.mail.push_back(packet));
            number += 1;
            lane.progress()
        };
        for _ in 0..self.peers {
            fetch(&mut lane)?;
        }
        sections(LENGTHS, |count| {
            for _ in 0..count {
                fetch(&mut lane)?;
            }
            Ok(())
        })
    }

    /// Looks at rails, while something is under way to one of the peers, all of which are known.
    fn looks(&self) -> Result<(), BoxError> {
        let config = RailHealth { timeout: Duration::from_secs(1 << 20), cooling: None };
        let control = vec![PeerAddr(0); self.peers as usize + 1];
        let fabric = Crowd::new(DEPTH);
        let lane = fabric.open(&self.regions, self.peers);
        let mut lane = lane.with_rail_health(&config, control);
        let look = |lane: &mut Lane<Crowd>| {
            fabric.world(|world| world.now += LOOK);
            lane.progress()
        };
        // Until each iteration looks.
        for _ in 0..1000 {
            look(&mut lane)?;
        }
        let all: Vec<u32> = (1..=self.peers).collect();
        for few in all.chunks(PEERS[0].0 as usize) {
            fabric.world(|world| world.holds = true);
            for pe in few {
                self.put(&mut lane, Pe(*pe), LocalSide::Value(1))?;
            }
            look(&mut lane)?;
            fabric.world(|world| world.holds = false);
            for pe in few {
                lane.quiet(Pe(*pe))?;
            }
        }
        fabric.world(|world| world.holds = true);
        for _ in 0..4 {
            look(&mut lane)?;
        }
        self.put(&mut lane, Pe(1), LocalSide::Value(1))?;
        sections(LENGTHS, |count| {
            for _ in 0..count {
                look(&mut lane)?;
            }
            Ok(())
        })
    }
}

fn addr(memory: &[u64]) -> usize {
    memory.as_ptr() as usize
}

/// The process that is counted.
pub(super) fn process() -> Result<(), BoxError> {
    let bounces = vec![0_u8; CHUNK * 2 * usize::from(CHUNKS)];
    for (peers, _) in PEERS {
        Bench::new(peers, &bounces)?.no_bounce()?;
        Bench::new(peers, &bounces)?.answers()?;
        Bench::new(peers, &bounces)?.looks()?;
    }
    Ok(())
}

/// Counts, and keeps the figures.
///
/// # Errors
/// No valgrind, or files that are not understood.
pub(super) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    let dir = PrivateDir::new("nvshmem-bench")?;
    let callgrind = super::process(options, &dir, NAME)?;
    for (at, (kind, unit)) in KINDS.into_iter().enumerate() {
        let cost = |of: usize| callgrind.cost(2 * (of * KINDS.len() + at), LENGTHS, |_| true);
        let few = cost(0)?.ours;
        for (of, (peers, name)) in PEERS.into_iter().enumerate().skip(1) {
            let many = cost(of)?.ours;
            println!("{kind:<30} {few:>8.1} with {} peers, {many:>8.1} with {peers}", PEERS[0].0);
            report.push(format!("{kind}_{name}{unit}_over_{}", PEERS[0].1), many / few, "ratio");
        }
    }
    Ok(())
}
