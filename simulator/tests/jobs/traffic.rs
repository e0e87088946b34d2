//! Jobs that move data and check every byte.

use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, Host, Job, JobSettings, Layout, Ops, Pattern, SymAddr};

use crate::job;

/// Runs the job and requires that every PE finished and left nothing behind.
pub(crate) fn run(settings: JobSettings) -> Result<(), Failed> {
    let report = settings.run()?.check()?;
    if !report.leftovers.is_empty() {
        return Err(format!("left behind: {:?}", report.leftovers).into());
    }
    let cycles = if settings.scenario == "traffic" { 2 } else { 0 };
    for pe in &report.pes {
        if pe.values.len() != cycles {
            return Err(format!("PE {} reported {:?}", pe.pe, pe.values).into());
        }
    }
    Ok(())
}

pub(crate) fn add_trials(trials: &mut Vec<Trial>) {
    let mut add = |name: &str, settings: JobSettings| {
        trials.push(Trial::test(format!("traffic::{name}"), move || run(settings)));
    };
    for layout in [Layout::V3a, Layout::V4, Layout::V7] {
        add(&format!("layout_{layout}::heap_that_grows"), job("traffic", 2, layout).heap_grows());
        add(
            &format!("layout_{layout}::max_op_len"),
            job("traffic", 2, layout).env("TEST_PLUGIN_MAX_OP_LEN", 777),
        );
        add(
            &format!("layout_{layout}::devices"),
            job("traffic", 4, layout).env("TEST_PLUGIN_DEVICES", 3).pes_per_node(2),
        );
    }
    add("collectives", job("collectives", 5, Layout::V7).pes_per_node(2));
}

/// Bytes of one PE's part of an area. Odd, so that parts begin at every alignment, and with the
/// chunk size of these jobs some of them cross chunks.
const PART: u64 = 40_001;

/// Values of P at the end of each area.
const VALUES: u64 = 64;

/// Where things are in the heap. Each area has a part for each PE.
struct Areas {
    /// This PE's own data.
    source: SymAddr,
    /// What the others have written here.
    written: SymAddr,
    /// What this PE has read from the others.
    read: SymAddr,
    /// A word for each PE's values, of each kind of thread.
    values: SymAddr,
    n_pes: u64,
}

impl Areas {
    fn new(host: &Host<'_>, n_pes: u32) -> Result<Areas, BoxError> {
        let n_pes = u64::from(n_pes);
        Ok(Areas {
            source: host.alloc(n_pes * PART, 1)?,
            written: host.alloc(n_pes * PART, 1)?,
            read: host.alloc(n_pes * PART, 1)?,
            values: host.alloc(n_pes * VALUES * 8, 8)?,
            n_pes,
        })
    }

    fn of(&self, area: SymAddr, pe: u32) -> SymAddr {
        area.plus(u64::from(pe) * PART)
    }

    fn value(&self, pe: u32, index: u64) -> SymAddr {
        self.values.plus((u64::from(pe) * VALUES + index) * 8)
    }

    /// What `from` sends to `to`.
    fn pattern(&self, thread: u64, from: u32, to: u32) -> Pattern {
        Pattern::of(&[thread, u64::from(from), u64::from(to), self.n_pes])
    }
}

pub(crate) fn traffic(job: &mut Job) -> Result<(), BoxError> {
    for cycle in 0..2 {
        let host = job.init()?;
        one_life(job, &host)?;
        job.report("cycle", cycle)?;
        host.finalize()?;
    }
    Ok(())
}

