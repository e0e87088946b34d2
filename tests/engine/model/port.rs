//! Port between a lane and the model.

use std::rc::Rc;

use engine::ids::WrId;
use engine::port::packet::LongPacket;
use engine::port::{
    Addressing, Clock, Completions, DataPath, Failure, Incoming, LocalMemory, MemoryPort,
    Messaging, Operation, PeerAddr, Polled, PortError, Posted, RailLimits, Registered,
};

use super::explore::Model;
use super::world::{self, Done, Flight, Letter, Mail, World};
use crate::prelude::*;

pub(crate) struct ModelPort {
    pub(crate) model: Rc<Model>,
    pub(crate) pe: usize,
    pub(crate) limits: Vec<RailLimits>,
}

fn target(to: PeerAddr) -> (usize, RailId) {
    ((to.0 >> 8) as usize, RailId(to.0 as u8))
}

impl ModelPort {
    fn is_dead(&self, rail: RailId) -> bool {
        let mut world = self.model.world.borrow_mut();
        let dead = world.is_dead(self.pe, rail);
        if dead {
            world.told(self.pe, ("refused", rail));
        }
        dead
    }
}

fn lost() -> PortError {
    PortError { call: "model", code: 5, text: "lost".to_owned() }
}

impl DataPath for ModelPort {
    type Fast = ();

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, _rail: RailId) -> &str {
        "model"
    }

    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Posted, PortError> {
        let (transfer, data) = match operation {
            Operation::Transfer(transfer) => (*transfer, None),
            Operation::WriteWithImmediate(transfer, data) => (*transfer, Some(data)),
        };
        assert_eq!(transfer.direction, Direction::Write);
        assert!(transfer.len >= 1 && transfer.len <= self.limits[rail.index()].max_segment);
        if self.is_dead(rail) {
            return Err(lost());
        }
        let again = self.model.choose_again();
        self.model.world.borrow_mut().told(self.pe, ("posted", rail, again));
        if again {
            return Ok(Posted::Again);
        }
        let early = self.model.choose_early();
        let (to, to_rail) = target(to);
        assert_eq!(transfer.key, world::key(to, to_rail), "the key is not of the rail addressed");
        let flight = Flight { id: 0, from: self.pe, rail, to, wr_id, transfer, delivered: false };
        let told = data.map(|data| (to_rail, data));
        self.model.world.borrow_mut().post(flight, told, early);
        Ok(Posted::Yes)
    }

    fn fast(&self, _rail: RailId) {}

    fn drain(&mut self, rail: RailId, completions: &mut impl Completions) -> Polled {
        let mut world = self.model.world.borrow_mut();
        let mut count = 0;
        while let Some(next) = world.sides[self.pe].done[rail.index()].pop_front() {
            let told = ("completed", rail, next);
            match next {
                Done::Completed(wr_id) => {
                    completions.take(wr_id.index());
                    count += 1;
                    world.told(self.pe, told);
                }
                Done::Failed(_) | Done::MessageFailed(_) | Done::RailFailed if count == 0 => {
                    world.told(self.pe, told);
                    let (wr_id, is_message) = match next {
                        Done::MessageFailed(wr_id) => (Some(wr_id), true),
                        Done::Failed(wr_id) => (Some(wr_id), false),
                        _ => (None, false),
                    };
                    return Polled::Failed(Box::new(Failure { wr_id, is_message, error: lost() }));
                }
                // An error is reported by a poll of its own.
                Done::Failed(_) | Done::MessageFailed(_) | Done::RailFailed => {
                    world.sides[self.pe].done[rail.index()].push_front(next);
                    break;
                }
            }
        }
        if count == 0 { Polled::Empty } else { Polled::Completed(count) }
    }
}

impl Messaging for ModelPort {
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        if self.is_dead(rail) {
            return Err(lost());
        }
        let again = self.model.choose_again();
        let mut world = self.model.world.borrow_mut();
        world.told(self.pe, ("sent", rail, again));
        if again {
            return Ok(Posted::Again);
        }
        let ((to, to_rail), bytes) = (target(to), bytes.to_vec());
        world.send(Letter { id: 0, from: self.pe, rail, to, to_rail, wr_id, bytes, again: false });
        Ok(Posted::Yes)
    }

    fn receive(&mut self, rail: RailId, into: &mut LongPacket) -> Incoming {
        let mut world = self.model.world.borrow_mut();
        match world.sides[self.pe].inbox[rail.index()].pop_front() {
            Some(Mail::Message(bytes)) => {
                into.fill(&bytes);
                world.told(self.pe, ("received", rail, bytes));
                Incoming::Message
            }
            Some(Mail::ImmediateData(data)) => {
                world.told(self.pe, ("immediate data", rail, data));
                Incoming::ImmediateData(data)
            }
            None => Incoming::Nothing,
        }
    }
}

impl LocalMemory for ModelPort {
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        let adds = [AtomicOp::Add, AtomicOp::FetchAdd, AtomicOp::SignalAdd];
        assert!(adds.contains(&atomic.op));
        let mut world = self.model.world.borrow_mut();
        let before = world.add(self.pe, addr, atomic.operand);
        world.told(self.pe, ("applied", before));
        Ok(before)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        World::load(self.pe, addr, into);
        Ok(())
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.model.world.borrow_mut().store(self.pe, addr, bytes);
        Ok(())
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.store(addr, &flag.to_le_bytes())
    }
}

impl Clock for ModelPort {
    fn now(&mut self) -> u64 {
        0
    }

    fn relax(&mut self) {
        self.model.run_others(self.pe);
    }
}

#[derive(Debug)]
pub(crate) struct ModelMemory {
    pub(crate) pe: usize,
    pub(crate) rails: u8,
}

impl MemoryPort for ModelMemory {
    type Region = ();

    fn register(
        &self,
        _addr: usize,
        _len: usize,
        _access: Access,
    ) -> Result<Registered<()>, PortError> {
        let keys = (0..self.rails).map(|rail| world::key(self.pe, RailId(rail))).collect();
        Ok(Registered::without_descs((), keys, Addressing::Offset))
    }
}
