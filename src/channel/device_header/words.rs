//! Words that kernels wait for are compared as what they are.

use channel_producer::{test_f32, test_f64, test_i32};

use super::*;
use crate::channel::ring::State;

/// `NLF_CMP_*` of the device header, from 0 on, and what it is to be.
fn comparisons<T: PartialOrd>(word: T, value: T) -> [bool; 6] {
    [word == value, word != value, word > value, word >= value, word < value, word <= value]
}

fn all<T: Copy + PartialOrd + std::fmt::Debug>(
    words: &[T],
    test: extern "C" fn(&T, u32, T) -> bool,
) {
    for word in words {
        for value in words {
            for (comparison, expected) in (0..).zip(comparisons(*word, *value)) {
                let is = test(word, comparison, *value);
                assert_eq!(is, expected, "{word:?}, comparison {comparison}, {value:?}");
            }
            assert!(!test(word, 6, *value), "no such comparison");
        }
    }
}

#[test]
fn numbers_compare_by_type() {
    all(&[0.0, -0.0, 1.0, -1.0, 1.5, 1e300, -1e-300, f64::INFINITY, f64::NAN, f64::MIN], test_f64);
    all(&[0.0_f32, -0.0, 1.0, -1.0, 0.25, 1e30, f32::NEG_INFINITY, f32::NAN, f32::MAX], test_f32);
    all(&[0, 1, -1, i32::MIN, i32::MAX], test_i32);
}

#[test]
fn waits_end_with_the_number() {
    let mut bed = Bed::new(1, 6, 0);
    // The proxy has ended, so that a wait for what is not there ends as well.
    bed.rings[0].publish_state(State::Stopped);
    let producer = producer(&bed.shared);
    let stopped = c::NLF_ERROR_STOPPED as i32;
    for (word, value, comparison, status) in [
        (1.5, 1.5, 0, 0),
        (-2.0, -1.0, 4, 0),
        (1.5, 1.25, 2, 0),
        (-1.0, 0.0, 2, stopped),
        (f64::NAN, f64::NAN, 0, stopped),
    ] {
        let waited = producer.wait_until_f64(&word, comparison, value);
        assert_eq!(waited, status, "{word} {comparison} {value}");
        let waited = producer.wait_until_f32(&(word as f32), comparison, value as f32);
        assert_eq!(waited, status, "{word} {comparison} {value}, four bytes");
    }
}
