//! Random operations under random misbehaviour.

use engine::ids::{Pe, RailId};
use sim_fabric::Script;
use test_support::seeds::for_seeds;

use super::job::{Job, Random, Shape, random_lonely, random_rates, random_spread};

fn random_shape(random: &mut Random) -> Shape {
    let rails = 1 + random.below(4) as u8;
    Shape {
        n_pes: 2 + random.below(3) as u32,
        rails,
        lonely: random_lonely(random, rails),
        depth: [1, 1, 2, 3, 16][random.below(5)],
        max_segment: [8, 64, 1000, 1 << 20][random.below(4)],
        needs_desc: random.below(2) == 0,
        fast: random.below(4) != 0,
        heap: 1 << 14,
        spread: random_spread(random),
        ..Shape::default()
    }
}

fn random_script(random: &mut Random) -> Script {
    Script {
        again_percent: [0, 0, 20, 90][random.below(4)],
        delay: [(1, 1), (1_000, 100_000), (1, 10_000_000)][random.below(3)],
        slow_rails: if random.below(3) == 0 { vec![(RailId(0), 50)] } else { Vec::new() },
        rates: random_rates(random),
        shared_queue: random.below(2) == 0,
        connecting: [(0, 0), (1, 5_000_000)][random.below(2)],
        ..Script::default()
    }
}

#[test]
fn every_byte_arrives_under_reordering_and_lack_of_room() {
    for_seeds("every_byte_arrives_under_reordering_and_lack_of_room", &[], 400, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 1);
        let shape = random_shape(&mut random);
        let n = shape.n_pes as usize;
        let mut job = Job::new(seed, &shape, random_script(&mut random));
        let pattern = |pe: usize, at: usize| (pe * 97 + at * 31 + (at >> 8) * 7 + 1) as u8;
        for pe in 0..n {
            let bytes: Vec<u8> = (0..shape.heap).map(|at| pattern(pe, at)).collect();
            job.fill_scratch(pe as u32, &bytes);
        }
        // Each sender owns a part of every heap, and fills pieces of it in any order.
        let part = shape.heap / n;
        let mut expected: Vec<Vec<u8>> = vec![vec![0; shape.heap]; n];
        for _ in 0..60 {
            let (from, to) = (random.below(n), random.below(n));
            let at = from * part + random.below(part);
            let len = random.below((from + 1) * part - at + 1).min(1 + random.below(2000));
            if len > 0 && len <= 8 && random.below(2) == 0 {
                let value = u64::from_le_bytes(std::array::from_fn(|i| {
                    if i < len { pattern(from, at + i) } else { 0xee }
                }));
                job.put_value(from as u32, to as u32, at, value, len).unwrap();
            } else {
                job.put(from as u32, to as u32, at, len).unwrap();
            }
            for (byte, expected) in expected[to].iter_mut().enumerate().skip(at).take(len) {
                *expected = pattern(from, byte);
            }
            if random.below(10) == 0 {
                job.quiet(from as u32, to as u32).unwrap();
                let mine = &expected[to][from * part..(from + 1) * part];
                assert_eq!(job.heap(to as u32, from * part, part), mine, "quiet means visible");
            }
        }
        for from in 0..n as u32 {
            for to in 0..n as u32 {
                job.quiet(from, to).unwrap();
            }
        }
        assert_eq!(job.fabric.in_flight(), 0);
        for (pe, expected) in expected.iter().enumerate() {
            assert_eq!(&job.heap(pe as u32, 0, shape.heap), expected, "heap of PE {pe}");
        }
        // Read it all back.
        for from in 0..n as u32 {
            let to = (from + 1) % n as u32;
            job.get(from, to, 0, shape.heap).unwrap();
            job.quiet(from, to).unwrap();
            let scratch = job.members[from as usize].scratch;
            let read = job.fabric.load(Pe(from), scratch, shape.heap);
            assert_eq!(read, expected[to as usize]);
        }
    });
}

#[test]
fn fences_keep_their_order() {
    for_seeds("fences_keep_their_order", &[], 400, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 7);
        let shape = random_shape(&mut random);
        let mut job = Job::new(seed, &shape, random_script(&mut random));
        // Each write goes to an address of its own; which epoch an address belongs to is known.
        let n = shape.n_pes;
        let mut epochs = vec![Vec::new(); n as usize];
        let mut epoch = vec![0; n as usize];
        for at in 0..80 {
            let to = 1 + random.below(n as usize - 1) as u32;
            match random.below(8) {
                0 | 1 => {
                    job.fence(0, to);
                    epoch[to as usize] += 1;
                }
                2 => job.get(0, to, at * 8, 8).unwrap(),
                _ => {
                    job.put_value(0, to, at * 8, 1, 8).unwrap();
                    epochs[to as usize].push((at as u64 * 8, epoch[to as usize]));
                }
            }
        }
        for to in 0..n {
            job.quiet(0, to).unwrap();
        }
        let deliveries = job.fabric.deliveries();
        for to in 1..n {
            let seen: Vec<usize> = deliveries
                .iter()
                .filter(|delivery| delivery.to == Pe(to))
                .filter_map(|delivery| {
                    epochs[to as usize]
                        .iter()
                        .find(|(at, _)| *at == delivery.remote && delivery.len == 8)
                        .filter(|_| is_write(delivery))
                        .map(|(_, epoch)| *epoch)
                })
                .collect();
            assert_eq!(seen.len(), epochs[to as usize].len());
            assert!(seen.is_sorted(), "PE {to}: epochs in order of delivery: {seen:?}");
        }
    });
}

fn is_write(delivery: &sim_fabric::Delivery) -> bool {
    use engine::port::Direction;
    delivery.direction == Direction::Write
}
