//! Very many small operations of all kinds between all PEs, none lost, none twice, none astray.

use crate::{BoxError, Job, Pattern, SymAddr};

use crate::traffic::resident::Resident;

/// Bytes of the place that one operation has for itself at its target.
const SLOT: u64 = 64;

/// The scenario.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let total: u64 = job.param("operations")?;
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    // Each pair of PEs gets its share, which the two kinds of threads of the sender divide.
    let share = total.div_ceil(u64::from(n) * u64::from(n));
    let inbox = host.alloc(share * u64::from(n) * SLOT, 4096)?;
    let slot = |sender: u32, at: u64| inbox.plus((u64::from(sender) * share + at) * SLOT);
    let pattern = |sender: u32, to: u32| Pattern::of(&[sender.into(), to.into()]);
    let sources: Vec<SymAddr> =
        (0..n).map(|_| host.alloc(share * SLOT, 8)).collect::<Result<_, _>>()?;
    for (pe, source) in (0..n).zip(&sources) {
        host.local(*source, share * SLOT)?.fill(pattern(me, pe), 0)?;
    }
    let value = |pe: u32, at: u64| {
        let mut word = [0; 8];
        pattern(me, pe).fill(at * SLOT, &mut word);
        u64::from_le_bytes(word)
    };
    let back = host.alloc(share * SLOT, 8)?;
    host.barrier()?;

    // What the operation in a slot is follows from its number, so the receiver knows it too.
    for at in 0..share {
        for pe in (0..n).map(|step| (me + at as u32 + step) % n) {
            let (to, from) = (slot(me, at), sources[pe as usize].plus(at * SLOT));
            let len = length(at);
            match at % 6 {
                0 => host.proxy().put(pe, to, from, len)?,
                1 => host.user().put_nbi(pe, to, from, len)?,
                2 => host.proxy().p(pe, to, value(pe, at), len as i32)?,
                3 => host.user().p(pe, to, value(pe, at), len as i32)?,
                4 => {
                    host.proxy().fence()?;
                    host.proxy().put(pe, to, from, len)?;
                }
                _ => {
                    host.user().fence_pe(pe)?;
                    host.user().put_nbi(pe, to, from, len)?;
                }
            }
            if at % 64 == 63 && pe == me {
                host.user().quiet()?;
            }
        }
    }
    host.barrier()?;
    for sender in 0..n {
        let all = host.local(slot(sender, 0), share * SLOT)?.to_vec()?;
        for (at, bytes) in (0..share).zip(all.chunks(SLOT as usize)) {
            let (written, rest) = bytes.split_at(length(at) as usize);
            pattern(sender, me)
                .verify(at * SLOT, written)
                .map_err(|error| format!("operation {at} of PE {sender}: {error}"))?;
            if rest.iter().any(|byte| *byte != 0) {
                return Err(format!("operation {at} of PE {sender} wrote too much").into());
            }
        }
    }
    host.barrier()?;

    // And as many gets, from both threads at once.
    for pe in 0..n {
        host.local(back, share * SLOT)?.set(0)?;
        for at in 0..share {
            let (from, to) = (slot(me, at), back.plus(at * SLOT));
            if at % 2 == 0 {
                host.proxy().get(pe, from, to, length(at))?;
            } else {
                host.user().get_nbi(pe, from, to, length(at))?;
            }
        }
        host.proxy().quiet()?;
        host.user().quiet()?;
        let all = host.local(back, share * SLOT)?.to_vec()?;
        for (at, bytes) in (0..share).zip(all.chunks(SLOT as usize)) {
            pattern(me, pe)
                .verify(at * SLOT, &bytes[..length(at) as usize])
                .map_err(|error| format!("get {at} from PE {pe}: {error}"))?;
        }
    }
    kernel.end()?;
    host.finalize()?;
    Ok(())
}

/// Bytes of the operation with that number.
fn length(at: u64) -> u64 {
    match at % 6 {
        2 | 3 => [1, 2, 4, 8][(at / 6 % 4) as usize],
        _ => 1 + at * 7 % SLOT,
    }
}