fn one_life(job: &Job, host: &Host<'_>) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let by_user = Areas::new(host, n)?;
    let by_proxy = Areas::new(host, n)?;
    let signals = host.alloc(u64::from(n) * 8, 8)?;
    let counters = host.alloc(u64::from(n) * 8, 8)?;
    let fetched = host.alloc(16, 8)?;
    for (thread, areas) in [(0, &by_user), (1, &by_proxy)] {
        for pe in 0..n {
            let part = host.local(areas.of(areas.source, pe), PART)?;
            part.fill(areas.pattern(thread, me, pe), 0)?;
        }
    }
    host.barrier()?;

    // Both kinds of threads at once: this one is the user's, the other feeds the proxy.
    std::thread::scope(|scope| {
        let device = scope.spawn(|| feed_proxy(job, host, &by_proxy));
        let user = use_host_calls(job, host, &by_user);
        let device = device.join().map_err(|_| "the device's thread panicked")?;
        user.and(device)
    })?;
    host.barrier()?;
    for (thread, areas) in [(0, &by_user), (1, &by_proxy)] {
        verify(host, me, n, thread, areas).map_err(|e| format!("thread {thread}: {e}"))?;
    }
    atomics(job, host, counters, fetched)?;
    signalled(job, host, &by_proxy, signals)?;
    if job.layout() >= Layout::V4 {
        let qps = host.create_qps(3)?;
        if qps != [1; 3] {
            return Err(format!("queue pairs {qps:?} from a plugin that declines").into());
        }
    }
    host.region_flush(1, 1)?;
    host.show_info()?;
    host.barrier()?;
    Ok(())
}

/// Blocking and non-blocking calls, from heap, registered and unregistered memory.
fn use_host_calls(job: &Job, host: &Host<'_>, areas: &Areas) -> Result<(), BoxError> {
    let (me, ops) = (job.pe(), host.user());
    let buffer = host.register(PART, 13)?;
    let plain = host.unregistered(PART)?;
    for pe in 0..job.n_pes() {
        let (source, target) = (areas.of(areas.source, pe), areas.of(areas.written, me));
        let half = PART / 2;
        match pe % 3 {
            // Blocking, from a buffer that is overwritten at once.
            0 => {
                host.local(buffer.at(0), PART)?.fill(areas.pattern(0, me, pe), 0)?;
                ops.put(pe, target, buffer.at(0), half)?;
                host.local(buffer.at(0), half)?.set(0)?;
                ops.put(pe, target.plus(half), buffer.at(half), PART - half)?;
                host.local(buffer.at(0), PART)?.set(0)?;
            }
            1 => ops.put_nbi(pe, target, source, PART)?,
            _ => {
                host.local(plain.at(0), PART)?.fill(areas.pattern(0, me, pe), 0)?;
                ops.put(pe, target, plain.at(0), PART)?;
            }
        }
        let (from, to) = (areas.of(areas.source, me), areas.of(areas.read, pe));
        if pe % 2 == 0 {
            ops.get(pe, from, to, PART)?;
            host.local(to, PART)?.verify(areas.pattern(0, pe, me), 0)?;
        } else {
            ops.get_nbi(pe, from, to, PART)?;
        }
        values(ops, areas, me, pe)?;
        ops.fence()?;
        ops.put(pe, target, source, 0)?;
    }
    ops.quiet()?;
    host.unregister(buffer)?;
    Ok(())
}

/// The same through the proxy thread: as requests, and as a function that has the thread.
fn feed_proxy(job: &Job, host: &Host<'_>, areas: &Areas) -> Result<(), BoxError> {
    let (me, proxy) = (job.pe(), host.proxy());
    for pe in 0..job.n_pes() {
        let (source, target) = (areas.of(areas.source, pe), areas.of(areas.written, me));
        let mut at = 0;
        while at < PART {
            let len = (at % 1500 + 1).min(PART - at);
            proxy.put(pe, target.plus(at), source.plus(at), len)?;
            at += len;
        }
        proxy.fence()?;
        let (from, to) = (areas.of(areas.source, me), areas.of(areas.read, pe));
        proxy.get(pe, from, to, PART - 4)?;
        proxy.g(pe, from.plus(PART - 4), to.plus(PART - 4), 4)?;
        for index in 0..VALUES / 2 {
            proxy.p(pe, areas.value(me, index), value(me, pe, index), width(index))?;
        }
        proxy.quiet()?;
        host.local(to, PART)?.verify(areas.pattern(1, pe, me), 0)?;
    }
    let rest = Areas { ..*areas };
    proxy.run(move |ops| -> Result<(), nvshmem_sim::Error> {
        for pe in 0..ops.n_pes() {
            for index in VALUES / 2..VALUES {
                ops.p(pe, rest.value(me, index), value(me, pe, index), width(index))?;
                ops.progress()?;
            }
            let piece = ops.plan(pe, rest.of(rest.written, me), rest.of(rest.source, pe), PART)?;
            piece.iter().try_for_each(|piece| ops.issue_put(piece))?;
            ops.quiet_pe(pe)?;
        }
        Ok(())
    })??;
    Ok(())
}

