//! Short puts to staged memory, whose bytes come with the message that tells of them.

use engine::port::Direction;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::wire::staging::MAX_PAYLOAD;
use sim_fabric::Script;

use super::{ALL, MAX_BROUGHT as MOST, fill, pattern};
use crate::job::{Job, Shape};

/// PE 1's heap alone.
const FAR: u32 = 0b0100;

fn shape(staged: u32) -> Shape {
    let longest_message = MAX_LONG_MESSAGE;
    let bounce = (8192, 4, 4);
    Shape { staged, bounce, longest_message, rails: 1, ..Shape::default() }
}

/// How many reads PE 1 makes for puts of this length, one behind the other, of which no byte is
/// lost.
fn reads(shape: &Shape, len: usize, puts: usize) -> usize {
    let mut job = Job::new(4, shape, Script::default());
    fill(&job, 2);
    for number in 0..puts {
        job.put(0, 1, number * len, len).unwrap();
    }
    job.until_quiet(0, 1);
    let expected: Vec<u8> = (0..puts * len).map(|at| pattern(0, at)).collect();
    assert_eq!(job.heap(1, 0, puts * len), expected);
    assert_eq!(job.heap(1, puts * len, 64), [0; 64], "and no byte more");
    let deliveries = job.fabric.deliveries();
    assert!(deliveries.iter().all(|delivery| delivery.direction == Direction::Read));
    deliveries.len()
}

#[test]
fn short_puts_bring_their_bytes() {
    for staged in [ALL, FAR] {
        for len in [MAX_PAYLOAD + 1, 1000, MOST - 1, MOST] {
            assert_eq!(reads(&shape(staged), len, 1), 0, "{len} {staged:x}");
        }
        assert_eq!(reads(&shape(staged), MOST + 1, 1), 1, "{staged:x}");
        let short = Shape { longest_message: MAX_MESSAGE, ..shape(staged) };
        assert_eq!(reads(&short, MAX_PAYLOAD + 1, 1), 1, "{staged:x}");
    }
}

#[test]
fn fabric_reads_device_bytes() {
    // The scratch memory of PE 0 is of both kinds.
    let shape = Shape { by_fabric: 0b0010, ..shape(FAR | 0b0010) };
    assert_eq!(reads(&shape, 1000, 1), 1);
}

/// A target whose bounce buffers are all in use lets bytes go that it was brought, and reads them
/// when it has one.
#[test]
fn unbuffered_bytes_are_read_later() {
    let narrow = Shape { bounce: (8192, 4, 1), ..shape(ALL) };
    let later = reads(&narrow, 1000, 8);
    assert!((1..8).contains(&later), "{later} of 8 were read");
    // Those that wait go together, and bring nothing.
    assert_eq!(reads(&Shape { bounce: (8192, 8, 16), ..shape(ALL) }, 1000, 2), 1);
}
