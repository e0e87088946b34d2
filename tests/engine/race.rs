//! Races of random programs: one for each PE, as threads that the fake gives the baton by a seed;
//! and what shapes and scripts they are run with.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::prelude::*;

struct Over<'a>(&'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a program for each PE. A PE whose program has ended makes progress until all have.
pub(crate) fn race<R: Send>(
    job: Job,
    seed: u64,
    program: impl Fn(u32, &mut Member, &Targets) -> R + Sync,
) -> (FakeFabric, Vec<(Member, R)>) {
    let Job { fabric, members, targets, heap, .. } = job;
    let left = AtomicUsize::new(members.len());
    let runners = members.into_iter().enumerate().map(|(pe, mut member)| {
        let (targets, fabric, left, program) = (&targets, &fabric, &left, &program);
        let run = move || {
            // Also when it panics, or the others would wait for it for ever.
            let over = Over(left);
            let told = program(pe as u32, &mut member, targets);
            drop(over);
            while left.load(Ordering::SeqCst) > 0 {
                let _ = member.lane.progress();
                fabric.step();
            }
            (member, told)
        };
        Box::new(run) as Box<dyn FnOnce() -> (Member, R) + Send + '_>
    });
    let members = fabric.race(seed, runners.collect()).into_iter().map(|result| match result {
        Ok(member) => member,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    let members: Vec<(Member, R)> = members.collect();
    members.iter().for_each(|(member, _)| member.check_canaries(&fabric, heap));
    (fabric, members)
}

/// Draws where words are, for programs whose words have places of their own: half of the time in
/// the heaps, beside the data that they tell of; else each PE's in a region of any kind.
pub(crate) fn random_words(random: &mut Random) -> u32 {
    [0, random.below(1 << 8) as u32][random.below(2)]
}

fn random_spread(random: &mut Random) -> Spread {
    let from = [9, 64, 200][random.below(3)];
    match random.below(4) {
        0 => Spread::ROUND_ROBIN,
        1 => Spread { balanced_from: from, ..Spread::ROUND_ROBIN },
        _ => Spread {
            balanced_from: from,
            striped_from: [from, 300][random.below(2)],
            segment: [16, 100, 1000, 1 << 20][random.below(4)],
        },
    }
}

pub(crate) fn random_shape(random: &mut Random) -> Shape {
    use SignalChoice::{Auto, Chained, Counted, Eager};
    let rails = 1 + random.below(4) as u8;
    // Lonely rails: often none, never all.
    let leads = 1_u32 << random.below(rails);
    let lonely = random.below(1 << rails) as u32 & !leads;
    Shape {
        n_pes: 2 + random.below(3) as u32,
        rails,
        lonely: [0, lonely][random.below(2)],
        depth: [1, 1, 2, 3, 16][random.below(5)],
        max_segment: [64, 1000, 1 << 20][random.below(3)],
        needs_desc: random.below(2) == 0,
        fast: random.below(4) != 0,
        heap: 1 << 17,
        signals: [Auto, Chained, Auto, Eager, Counted, Counted][random.below(6)],
        // One, so that every put has the same tag; or all.
        counted: [1, 2, TAGS][random.below(3)],
        immediate_data: random.below(8) != 0,
        immediate_bytes: [4, 8][random.below(2)],
        staged: [0, 0, u32::MAX, random.below(1 << 8) as u32][random.below(4)],
        by_fabric: [0, random.below(1 << 8) as u32][random.below(2)],
        bounce: ([64, 100, 1024, 1 << 16][random.below(4)], 1 + random.below(3) as u16, 1),
        shared: [0, u32::MAX, random.below(16) as u32][random.below(3)],
        spread: random_spread(random),
        longest_message: [MAX_MESSAGE, MAX_MESSAGE, 300, MAX_LONG_MESSAGE][random.below(4)],
        late: random.below(2) == 0,
        ..PLAIN
    }
}

pub(crate) fn random_script(random: &mut Random) -> Script {
    let rates = (0..4).map(|rail| (RailId(rail), [1, 10, 10, 100][random.below(4)])).collect();
    Script {
        again_percent: [0, 0, 20, 90][random.below(4)],
        delay: [(1, 1), (1_000, 100_000), (1, 10_000_000)][random.below(3)],
        slow_rails: if random.below(3) == 0 { vec![(RailId(0), 50)] } else { Vec::new() },
        rates: if random.below(2) == 0 { rates } else { Vec::new() },
        duplicate_percent: [0, 0, 50][random.below(3)],
        shared_queue: random.below(2) == 0,
        connecting: [(0, 0), (0, 0), (1, 5_000_000)][random.below(3)],
        is_virtual: random.below(2) == 0,
        takes_lists: random.below(2) == 0,
    }
}
