//! Numbers in the text files of sysfs, as the kernel writes them.

use std::ops::RangeInclusive;

/// Parses the number of a NUMA node; None for -1, the kernel's value if there is none.
pub fn numa_node(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// Parses a list such as `0-3,8`, without ranges that are not entirely below `most`.
pub fn cpus(list: &str, most: usize) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first..=last).filter(|range: &RangeInclusive<usize>| *range.end() < most)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_number_lists_are_read() {
        let numbers = |list| cpus(list, 1024);
        assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(numbers("\n").is_empty() && numbers("x-y").is_empty());
        assert!(numbers("0-1024").is_empty(), "more than a set has");
        assert_eq!((numa_node("1\n"), numa_node("-1\n"), numa_node("")), (Some(1), None, None));
    }
}
