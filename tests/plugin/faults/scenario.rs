//! The traffic under faults: rounds in which each PE writes to each other, with signals, behind
//! which everything is compared.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Host, Job, SymAddr};

use super::{CANARIES, PES, Phase, QUIETED, STRUCK, WRONG};

/// Rounds of traffic, few enough for a byte.
const ROUNDS: u64 = 120;
const SMALL: u64 = 3000 / 8 * 8;
const LARGE: u64 = 6 << 20;
const CANARY: u64 = 64;
const SONG: u8 = 0xc5;

struct Places {
    /// From each sender, what a round has brought, and the word that tells of it.
    small: Vec<SymAddr>,
    signals: Vec<SymAddr>,
    large: Vec<SymAddr>,
    outbox: SymAddr,
    outgoing: SymAddr,
    canaries: Vec<SymAddr>,
}

impl Places {
    fn new(host: &Host<'_>) -> Result<Self, BoxError> {
        let mut canaries = Vec::new();
        let mut guarded = |len: u64| -> Result<SymAddr, BoxError> {
            let at = host.alloc(len + 2 * CANARY, 64)?;
            for canary in [at, at.plus(CANARY + len)] {
                host.local(canary, CANARY)?.set(SONG)?;
                canaries.push(canary);
            }
            Ok(at.plus(CANARY))
        };
        let mut each = |len| (0..PES).map(|_| guarded(len)).collect::<Result<Vec<_>, _>>();
        let (small, signals, large) = (each(SMALL)?, each(64)?, each(LARGE)?);
        let (outbox, outgoing) = (guarded(SMALL)?, guarded(LARGE)?);
        Ok(Self { small, signals, large, outbox, outgoing, canaries })
    }
}

fn words(sender: u32, round: u64, len: u64) -> Vec<u8> {
    let word = |index| index << 32 | u64::from(sender) << 16 | (round + 1);
    (0..len / 8).flat_map(|index| u64::to_le_bytes(word(index))).collect()
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let mut places = None;
    match work(job, &host, &mut places) {
        Ok(()) => {
            check(job, &host, places.as_ref(), true)?;
            job.report("phase", Phase::Finalize.name())?;
            host.finalize()?;
            Ok(())
        }
        Err(error) => {
            check(job, &host, places.as_ref(), false)?;
            if let Err(why) = host.tear_down() {
                job.report("not torn down", why)?;
            }
            Err(error)
        }
    }
}

fn work(job: &Job, host: &Host<'_>, kept: &mut Option<Places>) -> Result<(), BoxError> {
    let me = job.pe;
    let begins = 5 + job.param::<u64>("seed")? % (ROUNDS / 2);
    job.report("phase", Phase::Registration.name())?;
    let places = &*kept.insert(Places::new(host)?);
    host.barrier()?;
    let others = || (0..PES).filter(|pe| *pe != me);
    for round in 0..ROUNDS {
        if round == begins {
            reach(job, Phase::Traffic)?;
        }
        host.local(places.outbox, SMALL)?.write(&words(me, round, SMALL))?;
        for pe in others() {
            let (to, signal) = (places.small[me as usize], places.signals[me as usize]);
            let amo = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round + 1);
            host.proxy.put_signal(pe, to, places.outbox, SMALL, signal, amo)?;
            host.proxy.amo(pe, signal.plus(8), Amo::new(c::NVT_AMO_ADD, 8, 1))?;
            host.user.put_nbi(pe, signal.plus(16), places.outbox, 8)?;
        }
        host.proxy.quiet()?;
        host.user.quiet()?;
        // Lasts until the fault has hit and ended.
        thread::sleep(Duration::from_millis(2));
    }
    host.local(places.outgoing, LARGE)?.write(&words(me, ROUNDS, LARGE))?;
    reach(job, Phase::Quiet)?;
    for pe in others() {
        host.proxy.put(pe, places.large[me as usize], places.outgoing, LARGE)?;
    }
    host.proxy.quiet()?;
    host.user.quiet()?;
    job.report(QUIETED, true)?;
    host.barrier()?;
    Ok(())
}

fn reach(job: &Job, phase: Phase) -> Result<(), BoxError> {
    job.report("phase", phase.name())?;
    if job.param::<String>("gated")? == phase.name() {
        let gate = PathBuf::from(job.param::<String>(STRUCK)?);
        while !gate.exists() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Counts bytes that nobody has sent, and canaries that are gone. Unless the work is done, all that
/// has been sent may be there in part.
fn check(job: &Job, host: &Host<'_>, places: Option<&Places>, done: bool) -> Result<(), BoxError> {
    let (mut wrong, mut gone) = (0, 0);
    for at in places.iter().flat_map(|places| &places.canaries) {
        let bytes = host.local(*at, CANARY)?.to_vec()?;
        gone += u64::from(bytes.iter().any(|byte| *byte != SONG));
    }
    for (sender, places) in (0..PES).flat_map(|pe| places.map(|places| (pe, places))) {
        if sender == job.pe {
            continue;
        }
        let word =
            |at: SymAddr| -> Result<u64, BoxError> { Ok(host.local(at, 8)?.load_acquire()?) };
        let signals = places.signals[sender as usize];
        let (signal, sum) = (word(signals)?, word(signals.plus(8))?);
        let (small, large) = (places.small[sender as usize], places.large[sender as usize]);
        let small = host.local(small, SMALL)?.to_vec()?;
        let large = host.local(large, LARGE)?.to_vec()?;
        let is_from = |bytes: &[u8], rounds: std::ops::RangeInclusive<u64>| {
            // A round is a byte, and what has come of a word may end within it.
            (0..).zip(bytes.chunks(8)).all(|(index, word)| {
                let sent = u64::to_le_bytes(index << 32 | u64::from(sender) << 16);
                let is_as_sent =
                    |(found, sent): (&u8, &u8)| found == sent || *found == 0 && rounds.contains(&0);
                let is_of_round = rounds.contains(&word[0].into());
                is_of_round && word[1..].iter().zip(&sent[1..]).all(is_as_sent)
            })
        };
        // A signal tells that its data is there, or what has come after it.
        wrong += u64::from(!is_from(&small, signal..=ROUNDS));
        let large_from = if done { ROUNDS + 1..=ROUNDS + 1 } else { 0..=ROUNDS + 1 };
        wrong += u64::from(!is_from(&large, large_from));
        wrong += u64::from(signal > ROUNDS || sum > ROUNDS);
        wrong += u64::from(done && (signal, sum) != (ROUNDS, ROUNDS));
    }
    job.report(WRONG, wrong)?;
    job.report(CANARIES, gone)?;
    Ok(())
}
