//! Signals on NICs that write with immediate data: they need nothing more of the sender, and
//! overrun no queue.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Job, Ops, Pattern, SymAddr};

use super::{Library, counted, trial};
use crate::job::{job, run, says};

/// Bytes of the puts: more than go in one message, less than is cut for all rails and so posted
/// piece by piece.
const LENGTHS: [u64; 3] = [209, 4 << 10, 300 << 10];

const ROUNDS: u64 = 10;

const PATIENCE: &str = "patience";

const FLOOD: u64 = 8 << 20;
const SEGMENT: u64 = 4096;
const RECEIVES: u64 = 1024;

const LOOKS: u32 = 200;

pub(super) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // From libfabric 2.4 on immediate data takes a receive where that is asked for, on all NICs.
    for persona in ["p5", "p5en"] {
        let name = format!("signal_needs_no_further_call_{persona}");
        trials.push(trial(name, Library::Direct("p5"), move |lab| {
            let job = job("turned_away", 2).heap(64 << 20, 8 << 20).param(PATIENCE, 60);
            for pe in run(lab.on(job, persona, 2, "efa-direct"))?.pes {
                says(&pe.text(), "immediate data: yes (a write that tells takes a receive")?;
                says(&pe.text(), "signal protocol Auto; targets can count the segments of a put")?;
            }
            Ok(())
        }));
    }
    for (name, fault) in [("more_data_than_receives", ""), ("receives_that_hold_up_all", "held=1")]
    {
        trials.push(trial(name, Library::Direct("p5"), move |lab| {
            let job = job("deaf", 3).heap(64 << 20, 8 << 20).param(PATIENCE, 60);
            let job = lab.on(job.debug("max_segment", SEGMENT), "p5", 1, "efa-direct");
            let report = run(job.env("EFA_LAB_FAULTS", fault))?;
            let waited =
                |text: &str| counted(text, " tries without a receive").into_values().sum::<u64>();
            match report.pes.iter().map(|pe| waited(&pe.text())).sum::<u64>() {
                0 => Err(format!("nothing has waited for a receive:\n{report}").into()),
                _ => Ok(()),
            }
        }));
    }
    trials
}

/// PE 0 puts with a signal, and calls nothing more until the peer has answered.
pub(crate) fn turned_away(job: &mut Job) -> Result<(), BoxError> {
    let (me, patience) = (job.pe, Duration::from_secs(job.param(PATIENCE)?));
    let host = job.init()?;
    let most = LENGTHS.into_iter().max().unwrap_or(0);
    let (from, to) = (host.alloc(most, 4096)?, host.alloc(most, 4096)?);
    let (signal, answer) = (host.alloc(8, 8)?, host.alloc(8, 8)?);
    let mut round = 0;
    for bytes in LENGTHS {
        for _ in 0..ROUNDS {
            round += 1;
            host.barrier()?;
            let pattern = Pattern::of(&[round, bytes]);
            if me == 0 {
                host.local(from, bytes)?.fill(pattern, 0)?;
                let wait = move |ops: &Ops| -> Result<(), String> {
                    ops.put_signal(1, to, from, bytes, signal, add()).map_err(|e| e.to_string())?;
                    let told =
                        || format!("nobody has answered a signal with {bytes} bytes of data");
                    look_at(ops, answer, round, patience).map_err(|_| told())
                };
                host.proxy.run(wait)??;
                host.proxy.quiet()?;
            } else {
                // Its own proxy thread goes on, and its write is the NIC's.
                host.wait_until(|| Ok(host.local(signal, 8)?.load_acquire()? >= round))?;
                host.local(to, bytes)?.verify(pattern, 0)?;
                host.local(from, 8)?.store_release(round)?;
                host.proxy.put(0, answer, from, 8)?;
                host.proxy.quiet()?;
            }
        }
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

/// All other PEs put to PE 0, which calls nothing until more segments are there than it has
/// receives, and no more come.
pub(crate) fn deaf(job: &mut Job) -> Result<(), BoxError> {
    let (me, n, patience) = (job.pe, job.n_pes(), Duration::from_secs(job.param(PATIENCE)?));
    let host = job.init()?;
    let inbox = host.alloc(u64::from(n) * FLOOD, 4096)?;
    let (outbox, signals) = (host.alloc(FLOOD, 4096)?, host.alloc(u64::from(n) * 8, 8)?);
    let area = move |pe: u32| inbox.plus(u64::from(pe) * FLOOD);
    let signal = move |pe: u32| signals.plus(u64::from(pe) * 8);
    let pattern = |pe: u32| Pattern::of(&[u64::from(pe)]);
    host.local(outbox, FLOOD)?.fill(pattern(me), 0)?;
    // The ends of segments, where nothing is yet.
    let ends: Vec<SymAddr> = (1..n)
        .flat_map(|pe| (1..=FLOOD / SEGMENT).map(move |end| area(pe).plus(end * SEGMENT - 8)))
        .collect();
    for &end in &ends {
        host.local(end, 8)?.store_release(0)?;
    }
    host.barrier()?;
    if me == 0 {
        let listen = move |ops: &Ops| -> Result<(), String> {
            let read = |end: &SymAddr| ops.local(*end, 8)?.load_acquire();
            let (start, mut before, mut looks) = (Instant::now(), 0, 0);
            loop {
                let words: Vec<u64> =
                    ends.iter().map(read).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
                let there = words.into_iter().filter(|word| *word != 0).count() as u64;
                looks = if there == before { looks + 1 } else { 0 };
                before = there;
                if there > RECEIVES && looks >= LOOKS {
                    return Ok(());
                }
                std::thread::yield_now();
                if start.elapsed() > patience {
                    return Err(format!("{there} segments are there, and no more come"));
                }
            }
        };
        host.proxy.run(listen)??;
        for pe in 1..n {
            host.wait_until(|| Ok(host.local(signal(pe), 8)?.load_acquire()? == 1))?;
            host.local(area(pe), FLOOD)?.verify(pattern(pe), 0)?;
        }
    } else {
        host.proxy.put_signal(0, area(me), outbox, FLOOD, signal(me), add())?;
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

fn add() -> Amo {
    Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1)
}

fn look_at(ops: &Ops, word: SymAddr, value: u64, patience: Duration) -> Result<(), String> {
    let start = Instant::now();
    let read = || ops.local(word, 8)?.load_acquire();
    while read().map_err(|error| error.to_string())? < value {
        if start.elapsed() > patience {
            return Err(format!("{word:?} is not {value} in {patience:?}"));
        }
        std::thread::yield_now();
    }
    Ok(())
}
