//! Registration of memory with the fake fabric.

use crate::copies::FakeCopies;
use crate::prelude::*;

#[derive(Debug)]
pub struct FakeMemory {
    fabric: FakeFabric,
    pe: Pe,
    rails: u8,
    /// Bounce buffer length and bounce buffers each way, until they are given out.
    bounce: Mutex<Option<(usize, u16, u16)>>,
}

impl FakeFabric {
    /// What registers a PE's memory, with `rails` proxy rails and one host rail.
    pub fn memory(&self, pe: Pe, rails: u8) -> FakeMemory {
        FakeMemory { fabric: self.clone(), pe, rails, bounce: Mutex::new(Some((4096, 2, 2))) }
    }
}

impl FakeMemory {
    #[must_use]
    pub fn with_bounce(self, bounce_len: usize, out: u16, inward: u16) -> Self {
        Self { bounce: Mutex::new(Some((bounce_len, out, inward))), ..self }
    }
}

#[derive(Debug)]
pub struct FakeRegion {
    fabric: FakeFabric,
    keys: Vec<u64>,
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        let mut world = self.fabric.world();
        for key in &self.keys {
            world.memory.keys.remove(key);
        }
    }
}

impl MemoryPort for FakeMemory {
    type Region = FakeRegion;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<FakeRegion>, PortError> {
        let mut world = self.fabric.world();
        if !world.memory.has_memory(self.pe, addr, len) {
            return Err(fault("register", 14, "memory that does not exist"));
        }
        world.call(PortCall::Register)?;
        let reach = world.memory.reach(self.pe, addr, len).unwrap_or(Reach::Direct);
        if reach == Reach::Staged {
            let owner = FakeRegion { fabric: self.fabric.clone(), keys: Vec::new() };
            return Ok(Registered::staged(owner));
        }
        let mut keys: Vec<u64> = (0..self.rails)
            .map(|rail| world.memory.register(self.pe, RailId(rail), addr, len))
            .collect();
        let proxy_descs = keys.iter().map(|key| Desc(*key as usize)).collect();
        let remote = keys.clone();
        if access == Access::Local {
            world.memory.only_reads.extend(&keys);
        }
        let host = world.memory.register(self.pe, HOST, addr, len);
        keys.push(host);
        Ok(Registered {
            owner: FakeRegion { fabric: self.fabric.clone(), keys },
            keys: remote,
            proxy_descs,
            host_descs: vec![Desc(host as usize)],
            addressing: match world.script.is_virtual {
                true => Addressing::Virtual,
                false => Addressing::Offset,
            },
            reach,
        })
    }

    fn take_stager(&self) -> Option<Stager> {
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let (bounce_len, out, inward) = bounce.take()?;
        let mut bounce = Bounce { addr: 0, bounce_len, out, inward };
        bounce.addr = self.fabric.alloc(self.pe, bounce.bytes());
        self.fabric.world().memory.bounces.push((self.pe, bounce.addr, bounce.bytes()));
        let copies = FakeCopies::new(self.fabric.clone(), self.pe, bounce);
        Some(Stager { copies: Box::new(copies), bounce })
    }

    fn make_stager(&self) -> Result<Option<Stager>, PortError> {
        self.fabric.world().call(PortCall::Register)?;
        Ok(self.take_stager())
    }
}