fn width(index: u64) -> i32 {
    1 << (index % 4)
}

fn value(from: u32, to: u32, index: u64) -> u64 {
    let at = index * 16;
    let byte = |i| u64::from(Pattern::of(&[from.into(), to.into()]).byte(at + i));
    (0..8).fold(0, |word, i| word << 8 | byte(i))
}

fn values(ops: &Ops, areas: &Areas, me: u32, pe: u32) -> Result<(), BoxError> {
    for index in 0..VALUES {
        ops.p(pe, areas.value(me, index), value(me, pe, index), width(index))?;
    }
    Ok(())
}

fn verify(host: &Host<'_>, me: u32, n: u32, thread: u64, areas: &Areas) -> Result<(), BoxError> {
    for pe in 0..n {
        let written = host.local(areas.of(areas.written, pe), PART)?;
        let error = |what, e| format!("{what} PE {pe}: {e}");
        written.verify(areas.pattern(thread, pe, me), 0).map_err(|e| error("put of", e))?;
        let read = host.local(areas.of(areas.read, pe), PART)?;
        read.verify(areas.pattern(thread, pe, me), 0).map_err(|e| error("get from", e))?;
        for index in 0..VALUES {
            let found = host.local(areas.value(pe, index), 8)?.to_vec()?;
            let mut expected = [0; 8];
            let width = width(index) as usize;
            expected[..width].copy_from_slice(&value(pe, me, index).to_le_bytes()[..width]);
            if found != expected {
                return Err(format!("P {index} of PE {pe}: {found:?}, not {expected:?}").into());
            }
        }
    }
    Ok(())
}

/// Each PE changes a word of its own at each other PE.
fn atomics(
    job: &Job,
    host: &Host<'_>,
    counters: SymAddr,
    fetched: SymAddr,
) -> Result<(), BoxError> {
    let (me, proxy) = (job.pe(), host.proxy());
    let mine = counters.plus(u64::from(me) * 8);
    let mut flag = 1;
    for pe in 0..job.n_pes() {
        proxy.amo(pe, mine, Amo::new(c::NVT_AMO_SET, 8, 40))?;
        proxy.amo(pe, mine, Amo::new(c::NVT_AMO_INC, 8, 1))?;
        proxy.amo(pe, mine, Amo::new(c::NVT_AMO_ADD, 8, 1 << 33))?;
        let mut fetch = |op, value, compare, expected| -> Result<(), BoxError> {
            flag += 2;
            let mut amo = Amo::new(op, 8, value);
            (amo.compare, amo.fetch_to, amo.flag) = (compare, Some(fetched), flag);
            proxy.amo(pe, mine, amo)?;
            wait_for(host, fetched.plus(8), flag)?;
            let old = host.local(fetched, 8)?.load_acquire()?;
            if old == expected { Ok(()) } else { Err(format!("fetched {old} from {pe}").into()) }
        };
        let sum = (1 << 33) + 41;
        fetch(c::NVT_AMO_FETCH_ADD, 1, 0, sum)?;
        fetch(c::NVT_AMO_COMPARE_SWAP, 7, sum, sum + 1)?;
        fetch(c::NVT_AMO_COMPARE_SWAP, 7, sum + 1, sum + 1)?;
        fetch(c::NVT_AMO_SWAP, 0x4000_0000, 0, 7)?;
        proxy.amo(pe, mine, Amo::new(c::NVT_AMO_OR, 4, 3))?;
        if job.layout() >= Layout::V6 {
            let half = Amo { is_float: true, ..Amo::new(c::NVT_AMO_ADD, 8, 0.5_f64.to_bits()) };
            proxy.amo(pe, mine, Amo::new(c::NVT_AMO_SET, 8, 2.0_f64.to_bits()))?;
            proxy.amo(pe, mine, half)?;
        }
    }
    host.barrier()?;
    let expected = if job.layout() >= Layout::V6 { 2.5_f64.to_bits() } else { 0x4000_0003 };
    for pe in 0..u64::from(job.n_pes()) {
        let found = host.local(counters.plus(pe * 8), 8)?.load_acquire()?;
        if found != expected {
            return Err(format!("word of PE {pe} is {found:#x}, not {expected:#x}").into());
        }
    }
    host.barrier()?;
    Ok(())
}

