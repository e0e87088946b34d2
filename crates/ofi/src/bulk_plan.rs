//! How many connections for bulk each rail gets, each with a thread, where the settings leave it to
//! the machine.

use crate::data_path::bulk::MOST;
use crate::discovery::link::Link;
use crate::options::BulkChoice;

/// What one thread moves, in Mbit/s: 3 to 6 GB/s over loopback.
const PER_THREAD: u32 = 25_000;

/// Most for a rail, unless more are asked for.
const PER_RAIL: usize = 4;

fn wanted(link: &Link) -> usize {
    link.speed.map_or(1, |speed| (speed.div_ceil(PER_THREAD) as usize).clamp(1, PER_RAIL))
}

/// Connections for each rail of a PE that has `cores`, shared with `here` PEs in all.
///
/// `auto` is one for each 25 Gbit/s of a link. Half of a PE's cores may be taken by their threads.
/// None at all where that leaves one for all rails, or where the links together are no faster than
/// one thread: the proxy thread is that one.
pub(crate) fn connections(
    choice: BulkChoice,
    links: &[Link],
    cores: usize,
    here: usize,
) -> Vec<usize> {
    let mut each: Vec<usize> = match choice {
        BulkChoice::Each(count) => return vec![usize::from(count).min(MOST); links.len()],
        BulkChoice::Auto => links.iter().map(wanted).collect(),
    };
    let speeds: Option<Vec<u32>> = links.iter().map(|link| link.speed).collect();
    let is_slow = speeds.is_some_and(|speeds| speeds.iter().sum::<u32>() <= PER_THREAD);
    let room = cores / here.max(1) / 2;
    while each.iter().sum::<usize>() > room {
        let most = each.iter().copied().max().unwrap_or(0);
        let Some(last) = each.iter().rposition(|count| *count == most) else { break };
        each[last] -= 1;
    }
    if is_slow || each.iter().sum::<usize>() < 2 {
        each.fill(0);
    }
    each
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(speeds: &[u32]) -> Vec<Link> {
        let link = |speed: &u32| Link { speed: (*speed > 0).then_some(*speed), device: None };
        speeds.iter().map(link).collect()
    }

    #[test]
    fn a_rail_gets_as_many_as_its_link_is_fast() {
        let auto = |speeds: &[u32], cores, here| {
            connections(BulkChoice::Auto, &links(speeds), cores, here)
        };
        assert_eq!(auto(&[100_000], 64, 2), [4]);
        assert_eq!(auto(&[400_000], 64, 2), [4], "no more unless asked for");
        assert_eq!(auto(&[50_000], 64, 2), [2]);
        assert_eq!(auto(&[25_000], 64, 2), [0], "the proxy thread is enough");
        assert_eq!(auto(&[10_000, 10_000], 64, 2), [0, 0], "together, too");
        assert_eq!(auto(&[15_000, 10_000], 64, 2), [0, 0], "just enough");
        assert_eq!(auto(&[15_000, 11_000], 64, 2), [1, 1], "not quite");
        assert_eq!(auto(&[25_000, 25_000], 64, 2), [1, 1]);
        assert_eq!(auto(&[0], 64, 2), [0], "of an unknown speed");
        assert_eq!(auto(&[0; 4], 16, 2), [1; 4]);
        assert_eq!(auto(&[100_000, 25_000], 64, 2), [4, 1]);
    }

    #[test]
    fn half_of_the_cores_are_left() {
        let auto = |speeds: &[u32], cores, here| {
            connections(BulkChoice::Auto, &links(speeds), cores, here)
        };
        assert_eq!(auto(&[0; 4], 8, 2), [1, 1, 0, 0]);
        assert_eq!(auto(&[100_000; 2], 32, 4), [2, 2]);
        assert_eq!(auto(&[100_000; 2], 12, 2), [2, 1]);
        for (cores, here) in [(2, 2), (2, 1), (3, 1), (0, 0), (64, 32)] {
            assert_eq!(auto(&[100_000; 2], cores, here), [0, 0], "{cores} for {here}");
        }
    }

    #[test]
    fn what_is_asked_for_is_had() {
        for asked in [0, 1, 3, 6] {
            let each = connections(BulkChoice::Each(asked), &links(&[0, 10_000]), 2, 2);
            assert_eq!(each, [usize::from(asked); 2]);
        }
        assert_eq!(connections(BulkChoice::Each(200), &links(&[0]), 2, 2), [MOST]);
    }
}
