//! Atomics under contention of all PEs, the target itself among them: exact for every operation,
//! width and kind of number.

use crate::{Amo, BoxError, Host, Job, SymAddr};
use nvshmem_abi::{Major, c};

use crate::traffic::with_host;

const ROUNDS: u64 = 40;

fn kinds(major: Major) -> Vec<(i32, bool)> {
    let mut kinds = vec![(4, false), (8, false), (2, false)];
    if major >= Major::V6 {
        kinds.extend([(4, true), (8, true)]);
    }
    kinds
}

fn number(value: u64, (bytes, float): (i32, bool)) -> u64 {
    match (float, bytes) {
        (true, 8) => (value as f64).to_bits(),
        (true, _) => u64::from((value as f32).to_bits()),
        (false, _) => value,
    }
}

pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let n = job.n_pes();
    with_host(job, |host| {
        for kind in kinds(job.layout().major()) {
            plain(host, n, kind)?;
            if kind.0 != 2 {
                fetches(host, n, kind)?;
                swaps(host, n, kind)?;
            }
        }
        Ok(())
    })
}

fn words(host: &Host<'_>, count: u64) -> Result<SymAddr, BoxError> {
    let words = host.alloc(count * 8, 8)?;
    host.local(words, count * 8)?.set(0)?;
    host.barrier()?;
    Ok(words)
}

fn amo(op: i32, kind: (i32, bool), value: u64) -> Amo {
    Amo { is_float: kind.1, ..Amo::new(op, kind.0, value) }
}

fn read(host: &Host<'_>, at: SymAddr, bytes: i32) -> Result<u64, BoxError> {
    let mut word = [0; 8];
    word[..bytes as usize].copy_from_slice(&host.local(at, bytes as u64)?.to_vec()?);
    Ok(u64::from_le_bytes(word))
}

fn expect(what: &str, kind: (i32, bool), found: u64, expected: u64) -> Result<(), BoxError> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what} of {} bytes, float {}: {found:#x}, not {expected:#x}", kind.0, kind.1)
        .into())
}

/// Operations that fetch nothing: what a word is at first, each PE's operand, how often it is used
/// on each PE's word, and what comes of all.
fn plain(host: &Host<'_>, n: u32, kind: (i32, bool)) -> Result<(), BoxError> {
    let (mine, all) = (1u64 << host.user().pe(), (1u64 << n) - 1);
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
                host.proxy().amo(pe, at(index), amo(*op, kind, *value))?;
            }
        }
    }
    host.barrier()?;
    for (index, (op, .., expected)) in (0..).zip(cases) {
        // The bytes beside a narrow word are not touched.
        expect(&format!("atomic {op}"), kind, read(host, at(index), 8)?, expected)?;
    }
    Ok(host.barrier()?)
}

fn fetch(host: &Host<'_>, pe: u32, at: SymAddr, into: SymAddr, op: Amo) -> Result<u64, BoxError> {
    let result = host.local(into, 16)?;
    let flag = result.part(8, 8)?;
    let next = flag.load_acquire()? + 1;
    host.proxy().amo(pe, at, Amo { fetch_to: Some(into), flag: next, ..op })?;
    host.wait_until(|| Ok(flag.load_acquire()? == next))?;
    // The flag comes after the value.
    Ok(result.part(0, 8)?.load_acquire()?)
}

fn fetches(host: &Host<'_>, n: u32, kind: (i32, bool)) -> Result<(), BoxError> {
    let at = words(host, 6)?;
    let into = host.alloc(16, 16)?;
    let gather = host.alloc(u64::from(n) * ROUNDS * 8, 8)?;
    let me = host.user().pe();
    host.local(into, 16)?.set(0)?;
    host.barrier()?;
    for round in 0..ROUNDS {
        let pe = (me + round as u32) % n;
        let op = if round % 2 == 0 || kind.1 {
            amo(c::NVT_AMO_FETCH_ADD, kind, number(1, kind))
        } else {
            amo(c::NVT_AMO_FETCH_INC, kind, 1)
        };
        // All take tickets from PE 0, and add to everybody.
        let ticket = fetch(host, 0, at, into, op)?;
        let place = gather.plus((u64::from(me) * ROUNDS + round) * 8);
        host.proxy().p(0, place, ticket, 8)?;
        fetch(host, pe, at.plus(8), into, amo(c::NVT_AMO_FETCH_ADD, kind, number(3, kind)))?;
    }
    if !kind.1 {
        let bit = 1u64 << me;
        for (place, op) in [(16, c::NVT_AMO_FETCH_OR), (24, c::NVT_AMO_FETCH_XOR)] {
            let before = fetch(host, 0, at.plus(place), into, amo(op, kind, bit))?;
            if before & bit != 0 {
                return Err(format!("PE {me} found its bit set before it set it").into());
            }
        }
        let before = fetch(host, 0, at.plus(16), into, amo(c::NVT_AMO_FETCH_AND, kind, !0))?;
        if before & bit == 0 {
            return Err(format!("PE {me} did not find its bit").into());
        }
    }
    host.barrier()?;
    let all = ROUNDS * u64::from(n);
    let seen = fetch(host, 0, at, into, amo(c::NVT_AMO_FETCH, kind, 0))?;
    expect("fetch", kind, seen, number(all, kind))?;
    if me == 0 {
        let mut tickets: Vec<u64> =
            (0..all).map(|at| read(host, gather.plus(at * 8), 8)).collect::<Result<_, _>>()?;
        tickets.sort_unstable();
        let mut expected: Vec<u64> = (0..all).map(|ticket| number(ticket, kind)).collect();
        expected.sort_unstable();
        if tickets != expected {
            return Err(format!("tickets of {} bytes are not each given once", kind.0).into());
        }
    }
    host.barrier()?;
    Ok(())
}

fn swaps(host: &Host<'_>, n: u32, kind: (i32, bool)) -> Result<(), BoxError> {
    let at = words(host, 2)?;
    let into = host.alloc(16, 16)?;
    let totals = host.alloc(8, 8)?;
    let me = host.user().pe();
    host.local(into, 16)?.set(0)?;
    host.local(totals, 8)?.set(0)?;
    host.barrier()?;
    // What all put in, less what all took out, is what is there in the end.
    let mut balance = 0u64;
    for round in 0..ROUNDS {
        let value = u64::from(me) * ROUNDS + round + 1;
        let old = fetch(host, 0, at, into, amo(c::NVT_AMO_SWAP, kind, value))?;
        balance = balance.wrapping_add(value).wrapping_sub(old);
        let mut seen = 0;
        loop {
            let op = Amo { compare: seen, ..amo(c::NVT_AMO_COMPARE_SWAP, kind, seen + 1) };
            let old = fetch(host, 0, at.plus(8), into, op)?;
            if old == seen {
                break;
            }
            seen = old;
        }
    }
    host.proxy().amo(0, totals, Amo::new(c::NVT_AMO_ADD, 8, balance))?;
    host.barrier()?;
    if me == 0 {
        expect("swap", kind, read(host, at, kind.0)?, read(host, totals, 8)?)?;
        expect("compare and swap", kind, read(host, at.plus(8), kind.0)?, ROUNDS * u64::from(n))?;
    }
    host.barrier()?;
    Ok(())
}
