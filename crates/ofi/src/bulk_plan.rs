//! Number of bulk connections of each rail, each with a thread, unless the settings have it.

use crate::data_path::bulk::MAX_CONNECTIONS;
use crate::options::BulkChoice;

/// Rate of one thread in Mbit/s: 3 to 6 GB/s over loopback.
const PER_THREAD: u32 = 25_000;

/// Maximum for a rail, unless the settings demand more.
const PER_RAIL: usize = 4;

/// Returns the number of connections of each rail of a PE, from its link speeds in Mbit/s, if
/// known. `here` PEs in all share `cores`.
///
/// `auto` is one for each 25 Gbit/s of a link, with at most half of a PE's cores for their threads;
/// none at all if that leaves one for all rails, or if the links together are no faster than one
/// thread, since the proxy thread is one.
pub(crate) fn connections(
    choice: BulkChoice,
    speeds: &[Option<u32>],
    cores: usize,
    here: usize,
) -> Vec<usize> {
    if let BulkChoice::Each(count) = choice {
        return vec![usize::from(count).min(MAX_CONNECTIONS); speeds.len()];
    }
    let threads = |speed: u32| (speed.div_ceil(PER_THREAD) as usize).clamp(1, PER_RAIL);
    let mut each: Vec<usize> = speeds.iter().map(|speed| speed.map_or(1, threads)).collect();
    let all: Option<u32> = speeds.iter().copied().sum();
    let room = cores / here.max(1) / 2;
    while each.iter().sum::<usize>() > room {
        let most = each.iter().copied().max().unwrap_or(0);
        let Some(last) = each.iter().rposition(|count| *count == most) else { break };
        each[last] -= 1;
    }
    if all.is_some_and(|all| all <= PER_THREAD) || each.iter().sum::<usize>() < 2 {
        each.fill(0);
    }
    each
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_links_cores_and_settings() {
        // Speeds, of which 0 is unknown, cores, PEs.
        for (speeds, cores, here, expected) in [
            (&[100_000][..], 64, 2, &[4][..]),
            // No more unless asked for.
            (&[400_000], 64, 2, &[4]),
            (&[50_000], 64, 2, &[2]),
            // The proxy thread is enough, also for all together.
            (&[25_000], 64, 2, &[0]),
            (&[15_000, 10_000], 64, 2, &[0, 0]),
            (&[15_000, 11_000], 64, 2, &[1, 1]),
            (&[0], 64, 2, &[0]),
            (&[0; 4], 16, 2, &[1; 4]),
            (&[100_000, 25_000], 64, 2, &[4, 1]),
            // Half of the cores are left.
            (&[0; 4], 8, 2, &[1, 1, 0, 0]),
            (&[100_000; 2], 32, 4, &[2, 2]),
            (&[100_000; 2], 12, 2, &[2, 1]),
            (&[100_000; 2], 2, 1, &[0, 0]),
            (&[100_000; 2], 3, 1, &[0, 0]),
            (&[100_000; 2], 64, 32, &[0, 0]),
            (&[100_000; 2], 0, 0, &[0, 0]),
        ] {
            let known = |speed: &u32| Some(*speed).filter(|speed| *speed > 0);
            let speeds: Vec<Option<u32>> = speeds.iter().map(known).collect();
            let each = connections(BulkChoice::Auto, &speeds, cores, here);
            assert_eq!(each, expected, "{speeds:?} {cores} {here}");
        }
        for (asked, had) in [(0, 0), (1, 1), (6, 6), (200, MAX_CONNECTIONS)] {
            let each = connections(BulkChoice::Each(asked), &[None, Some(10_000)], 2, 2);
            assert_eq!(each, [had; 2]);
        }
    }
}
