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

/// One in the encoding of a word, so that sums count.
fn one(width: Width, float: bool) -> u64 {
    match (float, width) {
        (false, _) => 1,
        (true, Width::Two) => 0x3c00,
        (true, Width::Four) => u64::from(1_f32.to_bits()),
        (true, Width::Eight) => 1_f64.to_bits(),
    }
}

fn number(word: u64, width: Width, float: bool) -> u64 {
    match (float, width) {
        (false, _) => word,
        // Halves up to 2048 are whole numbers with an exponent from 15 on.
        (true, Width::Two) => match word {
            0 => 0,
            word => ((word & 0x3ff) + 0x400) << (word >> 10) >> 25,
        },
        (true, Width::Four) => f32::from_bits(word as u32) as u64,
        (true, Width::Eight) => f64::from_bits(word) as u64,
    }
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
fn sums_are_exact_whoever_adds() {
    const ROUNDS: u64 = 400;
    let mut ports = ports(4);
    let adds = [AtomicOp::Inc, AtomicOp::Add, AtomicOp::SignalAdd];
    let fetching = [AtomicOp::FetchInc, AtomicOp::FetchAdd];
    for width in Width::ALL {
        for float in [false, true] {
            for op in adds.into_iter().chain(fetching) {
                let operand = one(width, float);
                let atomic = Atomic { op, width, float, operand, compare: 0 };
                let (total, mut seen) = contended(&mut ports, |_, apply| {
                    (0..ROUNDS).map(|_| number(apply(atomic), width, float)).collect()
                });
                assert_eq!(number(total, width, float), 4 * ROUNDS, "{atomic:?}");
                // Every sum on the way was seen by exactly one.
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..4 * ROUNDS), "{atomic:?}");
            }
        }
    }
}

#[test]
fn contended_bits_and_swaps_are_exact() {
    const ROUNDS: u64 = 2001;
    let mut ports = ports(4);
    for width in Width::ALL {
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
fn bytes_copy_at_any_address() {
    let mut port = ports(1).remove(0);
    for len in [0, 1, 7, 8, 200, 4096] {
        for offset in [0, 1, 3] {
            let memory = vec![0xee_u8; len + 8];
            let content = pattern(len, len + offset + 1);
            port.store(memory.as_ptr() as usize + offset, &content).expect("store");
            let mut out = vec![0; len + 8];
            port.load(memory.as_ptr() as usize, &mut out).expect("load");
            assert_eq!(out[offset..offset + len], content);
            let around = out[..offset].iter().chain(&out[offset + len..]);
            assert!(around.into_iter().all(|&byte| byte == 0xee));
        }
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
