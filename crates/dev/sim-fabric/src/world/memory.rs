//! The memories of all PEs, and what of them is registered.

use crate::prelude::*;

/// The host lane's domain, which is no rail that peers can address.
pub(crate) const HOST: RailId = RailId(u8::MAX);

#[derive(Debug)]
pub(crate) struct Key {
    pe: Pe,
    rail: RailId,
    base: usize,
    len: usize,
}

#[derive(Debug)]
struct Arena {
    base: usize,
    bytes: Vec<u8>,
    reach: Reach,
}

#[derive(Default, Debug)]
pub(crate) struct Memory {
    arenas: Vec<Vec<Arena>>,
    pub(crate) keys: HashMap<u64, Key>,
    last_key: u64,
    /// Whether operations name addresses, and not offsets in regions.
    is_virtual: bool,
    /// Bounce memory, what happens in which no user sees: of whom, address and bytes.
    pub(crate) bounces: Vec<(Pe, usize, usize)>,
    /// Keys by which nothing may be written.
    pub(crate) only_reads: HashSet<u64>,
}

impl Memory {
    pub(crate) fn new(n_pes: u32, is_virtual: bool) -> Self {
        Self { arenas: (0..n_pes).map(|_| Vec::new()).collect(), is_virtual, ..Self::default() }
    }

    pub(crate) fn alloc(&mut self, pe: Pe, len: usize, reach: Reach) -> usize {
        let memory = &mut self.arenas[pe.index()];
        // Each PE's memory is at addresses of its own, so that a mix-up of PEs cannot go unseen.
        let first = (pe.index() + 1) << 36;
        let behind = |last: &Arena| (last.base + last.bytes.len()).next_multiple_of(4096) + 4096;
        let base = memory.last().map_or(first, behind);
        memory.push(Arena { base, bytes: vec![0; len], reach });
        base
    }

    pub(crate) fn owner(addr: usize) -> Pe {
        Pe(((addr >> 36) as u32).wrapping_sub(1))
    }

    pub(crate) fn is_bounce(&self, pe: Pe, addr: usize) -> bool {
        let mut bounces = self.bounces.iter();
        bounces.any(|&(of, base, len)| of == pe && addr.wrapping_sub(base) < len)
    }

    fn find(&mut self, pe: Pe, addr: usize, len: usize) -> Option<&mut Arena> {
        self.arenas[pe.index()]
            .iter_mut()
            .find(|arena| addr >= arena.base && addr - arena.base + len <= arena.bytes.len())
    }

    pub(crate) fn any_bytes_mut(&mut self, pe: Pe, addr: usize, len: usize) -> &mut [u8] {
        match self.find(pe, addr, len) {
            Some(arena) => &mut arena.bytes[addr - arena.base..][..len],
            None => panic!("{pe} has no memory of {len} bytes at {addr:#x}"),
        }
    }

    pub(crate) fn cpu_bytes_mut(&mut self, pe: Pe, addr: usize, len: usize) -> &mut [u8] {
        let reach = self.reach(pe, addr, len);
        assert_ne!(reach, Some(Reach::Fabric), "{pe}: {len} bytes at {addr:#x} are on a device");
        self.bytes_mut(pe, addr, len)
    }

    pub(crate) fn bytes_mut(&mut self, pe: Pe, addr: usize, len: usize) -> &mut [u8] {
        let reach = self.reach(pe, addr, len);
        assert_ne!(reach, Some(Reach::Staged), "{pe}: {len} bytes at {addr:#x} are staged");
        self.any_bytes_mut(pe, addr, len)
    }

    pub(crate) fn reach(&mut self, pe: Pe, addr: usize, len: usize) -> Option<Reach> {
        Some(self.find(pe, addr, len)?.reach)
    }

    pub(crate) fn register(&mut self, pe: Pe, rail: RailId, base: usize, len: usize) -> u64 {
        self.last_key += 1;
        let key = self.last_key;
        self.keys.insert(key, Key { pe, rail, base, len });
        key
    }

    pub(crate) fn has_memory(&mut self, pe: Pe, addr: usize, len: usize) -> bool {
        self.find(pe, addr, len).is_some()
    }

    pub(crate) fn covers(
        &self,
        key: u64,
        (pe, domain): (Pe, RailId),
        addr: usize,
        len: usize,
    ) -> bool {
        self.keys.get(&key).is_some_and(|key| {
            let inside = addr >= key.base && addr - key.base + len <= key.len;
            (key.pe, key.rail) == (pe, domain) && inside
        })
    }

    /// The address at which an operation by a key touches the target's memory.
    pub(crate) fn resolve(
        &self,
        key: u64,
        (pe, rail): (Pe, RailId),
        remote: usize,
        len: usize,
        writes: bool,
    ) -> Result<usize, PortError> {
        let region = match self.keys.get(&key) {
            Some(region) if (region.pe, region.rail) == (pe, rail) => region,
            _ => return Err(fault("delivery", 13, "the key is not of the rail addressed")),
        };
        if writes && self.only_reads.contains(&key) {
            return Err(fault("delivery", 13, "the key is for reading only"));
        }
        let first = if self.is_virtual { region.base } else { 0 };
        let offset = remote.wrapping_sub(first);
        if offset > region.len || len > region.len - offset {
            return Err(fault("delivery", 14, "outside the region of the key"));
        }
        Ok(region.base + offset)
    }
}

/// Executes an atomic on a word. Gives the word before.
pub(crate) fn change(word: &mut [u8], atomic: &Atomic) -> u64 {
    let mut old = [0; 8];
    old[..word.len()].copy_from_slice(word);
    let old = u64::from_le_bytes(old);
    word.copy_from_slice(&atomic.apply(old).to_le_bytes()[..word.len()]);
    old
}
