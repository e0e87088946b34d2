//! A moment of fuzzing, with nothing but what every build has: the inputs that are kept, and inputs
//! that these become by random changes. `make fuzz` looks further.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nvshmem_fuzz::{LONGEST, TARGETS, Target, from_hex, hex};
use test_support::random::Random;
use test_support::seeds::for_seeds;

fn run(target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        eprintln!("{} fails with this line in its corpus:\n{}", target.name, hex(input));
        resume_unwind(panic);
    }
}

/// An input with some bytes changed, taken out, put in, or taken from another one.
fn change(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 => input.insert(at, random.below(256) as u8),
            1 => input.truncate(at),
            2 if at < input.len() => drop(input.remove(at)),
            3 if !other.is_empty() => {
                let (first, end) = (random.below(other.len()), 1 + random.below(other.len()));
                let taken = other.get(first..end.max(first)).unwrap_or_default();
                input.splice(at..(at + taken.len()).min(input.len()), taken.iter().copied());
            }
            4 if at < input.len() => input[at] ^= 1 << random.below(8),
            _ if at < input.len() => {
                input[at] = [0, 1, 2, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(7)];
            }
            _ => {}
        }
    }
    input.truncate(LONGEST);
}

#[test]
fn targets_survive_changed_inputs() {
    for target in TARGETS {
        let inputs = target.inputs();
        assert!(!inputs.is_empty(), "{} has something to begin with", target.name);
        inputs.iter().for_each(|input| run(target, input));
        for_seeds(target.name, &[], 40, |seed| {
            let mut random = Random::new(seed);
            for _ in 0..target.short {
                let mut input = inputs[random.below(inputs.len())].clone();
                let other = &inputs[random.below(inputs.len())];
                change(&mut random, &mut input, other);
                run(target, &input);
            }
        });
    }
}

#[test]
fn corpus_lines_are_hexadecimal() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
    assert_eq!((from_hex("0"), from_hex("0g")), (None, None));
    assert!(TARGETS.iter().all(|target| Target::named(target.name).is_some()));
}
