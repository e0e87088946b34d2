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
        let mut map = Box::new(c::nvt_std_unordered_map {
            bucket_count: 1,
            count: node.iter().len() as u64,
            ..Default::default()
        });
        map._rest[0] = u64::from(1f32.to_bits());
        map.buckets = (&raw mut map._rest[2]).cast();
        if let Some(node) = &mut node {
            map.first_node_ptr = &raw mut **node;
            // A bucket leads to what is before its first node: here the map's own link.
            map._rest[2] = (&raw const map.first_node_ptr) as u64;
        }
        Map { map, _node: node }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut c::nvt_std_unordered_map {
        &raw mut *self.map
    }
}
