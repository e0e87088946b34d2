//! The host's maps of addresses in its heap: two C++ maps of the transport structure.
//!
//! A buffer of the user that was mapped into the symmetric heap has two addresses. `alias_va_map`
//! maps the heap's to the user's own; `egm_map` has the heap's address and the length of each such
//! buffer in memory of a NUMA node. Both are small `std::unordered_map`s of libstdc++, so their
//! lists of nodes are searched; nothing is written.

use nvshmem_abi::{StdUnorderedMap, c};
use thiserror::Error;

use crate::job::Origin;

const MOST: u64 = 1 << 20;

/// The two maps; null if the host has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMaps {
    pub(crate) alias: *const StdUnorderedMap,
    pub(crate) egm: *const StdUnorderedMap,
}

/// Reason why a map was not read: its layout differs, or it is being changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum MapFault {
    #[error("the map at {at:#x} is not aligned")]
    Alignment { at: usize },
    #[error("the map says that it has {count} entries")]
    Count { count: u64 },
    #[error("a node of the map is at {at:#x}, where none can be")]
    Node { at: usize },
    #[error("the map says that it has {count} entries, and has more")]
    Longer { count: u64 },
}

impl HostMaps {
    /// Returns the host's answer for an address where a chunk starts.
    ///
    /// # Safety
    /// Each map is null, or a `std::unordered_map` of libstdc++ with pointer keys and values of one
    /// word, which nobody changes during the call. The host changes them on the thread that
    /// registers memory, between calls.
    pub(crate) unsafe fn origin(&self, addr: usize) -> Result<Origin, MapFault> {
        // SAFETY: the caller's promise.
        unsafe {
            let alias = look_up(self.alias, addr)?;
            let on_host = look_up(self.egm, addr)?.is_some();
            // Null is no address of memory.
            Ok(Origin { alias: alias.map(|at| at as usize).filter(|at| *at != 0), on_host })
        }
    }
}

/// # Safety
/// As [`HostMaps::origin`], for one map.
unsafe fn look_up(map: *const StdUnorderedMap, key: usize) -> Result<Option<u64>, MapFault> {
    if map.is_null() {
        return Ok(None);
    }
    if !map.is_aligned() {
        return Err(MapFault::Alignment { at: map as usize });
    }
    // SAFETY: not null and aligned; a map by the caller's promise, which nobody changes.
    let StdUnorderedMap { first_node_ptr, count, .. } = unsafe { map.read() };
    if count > MOST {
        return Err(MapFault::Count { count });
    }
    let mut node: *const c::nvt_map_node = first_node_ptr;
    // At most as many steps as entries, in case of a cycle.
    for _ in 0..count {
        if node.is_null() || !node.is_aligned() {
            return Err(MapFault::Node { at: node as usize });
        }
        // SAFETY: not null and aligned; a node of the map, by the caller's promise.
        let c::nvt_map_node { next, key: found, value } = unsafe { node.read() };
        if found as usize == key {
            return Ok(Some(value));
        }
        node = next;
    }
    if node.is_null() { Ok(None) } else { Err(MapFault::Longer { count }) }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    struct ByHand {
        map: StdUnorderedMap,
        nodes: Vec<c::nvt_map_node>,
    }

    impl ByHand {
        fn new(entries: &[(usize, u64)]) -> Box<Self> {
            let node = |&(key, value): &(usize, u64)| c::nvt_map_node {
                next: ptr::null_mut(),
                key: key as *mut _,
                value,
            };
            let nodes = entries.iter().map(node).collect();
            let mut made = Box::new(Self { map: StdUnorderedMap::default(), nodes });
            let first = made.nodes.as_mut_ptr();
            for at in 1..made.nodes.len() {
                made.nodes[at - 1].next = first.wrapping_add(at);
            }
            made.map.count = entries.len() as u64;
            if !entries.is_empty() {
                made.map.first_node_ptr = first;
            }
            made
        }

        fn find(&self, key: usize) -> Result<Option<u64>, MapFault> {
            // SAFETY: a map as libstdc++ lays it out, or one whose fault is to be found before a
            // node that is none is read.
            unsafe { look_up(&raw const self.map, key) }
        }
    }

    #[test]
    fn malformed_maps_are_refused() {
        let entries = [(0x1000, 1), (0x2000, 2), (0x3000, 3)];
        let mut map = ByHand::new(&entries);
        for (key, value) in entries {
            assert_eq!((map.find(key), map.find(key + 1)), (Ok(Some(value)), Ok(None)));
        }
        map.map.count = MOST + 1;
        assert_eq!(map.find(0x1000), Err(MapFault::Count { count: MOST + 1 }));
        map.map.count = MOST;
        assert_eq!(map.find(0x2000), Ok(Some(2)), "as many are believed");
        map.map.count = 2;
        assert_eq!(map.find(0x2000), Ok(Some(2)));
        assert_eq!(map.find(0x3000), Err(MapFault::Longer { count: 2 }), "not read beyond");
        map.map.count = 4;
        assert_eq!(map.find(0x4000), Err(MapFault::Node { at: 0 }), "fewer than it says");
        map.map.count = 3;
        map.nodes[2].next = map.nodes.as_mut_ptr();
        assert_eq!(map.find(0x9000), Err(MapFault::Longer { count: 3 }), "it bites its tail");
        map.nodes[0].next = ptr::without_provenance_mut(0x1001);
        assert_eq!(map.find(0x2000), Err(MapFault::Node { at: 0x1001 }));
        let odd = (&raw const map.map).wrapping_byte_add(1);
        // SAFETY: refused before it is read.
        let fault = unsafe { look_up(odd, 0) };
        assert_eq!(fault, Err(MapFault::Alignment { at: odd as usize }));
    }
}
