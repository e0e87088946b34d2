//! The fake's side of the engine's port traits.

use crate::prelude::*;

const POLL_TIME: u64 = 200;

#[derive(Debug)]
pub struct FakePort {
    fabric: FakeFabric,
    lane: usize,
    pe: Pe,
    limits: Vec<RailLimits>,
    names: Vec<String>,
    /// Work-request ids in flight on each rail, to catch a lane that uses one twice or exceeds the
    /// depth.
    wr_ids: Vec<HashSet<WrId>>,
    /// When the messages on each rail will have left that were not polled as having left.
    leaving: Vec<VecDeque<u64>>,
    has_fast_path: bool,
    /// Peers that the lane was told of as having ended.
    told_ended: HashSet<Pe>,
}

impl FakeFabric {
    /// Opens a lane's port. The first one of a PE is its proxy lane's: it gets the messages.
    pub fn port(&self, pe: Pe, limits: Vec<RailLimits>) -> FakePort {
        let lane = self.world().open_lane(pe, limits.len());
        FakePort {
            fabric: self.clone(),
            lane,
            pe,
            names: (0..limits.len()).map(|rail| format!("fake{rail}")).collect(),
            wr_ids: limits.iter().map(|_| HashSet::new()).collect(),
            leaving: limits.iter().map(|_| VecDeque::new()).collect(),
            limits,
            has_fast_path: true,
            told_ended: HashSet::new(),
        }
    }
}

impl FakePort {
    pub fn with_fast_path(self, has_fast_path: bool) -> Self {
        Self { has_fast_path, ..self }
    }

    fn has_room(&self, rail: RailId, to: PeerAddr) -> bool {
        let mut world = self.fabric.world();
        let used = self.wr_ids[rail.index()].len() + self.leaving[rail.index()].len();
        let full = world.script.shared_queue && used >= self.limits[rail.index()].depth as usize;
        !full && world.takes(self.lane, rail, target(to).pe)
    }

    fn take(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        transfer: &Transfer,
        data: Option<u64>,
    ) -> Result<Posted, PortError> {
        let limits = self.limits[rail.index()];
        assert!(transfer.len >= 1 && transfer.len <= limits.max_segment, "length of {transfer:?}");
        assert!(self.wr_ids.iter().all(|used| !used.contains(&wr_id)), "{wr_id:?} is in flight");
        if !self.has_room(rail, to) {
            return Ok(Posted::Again);
        }
        let mut world = self.fabric.world();
        let in_flight = &mut self.wr_ids[rail.index()];
        assert!(in_flight.len() < limits.depth as usize, "{rail} is over its depth");
        if let Local::Memory { addr, desc } = transfer.local {
            if !world.memory.has_memory(self.pe, addr, transfer.len) {
                return Err(fault("post", 14, "local memory that does not exist"));
            }
            // A PE's proxy lane is opened first.
            let proxy = world.lanes.iter().position(|owner| *owner == self.pe);
            let domain = if proxy == Some(self.lane) { rail } else { HOST };
            let by = (self.pe, domain);
            if limits.needs_desc && !world.memory.covers(desc.0 as u64, by, addr, transfer.len) {
                return Err(fault("post", 22, "the descriptor does not cover the local memory"));
            }
        }
        world.call(PortCall::Post)?;
        world.trace(Call::Post(self.pe, rail));
        world.post(self.lane, self.pe, rail, target(to), wr_id, (*transfer, data));
        in_flight.insert(wr_id);
        Ok(Posted::Yes)
    }

    fn send_bytes(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        if !self.has_room(rail, to) {
            return Ok(Posted::Again);
        }
        let mut world = self.fabric.world();
        world.call(PortCall::Send)?;
        world.trace(Call::Post(self.pe, rail));
        let left = world.send((self.lane, self.pe, rail), target(to), wr_id, bytes);
        self.leaving[rail.index()].push_back(left);
        Ok(Posted::Yes)
    }
}

