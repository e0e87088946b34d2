//! The two C++ maps through which the host tells a plugin about users' buffers in the heap, laid
//! out as libstdc++ lays out an `unordered_map` from pointers to words.

use nvshmem_abi::c;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

/// A map that stays where it is, with its nodes.
#[derive(Debug)]
pub(crate) struct Map {
    /// The map, and behind it nothing that C++ knows of.
    map: Box<c::nvt_std_unordered_map>,
    /// Linked from the map on; never moved while it lives.
    nodes: Box<[c::nvt_map_node]>,
}

// SAFETY: the pointers lead to what the map itself owns.
unsafe impl Send for Map {}
// SAFETY: as above; it is only read.
unsafe impl Sync for Map {}

impl Map {
    /// A map of these entries, in one bucket: which, like libstdc++'s, is the map's own last word.
    pub(crate) fn new(entries: &[Entry]) -> Map {
        let node = |entry: &Entry| c::nvt_map_node {
            next: std::ptr::null_mut(),
            key: std::ptr::without_provenance_mut(entry.key),
            value: entry.value as u64,
        };
        let mut map = Map {
            map: Box::new(c::nvt_std_unordered_map {
                bucket_count: 1,
                count: entries.len() as u64,
                ..Default::default()
            }),
            nodes: entries.iter().map(node).collect(),
        };
        let first = map.nodes.as_mut_ptr();
        for index in 1..map.nodes.len() {
            // The node before leads to this one.
            map.nodes[index - 1].next = first.wrapping_add(index);
        }
        let inner = &mut *map.map;
        inner._rest[0] = u64::from(1f32.to_bits());
        inner.buckets = (&raw mut inner._rest[2]).cast();
        if !entries.is_empty() {
            inner.first_node_ptr = first;
            // A bucket leads to what is before its first node: here the map's own link.
            inner._rest[2] = (&raw const inner.first_node_ptr) as u64;
        }
        map
    }

    pub(crate) fn as_ptr(&mut self) -> *mut c::nvt_std_unordered_map {
        &raw mut *self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_reached_in_order_as_cpp_reaches_them() {
        for count in 0..4usize {
            let entries: Vec<Entry> =
                (0..count).map(|i| Entry { key: 0x1000 * (i + 1), value: 7 + i }).collect();
            let mut map = Map::new(&entries);
            let raw = map.as_ptr();
            let mut found = Vec::new();
            // SAFETY: the map lives to the end of the loop, and every link is a node or null.
            unsafe {
                assert_eq!((*raw).count, count as u64);
                let mut node = (*raw).first_node_ptr;
                let bucket = (*raw).buckets.cast::<*const *mut c::nvt_map_node>().read();
                if count == 0 {
                    assert!(bucket.is_null());
                } else {
                    assert_eq!(*bucket, node);
                }
                while !node.is_null() {
                    found.push(((*node).key as usize, (*node).value as usize));
                    node = (*node).next;
                }
            }
            let expected: Vec<_> = entries.iter().map(|e| (e.key, e.value)).collect();
            assert_eq!(found, expected);
        }
    }
}
