//! Atomic operations and stores on memory of this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::port::LocalMemory;
use ofi::{OfiPort, Provider};
use test_support::random::pattern;

use crate::process::{open, options};

fn ports(count: usize) -> Vec<OfiPort> {
    let opens = (0..count.div_ceil(2)).map(|_| open(&options(Provider::Shm)));
    opens.flat_map(|opened| [opened.host, opened.proxy]).take(count).collect()
}

fn words(count: usize) -> Vec<u64> {
    pattern(8 * count, 11)
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        .collect()
}

fn integer(op: AtomicOp, width: Width, operand: u64) -> Atomic {
    Atomic { op, width, float: false, operand, compare: 0 }
}

/// Runs `work` on several threads at once, which have a port each to change one word with. What is
/// in the word at last, and what all have returned.
fn contended(
    ports: &mut [OfiPort],
    work: impl Fn(u64, &mut dyn FnMut(Atomic) -> u64) -> Vec<u64> + Sync,
) -> (u64, Vec<u64>) {
    let word = AtomicU64::new(0);
    let (addr, work) = (word.as_ptr() as usize, &work);
    let run = |(thread, port): (usize, &mut OfiPort)| {
        work(thread as u64, &mut |atomic| port.apply(addr, &atomic).expect("aligned"))
    };
    let returned = thread::scope(|scope| {
        let threads: Vec<_> =
            ports.iter_mut().enumerate().map(|each| scope.spawn(move || run(each))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    (word.load(Ordering::Relaxed), returned)
}

#[test]
fn operations_follow_the_table() {
    let mut port = ports(1).remove(0);
    let values = words(64);
    for op in AtomicOp::ALL {
        for width in Width::ALL {
            for float in [false, true] {
                for pair in values.windows(3) {
                    // The comparand matches every other time.
                    let compare = if pair[0] & 1 == 0 { pair[0] } else { pair[2] };
                    let atomic = Atomic { op, width, float, operand: pair[1], compare };
                    for place in 0..8 / width.bytes() {
                        let mut memory = [pair[2], pair[0], !pair[2]];
                        let shift = 8 * width.bytes() * place;
                        let before = pair[0] >> shift & width.mask();
                        let around = pair[0] & !(width.mask() << shift);
                        let addr = (&raw mut memory[1]) as usize + place * width.bytes();
                        let fetched = port.apply(addr, &atomic).expect("aligned");
                        // SAFETY: a valid reference; volatile because it was changed by address.
                        let after = unsafe { (&raw const memory).read_volatile() };
                        let expected = around | atomic.apply(before) << shift;
                        assert_eq!(fetched, before, "{atomic:?}");
                        assert_eq!(after, [pair[2], expected, !pair[2]], "{atomic:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn contended_words_change_exactly() {
    const ROUNDS: u64 = 2001;
    let mut ports = ports(4);
    for width in Width::ALL {
        // Every sum on the way is seen by exactly one; halves are exact up to 2048.
        for float in [false, true] {
            let one = Atomic { float, ..integer(AtomicOp::Inc, width, 1) };
            let one = Atomic { op: AtomicOp::FetchAdd, operand: one.apply(0), ..one };
            let (total, mut seen) =
                contended(&mut ports, |_, apply| (0..400).map(|_| apply(one)).collect());
            let mut sums = std::iter::successors(Some(0), |sum| Some(one.apply(*sum)));
            seen.sort_unstable();
            assert!(seen.into_iter().eq(sums.by_ref().take(1600)), "{one:?}");
            assert_eq!(Some(total), sums.next(), "{one:?}");
        }

        let mask = width.mask();
        for (set, clear, flip) in [
            (AtomicOp::Or, AtomicOp::And, AtomicOp::Xor),
            (AtomicOp::FetchOr, AtomicOp::FetchAnd, AtomicOp::FetchXor),
        ] {
            let (left, _) = contended(&mut ports, |thread, apply| {
                // Each thread owns some bits, and finds them as it left them.
                let own = 0x1111_1111_1111_1111 << thread & mask;
                let mut apply = |op, operand| apply(integer(op, width, operand)) & own;
                for _ in 0..ROUNDS {
                    assert_eq!(apply(set, own), 0);
                    assert_eq!(apply(AtomicOp::Fetch, 0), own);
                    assert_eq!(apply(clear, !own), own);
                    assert_eq!(apply(flip, own), 0);
                    assert_eq!(apply(flip, own), own);
                }
                assert_eq!(apply(flip, own), 0);
                Vec::new()
            });
            assert_eq!(left, mask, "{width:?}");
        }

        // Whatever is swapped in comes out once.
        for op in [AtomicOp::Set, AtomicOp::Signal, AtomicOp::SignalSet, AtomicOp::Swap] {
            let (last, mut out) = contended(&mut ports, |thread, apply| {
                let values = (1 + thread * ROUNDS..).take(ROUNDS as usize);
                values.map(|value| apply(integer(op, width, value))).collect()
            });
            out.push(last);
            out.sort_unstable();
            assert!(out.into_iter().eq(0..=4 * ROUNDS), "{op:?} {width:?}");
        }

        // A counter made of exchanges.
        let (count, _) = contended(&mut ports, |_, apply| {
            for _ in 0..ROUNDS {
                let mut expected = 0;
                loop {
                    let swap = integer(AtomicOp::CompareSwap, width, expected + 1);
                    let found = apply(Atomic { compare: expected, ..swap });
                    if found == expected {
                        break;
                    }
                    expected = found;
                }
            }
            Vec::new()
        });
        assert_eq!(count, 4 * ROUNDS);
    }
}

#[test]
fn flag_publishes_earlier_stores() {
    const ROUNDS: u64 = 20_000;
    let mut port = ports(1).remove(0);
    for with_signal in [false, true] {
        let payload: [AtomicU64; 4] = Default::default();
        let (flag, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while flag.load(Ordering::Acquire) != round {
                        thread::yield_now();
                    }
                    for word in &payload {
                        assert_eq!(word.load(Ordering::Relaxed), round);
                    }
                    seen.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                for word in &payload {
                    port.store(word.as_ptr() as usize, &round.to_le_bytes()).expect("store");
                }
                let addr = flag.as_ptr() as usize;
                if with_signal {
                    let set = integer(AtomicOp::SignalSet, Width::Eight, round);
                    assert_eq!(port.apply(addr, &set).expect("aligned"), round - 1);
                } else {
                    port.store_flag(addr, round).expect("aligned");
                }
                while seen.load(Ordering::Acquire) != round {
                    thread::yield_now();
                }
            }
        });
    }
}

#[test]
fn words_that_are_none_are_refused() {
    let mut port = ports(1).remove(0);
    let word = 0_u64;
    let addr = &raw const word as usize;
    for (addr, width) in [(addr + 1, Width::Two), (addr + 2, Width::Four), (addr + 4, Width::Eight)]
    {
        let error = port.apply(addr, &integer(AtomicOp::Inc, width, 0)).expect_err("misaligned");
        assert!(error.to_string().contains(&format!("{addr:#x}")), "{error}");
        assert!(port.apply(0, &integer(AtomicOp::Inc, width, 0)).is_err());
    }
    assert!(port.store_flag(addr + 4, 1).is_err());
    assert_eq!(word, 0);
}
