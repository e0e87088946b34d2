//! Atomics under contention of all PEs, the target itself among them: exact for each operation that
//! is listed below, with its widths and kinds of numbers.

use crate::{Amo, BoxError, Host, Job, SymAddr};
use nvshmem_abi::{Major, c};

use crate::traffic::with_host;

const ROUNDS: u64 = 40;

/// Bytes of a number, and whether it is a floating point number.
type Kind = (i32, bool);

fn number(value: u64, (bytes, float): Kind) -> u64 {
    match (float, bytes) {
        (true, 8) => (value as f64).to_bits(),
        (true, _) => u64::from((value as f32).to_bits()),
        (false, _) => value,
    }
}

pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let n = job.n_pes();
    let mut kinds = vec![(4, false), (8, false), (2, false)];
    if job.settings.layout.major() >= Major::V6 {
        kinds.extend([(4, true), (8, true)]);
    }
    with_host(job, |host| {
        for kind in kinds {
            plain(host, n, kind)?;
            if kind.0 != 2 {
                fetches(host, n, kind)?;
            }
            if kind.0 != 2 && !kind.1 {
                bits(host, kind)?;
            }
        }
        Ok(())
    })
}

fn words(host: &Host<'_>, count: u64) -> Result<SymAddr, BoxError> {
    let words = host.alloc(count * 8, 16)?;
    host.local(words, count * 8)?.set(0)?;
    host.barrier()?;
    Ok(words)
}

fn amo(op: i32, kind: Kind, value: u64) -> Amo {
    Amo { is_float: kind.1, ..Amo::new(op, kind.0, value) }
}

/// Operations that fetch nothing: what a word is at first, each PE's operand, how often it is used
/// on each PE's word, and what comes of all.
fn plain(host: &Host<'_>, n: u32, kind: Kind) -> Result<(), BoxError> {
    let (mine, all) = (1u64 << host.user.pe(), (1u64 << n) - 1);
    let mask = u64::MAX >> (64 - 8 * kind.0);
    let sum = |each: u64| number(each * ROUNDS * u64::from(n), kind);
    let mut cases = vec![
        (c::NVT_AMO_ADD, 0, number(3, kind), ROUNDS, sum(3)),
        (c::NVT_AMO_INC, 0, 0, ROUNDS, sum(1)),
        (c::NVT_AMO_SIGNAL_ADD, 0, number(2, kind), ROUNDS, sum(2)),
    ];
    if !kind.1 {
        cases.extend([
            (c::NVT_AMO_OR, 0, mine, 1, all),
            (c::NVT_AMO_AND, mask, mask & !mine, 1, mask & !all),
            (c::NVT_AMO_XOR, 0, mine, 3, all),
            (c::NVT_AMO_SET, 0, 7, 1, 7),
        ]);
    }
    let words = words(host, cases.len() as u64)?;
    let at = |index: u64| words.plus(8 * index);
    for (index, (_, first, ..)) in (0..).zip(&cases) {
        host.local(at(index), 8)?.store_release(*first)?;
    }
    host.barrier()?;
    for (pe, round) in (0..ROUNDS).flat_map(|round| (0..n).map(move |pe| (pe, round))) {
        for (index, (op, _, value, times, _)) in (0..).zip(&cases) {
            if round < *times {
                host.proxy.amo(pe, at(index), amo(*op, kind, *value))?;
            }
        }
    }
    host.barrier()?;
    for (index, (op, .., expected)) in (0..).zip(cases) {
        // The bytes beside a narrow word are not touched.
        let found = host.local(at(index), 8)?.load_acquire()?;
        if found != expected {
            return Err(format!("atomic {op} of {kind:?}: {found:#x}, not {expected:#x}").into());
        }
    }
    Ok(host.barrier()?)
}

