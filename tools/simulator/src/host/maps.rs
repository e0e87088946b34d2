//! The two C++ maps through which the host tells a plugin about users' buffers in the heap, laid
//! out as libstdc++ lays out an `unordered_map` from pointers to words.

use nvshmem_abi::c;

/// A map of one entry at most that stays where it is, with its node.
#[derive(Debug)]
pub(crate) struct Map {
    map: Box<c::nvt_std_unordered_map>,
    /// Linked from the map; never moved while it lives.
    _node: Option<Box<c::nvt_map_node>>,
}

// SAFETY: the pointers lead to what the map itself owns.
unsafe impl Send for Map {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Map {}

impl Map {
    pub(crate) fn new(entry: Option<(usize, usize)>) -> Map {
        let mut node = entry.map(|(key, value)| {
            let key = std::ptr::without_provenance_mut(key);
            Box::new(c::nvt_map_node { next: std::ptr::null_mut(), key, value: value as u64 })
        });
        let first = node.as_mut().map_or(std::ptr::null_mut(), |node| &raw mut **node);
        let count = node.iter().len() as u64;
        // Plugins read the list of nodes alone, so the buckets stay empty.
        let map = c::nvt_std_unordered_map { count, first_node_ptr: first, ..Default::default() };
        let map = Box::new(map);
        Map { map, _node: node }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut c::nvt_std_unordered_map {
        &raw mut *self.map
    }
}