impl DataPath for FakePort {
    type Fast = ();

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, rail: RailId) -> &str {
        &self.names[rail.index()]
    }

    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Posted, PortError> {
        let (transfer, data) = match operation {
            Operation::Transfer(transfer) => (transfer, None),
            Operation::WriteWithImmediate(transfer, data) => {
                let carries = self.limits[rail.index()].immediate_data;
                assert!(carries && transfer.direction == Direction::Write, "{rail}: {transfer:?}");
                (transfer, Some(data))
            }
        };
        self.take(rail, to, wr_id, transfer, data)
    }

    /// Any other thread is as good as this one.
    fn post_bulk(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Option<Posted>, PortError> {
        assert!(self.limits[rail.index()].bulk > 0, "{rail} has no connections for bulk");
        self.post(rail, to, wr_id, operation).map(Some)
    }

    fn ended_process(&mut self) -> Option<Pe> {
        let ended: Vec<Pe> = self.fabric.world().ended.iter().copied().collect();
        ended.into_iter().find(|pe| *pe != self.pe && self.told_ended.insert(*pe))
    }

    fn endpoint_error(&mut self, rail: RailId) -> Option<PortError> {
        let mut world = self.fabric.world();
        let at = world.troubled.iter().position(|troubled| *troubled == (self.pe, rail))?;
        world.troubled.swap_remove(at);
        Some(fault("looking at the rail", 5, "the rail is gone"))
    }

    fn has_fast_path(&self) -> bool {
        self.has_fast_path
    }

    fn fast(&self, _rail: RailId) {}

    fn drain(&mut self, rail: RailId, completions: &mut impl Completions) -> Polled {
        let mut world = self.fabric.world();
        world.advance(POLL_TIME, false);
        let now = world.now;
        self.leaving[rail.index()].retain(|left| *left > now);
        if let Err(error) = world.call(PortCall::Poll) {
            return Polled::Failed(Box::new(Failure { wr_id: None, is_message: false, error }));
        }
        let in_flight = &mut self.wr_ids[rail.index()];
        let (mut done, mut count) = ([0; POLL_BATCH], 0);
        while count < POLL_BATCH {
            match world.done[self.lane][rail.index()].pop_front() {
                Some(Done::WrId(wr_id)) => {
                    in_flight.remove(&wr_id);
                    done[count] = wr_id.index();
                    count += 1;
                }
                Some(Done::Failure(failure)) if count == 0 => {
                    if let Some(wr_id) = failure.wr_id.filter(|_| !failure.is_message) {
                        in_flight.remove(&wr_id);
                    }
                    return Polled::Failed(Box::new(failure));
                }
                // As libfabric does: an error entry is reported by a read of its own.
                Some(failure) => {
                    world.done[self.lane][rail.index()].push_front(failure);
                    break;
                }
                None => break,
            }
        }
        let unknown =
            |left: &[usize]| panic!("no segment of the lane has work-request id {}", left[0]);
        dispatch_completions(completions, &done[..count], |wr_id| *wr_id, unknown);
        if count == 0 { Polled::Empty } else { Polled::Completed(count) }
    }
}

impl Messaging for FakePort {
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        assert!(bytes.len() <= MAX_MESSAGE, "a message of {} bytes", bytes.len());
        self.send_bytes(rail, to, wr_id, bytes)
    }

    fn send_with_tail(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        Tail { addr, len }: Tail,
    ) -> Result<Posted, PortError> {
        let longest = self.limits[rail.index()].longest_message;
        assert!(head.len() + len <= longest, "a message of {} and {len} bytes", head.len());
        let mut bytes = head.to_vec();
        bytes.resize(head.len() + len, 0);
        self.load(addr, &mut bytes[head.len()..])?;
        self.send_bytes(rail, to, wr_id, &bytes)
    }

    fn receive(&mut self, rail: RailId, into: &mut LongPacket) -> Incoming {
        let mut world = self.fabric.world();
        match world.inboxes.get_mut(&(self.pe, rail)).and_then(VecDeque::pop_front) {
            Some(Mail::Message(bytes)) => {
                into.fill(&bytes);
                Incoming::Message
            }
            Some(Mail::ImmediateData(data)) => Incoming::ImmediateData(data),
            Some(Mail::Broken(code)) => Incoming::Broken { code },
            None => Incoming::Nothing,
        }
    }
}

impl LocalMemory for FakePort {
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        let width = atomic.width.bytes();
        let mut world = self.fabric.world();
        if addr % width != 0 || !world.memory.has_memory(self.pe, addr, width) {
            return Err(fault("apply", 14, "no such word"));
        }
        world.call(PortCall::Apply)?;
        let old = change(world.memory.cpu_bytes_mut(self.pe, addr, width), atomic);
        world.events.push(Event::Applied { pe: self.pe, addr });
        Ok(old)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        let mut world = self.fabric.world();
        let sees = world.sees(self.pe, addr, into.len());
        if !sees && !world.memory.has_memory(self.pe, addr, into.len()) {
            return Err(fault("load", 14, "no such memory"));
        }
        world.call(PortCall::Load)?;
        let owner = if sees { Memory::owner(addr) } else { self.pe };
        into.copy_from_slice(world.memory.cpu_bytes_mut(owner, addr, into.len()));
        Ok(())
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        let mut world = self.fabric.world();
        if !world.memory.has_memory(self.pe, addr, bytes.len()) {
            return Err(fault("store", 14, "no such memory"));
        }
        world.call(PortCall::Store)?;
        world.memory.cpu_bytes_mut(self.pe, addr, bytes.len()).copy_from_slice(bytes);
        if !world.memory.is_bounce(self.pe, addr) {
            world.events.push(Event::Applied { pe: self.pe, addr });
        }
        Ok(())
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.store(addr, &flag.to_le_bytes())
    }
}

impl Clock for FakePort {
    fn now(&mut self) -> u64 {
        self.fabric.world().now
    }

    fn relax(&mut self) {
        self.fabric.world().advance(0, true);
        self.fabric.step();
    }
}

fn target(to: PeerAddr) -> Target {
    Target { pe: Pe((to.0 >> 8) as u32), rail: RailId(to.0 as u8) }
}
