//! Loopback reads: every rail, in the right order, whatever the fabric does.

use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::loopback::{Anchor, Loopback};
use engine::port::Direction;
use engine::wire::handle::HandleError;
use sim_fabric::{Delivery, Script};
use test_support::seeds::for_seeds;

use crate::job::{Job, Shape};
use crate::race::Random;

fn anchor(job: &Job, pe: u32) -> Anchor {
    let member = &job.members[pe as usize];
    Anchor { handle: member.handle, addr: member.base, landing: member.scratch }
}

fn rails_of(deliveries: &[Delivery], direction: Direction) -> Vec<u8> {
    let of = |delivery: &&Delivery| (delivery.from, delivery.direction) == (Pe(0), direction);
    let mut rails: Vec<u8> = deliveries.iter().filter(of).map(|delivery| delivery.rail.0).collect();
    rails.sort_unstable();
    rails
}

#[test]
fn rails_read_after_all_writes() {
    for_seeds("rails_read_after_all_writes", &[], 300, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 7);
        let shape = Shape {
            rails: 1 + random.below(4) as u8,
            depth: 1 + random.below(3) as u32,
            needs_desc: random.below(2) == 0,
            max_segment: [8, 4096][random.below(2)],
            ..Shape::default()
        };
        let script = Script {
            again_percent: random.below(60) as u32,
            delay: (1, 1 + random.below(5000) as u64),
            ..Script::default()
        };
        let mut job = Job::new(seed, &shape, script);
        job.fabric.store(Pe(0), job.members[0].base, &[0xff; 64]);
        let anchor = anchor(&job, 0);
        // Beside other traffic, also behind a fence towards this process itself.
        job.put_value(0, 0, 128, 5).unwrap();
        job.fence(0, 0);
        job.put_value(0, 0, 136, 6).unwrap();
        job.put_value(0, 1, 0, 7).unwrap();
        job.lane(0).loopback(&anchor, Loopback::WriteRead).unwrap();

        let front = |delivery: &Delivery| (anchor.addr..anchor.addr + 64).contains(&delivery.addr);
        let all: Vec<Delivery> = job.fabric.deliveries().into_iter().filter(front).collect();
        let every: Vec<u8> = (0..shape.rails).collect();
        assert_eq!(all.len(), 2 * every.len(), "seed {seed}");
        let (first, then) = all.split_at(every.len());
        assert_eq!(rails_of(first, Direction::Write), every, "seed {seed}");
        assert_eq!(rails_of(then, Direction::Read), every, "seed {seed}");
        // Each rail reads a word of its own.
        let words: Vec<u8> = (1..=8 * shape.rails).collect();
        job.fabric.store(Pe(0), anchor.addr, &words);
        job.lane(0).loopback(&anchor, Loopback::Read).unwrap();
        assert_eq!(job.fabric.load(Pe(0), anchor.landing, words.len()), words, "seed {seed}");

        job.quiet(0, 0).unwrap();
        job.quiet(0, 1).unwrap();
        assert_eq!([job.word(0, 128), job.word(0, 136)], [5, 6]);
    });
}

#[test]
fn failed_loopback_is_an_error() {
    let mut job = Job::new(6, &Shape::default(), Script::default());
    let anchor = anchor(&job, 0);
    job.fabric.fail_next(1);
    let failed = job.lane(0).loopback(&anchor, Loopback::Read).unwrap_err();
    let text = failed.to_string();
    for part in ["get of 8 bytes", "PE 0", "failed by the script"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!(job.lane(0).loopback(&anchor, Loopback::Read).unwrap_err(), failed);
    // Peers are not touched by it.
    job.put_value(0, 1, 0, 1).unwrap();
    job.quiet(0, 1).unwrap();
}

#[test]
fn impossible_loopbacks_are_errors() {
    let mut job = Job::new(7, &Shape::default(), Script::default());
    let mut short = anchor(&job, 0);
    short.addr += job.heap - Anchor::bytes_for(1);
    let failed = job.lane(0).loopback(&short, Loopback::Read).unwrap_err();
    assert!(matches!(failed, EngineError::Handle(HandleError::Outside { .. })), "{failed}");

    let mut job = Job::new(8, &Shape::default(), Script::default());
    let anchor = anchor(&job, 0);
    let bare = Anchor { landing: job.fabric.alloc(Pe(0), 64), ..anchor.clone() };
    let failed = job.lane(0).loopback(&bare, Loopback::Read);
    assert_eq!(failed, Err(HandleError::Unregistered.into()));
    job.fabric.fail_rail(Pe(0), RailId(1));
    let failed = job.lane(0).loopback(&anchor, Loopback::WriteRead).unwrap_err();
    assert!(failed.to_string().contains("fake1"), "{failed}");
}
