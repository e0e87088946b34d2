//! The fake's copies: memory that the CPU does not reach.

use crate::prelude::*;

const MAX_CALLS: usize = 2;

#[derive(Debug)]
pub(crate) struct FakeCopies {
    fabric: FakeFabric,
    pe: Pe,
    bounce: Bounce,
    /// What is to be done soon, in this order.
    soon: Vec<(usize, Soon)>,
    /// Why some of that is missing, until somebody is told.
    lost: Option<PortError>,
}

#[derive(Debug)]
enum Soon {
    Store(Vec<u8>, DeferredOrder),
    Apply(Atomic, DeferredOrder),
}

fn turn_round(soon: &mut [(usize, Soon)]) {
    let end = |(addr, soon): &(usize, Soon)| match soon {
        Soon::Store(bytes, DeferredOrder::Any) => Some(addr + bytes.len()),
        Soon::Apply(atomic, DeferredOrder::Any) => Some(addr + atomic.width.bytes()),
        _ => None,
    };
    for free in soon.chunk_by_mut(|one, next| end(one).is_some() && end(next).is_some()) {
        let overlaps = |at: usize| {
            let others = free[at + 1..].iter();
            let (from, to) = (free[at].0, end(&free[at]));
            others.clone().any(|other| Some(other.0) < to && Some(from) < end(other))
        };
        if !(0..free.len()).any(overlaps) {
            free.reverse();
        }
    }
}

impl FakeCopies {
    pub(super) fn new(fabric: FakeFabric, pe: Pe, bounce: Bounce) -> Self {
        Self { fabric, pe, bounce, soon: Vec::new(), lost: None }
    }

    fn check(&self, addr: usize, len: usize) -> Result<(), PortError> {
        let reach = self.fabric.world().memory.reach(self.pe, addr, len);
        if reach.is_some_and(|reach| reach != Reach::Direct) {
            return Ok(());
        }
        Err(fault("copying", 14, "no such memory of a device"))
    }
}

impl CopyPort for FakeCopies {
    fn reach(&mut self, addr: usize, len: usize) -> Result<Reach, PortError> {
        match self.fabric.world().memory.reach(self.pe, addr, len) {
            Some(Reach::Direct) => Ok(Reach::Direct),
            // The fabric reaches what is registered with it.
            Some(Reach::Fabric | Reach::Staged) => Ok(Reach::Staged),
            None => Err(fault("looking at memory", 14, "no such memory")),
        }
    }

    fn capacity(&self, direction: CopyDirection) -> usize {
        let calls = self.fabric.world().calls_under_way(self.pe, direction);
        if calls < MAX_CALLS { MAX_BATCH_COPIES } else { 0 }
    }

    fn start_all(&mut self, copies: &[TaggedCopy]) -> Result<Posted, PortError> {
        self.submit_deferred()?;
        let mut world = self.fabric.world();
        assert!(copies.len() <= MAX_BATCH_COPIES, "{} copies are too many", copies.len());
        for TaggedCopy { copy, .. } in copies {
            self.check_copy(&world, copy);
            assert_eq!(copy.direction, copies[0].copy.direction, "one direction");
            if world.memory.reach(self.pe, copy.memory, copy.len).is_none() {
                return Err(fault("starting a copy", 14, "no such memory"));
            }
        }
        if !world.has_room() {
            return Ok(Posted::Again);
        }
        world.call(PortCall::Copy)?;
        world.trace(Call::Copy(self.pe));
        world.start_copies(self.pe, copies);
        Ok(Posted::Yes)
    }

    fn start_in_order(
        &mut self,
        steps: &[OrderedStep],
        tag: u32,
    ) -> Result<Option<Posted>, PortError> {
        self.flush()?;
        let is_words = |step: &&OrderedStep| matches!(step, OrderedStep::Apply { .. });
        let words = steps.iter().filter(is_words).count();
        assert!(steps.len() <= MAX_STEPS && words <= MAX_WORDS, "{} steps", steps.len());
        let mut world = self.fabric.world();
        if !world.script.takes_lists {
            return Ok(None);
        }
        for step in steps {
            let (addr, len) = match step {
                OrderedStep::Copy { copy, .. } => {
                    self.check_copy(&world, copy);
                    (copy.memory, copy.len)
                }
                OrderedStep::Apply { addr, atomic, .. } => (*addr, atomic.width.bytes()),
            };
            match world.memory.reach(self.pe, addr, len) {
                Some(Reach::Direct) => return Ok(None),
                Some(Reach::Fabric | Reach::Staged) => {}
                None => return Err(fault("starting a list", 14, "no such memory")),
            }
        }
        if !world.has_room() {
            return Ok(Some(Posted::Again));
        }
        world.call(PortCall::Copy)?;
        world.trace(Call::Copy(self.pe));
        world.start_steps(self.pe, steps, tag);
        Ok(Some(Posted::Yes))
    }