/// Data with a signal behind it, first some and then none.
fn signalled(job: &Job, host: &Host<'_>, areas: &Areas, signals: SymAddr) -> Result<(), BoxError> {
    let (me, proxy) = (job.pe(), host.proxy());
    let set = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 5);
    let add = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 2);
    let mine = signals.plus(u64::from(me) * 8);
    host.local(areas.written, u64::from(job.n_pes()) * PART)?.set(0)?;
    host.barrier()?;
    // In layouts 3a and 3b the data and the signal are ordered by a fence, and the host sends none
    // to the PE itself. So there a PE cannot rely on its own signal.
    let ordered = |pe: &u32| job.layout() >= Layout::V4 || *pe != me;
    for pe in (0..job.n_pes()).filter(ordered) {
        let (source, target) = (areas.of(areas.source, pe), areas.of(areas.written, me));
        proxy.put_signal(pe, target, source, PART, mine, set)?;
    }
    if !ordered(&me) {
        host.local(mine, 8)?.store_release(5)?;
    }
    for pe in (0..job.n_pes()).filter(ordered) {
        wait_for(host, signals.plus(u64::from(pe) * 8), 5)?;
        let written = host.local(areas.of(areas.written, pe), PART)?;
        written.verify(areas.pattern(1, pe, me), 0)?;
    }
    host.barrier()?;
    for pe in 0..job.n_pes() {
        proxy.put_signal(pe, areas.written, areas.source, 0, mine, add)?;
    }
    for pe in 0..u64::from(job.n_pes()) {
        wait_for(host, signals.plus(pe * 8), 7)?;
    }
    host.barrier()?;
    Ok(())
}

/// Waits until a word has a value, as a kernel would. The PE's proxy thread works meanwhile.
fn wait_for(host: &Host<'_>, word: SymAddr, value: u64) -> Result<(), BoxError> {
    let start = Instant::now();
    let word = host.local(word, 8)?;
    while word.load_acquire()? != value {
        if start.elapsed() > Duration::from_secs(30) {
            let found = word.load_acquire()?;
            return Err(format!("a word is {found} and does not become {value}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The bootstrap alone, used as a scenario uses it.
pub(crate) fn collectives(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (u64::from(job.pe()), u64::from(job.n_pes()));
    let boot = job.bootstrap();
    for round in 0..200 {
        let all = boot.allgather_u64(me * 1000 + round)?;
        if all != (0..n).map(|pe| pe * 1000 + round).collect::<Vec<_>>() {
            return Err(format!("allgather gave {all:?}").into());
        }
        let to: Vec<u8> = (0..n).flat_map(|to| [me as u8, to as u8, round as u8]).collect();
        let from = boot.alltoall(&to)?;
        let expected: Vec<u8> = (0..n).flat_map(|pe| [pe as u8, me as u8, round as u8]).collect();
        if from != expected {
            return Err(format!("alltoall gave {from:?}").into());
        }
        boot.barrier()?;
    }
    // More than the socket holds, from everybody at once.
    let mut big = vec![0; 1 << 20];
    Pattern::new(me).fill(0, &mut big);
    let all = boot.allgather(&big)?;
    for (pe, part) in (0..n).zip(all.chunks(big.len())) {
        Pattern::new(pe).verify(0, part)?;
    }
    let (on_node, of) = (boot.mype_node(), boot.npes_node());
    let last_alone = me == 4 && (on_node, of) == (0, 1);
    if !last_alone && (u64::from(on_node), of) != (me % 2, 2) {
        return Err(format!("PE {on_node} of {of} on its host").into());
    }
    Ok(())
}