/// Fetches from a word of a PE; the flag comes after the value, into the word behind it.
fn fetch(host: &Host<'_>, pe: u32, at: SymAddr, into: SymAddr, op: Amo) -> Result<u64, BoxError> {
    let result = host.local(into, 16)?;
    let flag = result.part(8, 8)?;
    let next = flag.load_acquire()? + 1;
    host.proxy.amo(pe, at, Amo { fetch_to: Some(into), flag: next, ..op })?;
    host.wait_until(|| Ok(flag.load_acquire()? == next))?;
    Ok(result.part(0, 8)?.load_acquire()?)
}

/// Each operation changes a word of one PE, from 0 on, and fetches what was there: all values are
/// different, and each that the word has had is fetched by one PE.
fn fetches(host: &Host<'_>, n: u32, kind: Kind) -> Result<(), BoxError> {
    const OPS: [i32; 4] = [
        c::NVT_AMO_FETCH_ADD,
        c::NVT_AMO_SWAP,
        c::NVT_AMO_COMPARE_SWAP,
        // Not of floating point numbers.
        c::NVT_AMO_FETCH_INC,
    ];
    let (me, all) = (host.user.pe(), ROUNDS * u64::from(n));
    let (into, at, gather) = (words(host, 2)?, words(host, 4)?, words(host, 4 * all)?);
    let ops = || (0..).zip(OPS).take(if kind.1 { 3 } else { 4 });
    for (index, op) in ops() {
        let (pe, word) = (index as u32 % n, at.plus(8 * index));
        for number_of_mine in (u64::from(me) * ROUNDS..).take(ROUNDS as usize) {
            let old = match op {
                c::NVT_AMO_SWAP => fetch(host, pe, word, into, amo(op, kind, number_of_mine + 1))?,
                c::NVT_AMO_COMPARE_SWAP => {
                    let mut seen = 0;
                    loop {
                        let swap = Amo { compare: seen, ..amo(op, kind, seen + 1) };
                        let old = fetch(host, pe, word, into, swap)?;
                        if old == seen {
                            break old;
                        }
                        seen = old;
                    }
                }
                _ => fetch(host, pe, word, into, amo(op, kind, number(1, kind)))?,
            };
            host.proxy.p(pe, gather.plus(8 * (index * all + number_of_mine)), old, 8)?;
        }
    }
    host.barrier()?;
    for (index, op) in ops().filter(|(index, _)| *index as u32 % n == me) {
        // The last value is still there.
        let last = amo(c::NVT_AMO_FETCH, kind, 0);
        let mut found = vec![fetch(host, me, at.plus(8 * index), into, last)?];
        for number in 0..all {
            found.push(host.local(gather.plus(8 * (index * all + number)), 8)?.load_acquire()?);
        }
        let is_sum = op == c::NVT_AMO_FETCH_ADD;
        let value = |value| if is_sum { number(value, kind) } else { value };
        let mut expected: Vec<u64> = (0..=all).map(value).collect();
        found.sort_unstable();
        expected.sort_unstable();
        if found != expected {
            return Err(format!("atomic {op} of {kind:?} has fetched {found:x?}").into());
        }
    }
    Ok(host.barrier()?)
}

/// Each PE sets a bit of its own on PE 0, and finds it as it was before.
fn bits(host: &Host<'_>, kind: Kind) -> Result<(), BoxError> {
    let (into, word, bit) = (words(host, 2)?, words(host, 2)?, 1u64 << host.user.pe());
    for (at, op, value, before) in [
        (0, c::NVT_AMO_FETCH_OR, bit, 0),
        (8, c::NVT_AMO_FETCH_XOR, bit, 0),
        (0, c::NVT_AMO_FETCH_AND, !0, bit),
    ] {
        let found = fetch(host, 0, word.plus(at), into, amo(op, kind, value))? & bit;
        if found != before {
            return Err(format!("atomic {op} of {kind:?} finds {found:#x}, not {before:#x}").into());
        }
    }
    Ok(host.barrier()?)
}