    fn poll(&mut self) -> Option<Copied> {
        self.fabric.world().copied.get_mut(&self.pe)?.pop_front()
    }

    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        self.check_word(addr, atomic)?;
        self.catch_up(addr, atomic.width.bytes())?;
        let mut world = self.fabric.world();
        let word = world.memory.any_bytes_mut(self.pe, addr, atomic.width.bytes());
        let old = change(word, atomic);
        world.events.push(Event::Applied { pe: self.pe, addr });
        Ok(old)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        self.catch_up(addr, into.len())?;
        let mut world = self.fabric.world();
        into.copy_from_slice(world.memory.any_bytes_mut(self.pe, addr, into.len()));
        Ok(())
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        self.catch_up(addr, bytes.len())?;
        let mut world = self.fabric.world();
        world.memory.any_bytes_mut(self.pe, addr, bytes.len()).copy_from_slice(bytes);
        world.events.push(Event::Applied { pe: self.pe, addr });
        Ok(())
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.store(addr, &flag.to_le_bytes())
    }

    fn queue_write(
        &mut self,
        addr: usize,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        self.check(addr, bytes.len())?;
        self.soon.push((addr, Soon::Store(bytes.to_vec(), order)));
        Ok(())
    }

    fn queue_atomic(
        &mut self,
        addr: usize,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        self.check_word(addr, atomic)?;
        self.soon.push((addr, Soon::Apply(*atomic, order)));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        let _ = self.submit_deferred();
        self.fabric.world().finish_lists(self.pe);
        self.lost.take().map_or(Ok(()), Err)
    }

    fn peer_bounce(&self, pe: Pe) -> Option<PeerBounce> {
        self.fabric.world().peer_bounce(self.pe, pe)
    }

    fn is_mapped_by(&self, pe: Pe) -> bool {
        let world = self.fabric.world();
        world.share(self.pe, pe) && world.announced.contains(&pe)
    }

    fn announce(&mut self) {
        let mut world = self.fabric.world();
        if !world.blind.contains(&self.pe) {
            world.announced.insert(self.pe);
        }
    }

    fn has_ended(&self, pe: Pe) -> bool {
        self.fabric.world().ended.contains(&pe)
    }

    fn bytes_by_cpu(&self) -> u64 {
        0
    }
}

impl FakeCopies {
    fn check_word(&self, addr: usize, atomic: &Atomic) -> Result<(), PortError> {
        let width = atomic.width.bytes();
        if addr % width != 0 {
            return Err(fault("apply", 14, "no such word"));
        }
        self.check(addr, width)
    }

    /// Does all that comes before what is done now with these bytes.
    fn catch_up(&mut self, addr: usize, len: usize) -> Result<(), PortError> {
        self.check(addr, len)?;
        self.submit_deferred()?;
        self.fabric.world().finish_lists(self.pe);
        Ok(())
    }

    fn check_copy(&self, world: &World, copy: &Copy) {
        let Bounce { addr, bounce_len, .. } = self.bounce;
        let at = copy.bounce.wrapping_sub(addr);
        let inside = at < self.bounce.bytes() && at % bounce_len + copy.len <= bounce_len;
        let of_peer = || world.sees(self.pe, copy.bounce, copy.len);
        let inside = inside || copy.direction == CopyDirection::In && of_peer();
        assert!(inside && copy.len > 0, "{copy:?} is in no bounce buffer of {:?}", self.bounce);
    }

    fn submit_deferred(&mut self) -> Result<(), PortError> {
        if let Some(error) = &self.lost {
            self.soon.clear();
            return Err(error.clone());
        }
        let mut world = self.fabric.world();
        if !self.soon.is_empty() {
            world.finish_lists(self.pe);
        }
        if world.fail_settling && !self.soon.is_empty() {
            self.soon.clear();
            let error = fault("storing words", 700, "failed by the script");
            return Err(self.lost.insert(error).clone());
        }
        world.settled += u32::from(!self.soon.is_empty());
        turn_round(&mut self.soon);
        for (addr, soon) in self.soon.drain(..) {
            match soon {
                Soon::Store(bytes, _) => {
                    world.memory.any_bytes_mut(self.pe, addr, bytes.len()).copy_from_slice(&bytes);
                }
                Soon::Apply(atomic, _) => {
                    let width = atomic.width.bytes();
                    change(world.memory.any_bytes_mut(self.pe, addr, width), &atomic);
                }
            }
            world.events.push(Event::Applied { pe: self.pe, addr });
        }
        Ok(())
    }
}
