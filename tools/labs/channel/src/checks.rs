//! Every kernel, on rings large and small, against its model.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel_producer::Form;
use channel_sys as c;
use nvshmem_transport_libfabric::channel::ring::State;

use crate::bed::{Bed, FIRST_BARRIER, HeapAt, SYMMETRIC};
use crate::image::{AREA, Image, PES};
use crate::machines::machine::{Machine, MachineError};
use crate::models::{self, Shape, area, mix};
use crate::peers::{Answer, Peers, Word};

const DEADLINE: Duration = Duration::from_secs(120);

/// A kernel with what it is run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) kernel: &'static str,
    /// Whether units may be warps and blocks.
    pub(crate) forms: bool,
    pub(crate) rounds: u64,
    pub(crate) bytes: u64,
    answer: Option<Answer>,
    /// The kernel that does the part of the other PEs in a job.
    pub(crate) peer: Option<&'static str>,
    /// Blocks and threads, if not the machine's own.
    shape: Option<(u32, u32)>,
    fails: bool,
}

const PLAIN: Check = Check {
    kernel: "",
    forms: true,
    rounds: 8,
    bytes: 0,
    answer: None,
    peer: None,
    shape: None,
    fails: false,
};

pub(crate) const CHECKS: [Check; 16] = [
    Check { kernel: "put", ..PLAIN },
    Check { kernel: "put_signal", ..PLAIN },
    Check { kernel: "signal", ..PLAIN },
    Check { kernel: "atomics", forms: false, rounds: 4, ..PLAIN },
    Check { kernel: "fetches", forms: false, rounds: 1, ..PLAIN },
    Check { kernel: "get", ..PLAIN },
    Check { kernel: "fence", rounds: 12, ..PLAIN },
    Check { kernel: "quiet", ..PLAIN },
    Check { kernel: "wait", rounds: 10, answer: Some(answer_wait), peer: Some("answer"), ..PLAIN },
    Check { kernel: "mixed", forms: false, rounds: 24, ..PLAIN },
    Check { kernel: "blocking", rounds: 2, ..PLAIN },
    Check { kernel: "rings", ..PLAIN },
    Check {
        kernel: "words",
        rounds: 5,
        answer: Some(answer_words),
        peer: Some("answer_words"),
        ..PLAIN
    },
    Check {
        kernel: "barrier",
        rounds: 5,
        answer: Some(answer_barrier),
        peer: Some("barrier"),
        ..PLAIN
    },
    Check { kernel: "put_bandwidth", bytes: 256, ..PLAIN },
    Check {
        kernel: "ping_pong",
        bytes: 512,
        answer: Some(answer_ping_pong),
        peer: Some("ping_pong"),
        ..PLAIN
    },
];

/// What must be refused; each thread has its own wrong call.
pub(crate) const ERRORS: Check =
    Check { kernel: "errors", forms: false, shape: Some((1, 32)), fails: true, ..PLAIN };

/// The word of an area of the heap of PE 1 that an operation has changed.
fn asked(area: usize, word: Word) -> Option<u64> {
    let index = match word {
        Word { pe: 1, region: SYMMETRIC, index } => index.checked_sub(area as u64 * AREA)?,
        _ => return None,
    };
    (index < AREA).then_some(index)
}

fn answer_wait(peers: &Peers, bed: &Bed<'_>, word: Word, value: u64) -> Result<(), MachineError> {
    if let Some(index) = asked(area::PONG, word) {
        peers.set(bed, area::PONG, index + 1, mix(index / 2, value))?;
        peers.set(bed, area::PONG, index, value)?;
    }
    Ok(())
}

fn answer_words(peers: &Peers, bed: &Bed<'_>, word: Word, value: u64) -> Result<(), MachineError> {
    match asked(area::PONG, word) {
        Some(index) => peers.set(bed, area::PONG, index + 4, value),
        None => Ok(()),
    }
}

/// What all PEs tell PE 0 in front of a barrier, every second one, and the barrier's round.
fn answer_barrier(
    peers: &Peers,
    bed: &Bed<'_>,
    word: Word,
    _value: u64,
) -> Result<(), MachineError> {
    if word.region != c::NLF_OWN_REGION as usize {
        return Ok(());
    }
    let arrived = bed.arrived(word.index);
    let number = arrived.load(Ordering::Acquire).wrapping_add(1);
    for pe in 1..u64::from(PES) {
        peers.set(bed, area::DST, pe, number.wrapping_sub(FIRST_BARRIER).div_ceil(2))?;
    }
    arrived.store(number, Ordering::Release);
    Ok(())
}

fn answer_ping_pong(
    peers: &Peers,
    bed: &Bed<'_>,
    word: Word,
    value: u64,
) -> Result<(), MachineError> {
    if asked(area::SIGNAL, word) == Some(0) {
        peers.set(bed, area::SIGNAL, 0, value)?;
    }
    Ok(())
}

impl Check {
    pub(crate) fn shape_on(&self, machine: &dyn Machine, form: Form) -> Shape {
        let (blocks, threads) = self.shape.unwrap_or_else(|| machine.shape());
        let members = match form {
            Form::Thread => 1,
            Form::Warp => machine.warp(),
            Form::Block => threads,
        };
        Shape {
            threads: u64::from(blocks) * u64::from(threads),
            members: u64::from(members),
            rounds: self.rounds,
            bytes: self.bytes,
        }
    }
}

pub(crate) fn run_all(
    machine: &dyn Machine,
    heap: HeapAt,
    seed: u64,
) -> Result<usize, MachineError> {
    let mut count = 0;
    // Rings that nothing fills, and the smallest, in which everything waits for room.
    for (n_rings, slots_log2) in [(4, 12), (1, 6), (2, 6)] {
        for check in CHECKS {
            for form in [Form::Thread, Form::Warp, Form::Block] {
                if check.forms || form == Form::Thread {
                    let seed = seed + count as u64;
                    run(machine, heap, &check, form, (n_rings, slots_log2), seed)?;
                    count += 1;
                }
            }
        }
    }
    run(machine, heap, &ERRORS, Form::Thread, (4, 12), seed)?;
    stuck(machine)?;
    stopped(machine)?;
    Ok(count + 3)
}

pub(crate) fn run(
    machine: &dyn Machine,
    heap: HeapAt,
    check: &Check,
    form: Form,
    (n_rings, slots_log2): (u32, u32),
    seed: u64,
) -> Result<(), MachineError> {
    let (blocks, threads) = check.shape.unwrap_or_else(|| machine.shape());
    let shape = check.shape_on(machine, form);
    let named = |text: String| {
        let kernel = check.kernel;
        MachineError(format!(
            "{kernel}, {form:?}, {n_rings} rings, heap {heap:?}, seed {seed}: {text}"
        ))
    };
    let mut bed = Bed::new(machine, n_rings, slots_log2, 0, heap)?;
    let mut before = Image::default();
    models::prepare(check.kernel, &mut before, &shape);
    bed.set(&before)?;
    let mut peers = Peers::new(n_rings as usize, seed, check.answer);
    let args = bed.args(form, check.rounds, check.bytes, 0);
    // SAFETY: the bed is kept until the kernel has ended; see below for when it has not.
    let mut running = unsafe { machine.launch(check.kernel, args, blocks, threads) }?;
    let since = Instant::now();
    while !(running.is_done()? && peers.is_idle()) {
        if let Err(error) = peers.step(&mut bed) {
            return Err(leave(bed, named(error.to_string())));
        }
        if since.elapsed() > DEADLINE {
            return Err(leave(bed, named(format!("no end; {} taken", peers.taken))));
        }
        std::thread::yield_now();
    }
    // What was put in last.
    peers.step(&mut bed).map_err(|error| named(error.to_string()))?;
    while !peers.is_idle() {
        peers.step(&mut bed).map_err(|error| named(error.to_string()))?;
    }
    for thread in 0..shape.threads {
        let status = bed.status(thread);
        if status != 0 {
            return Err(named(format!("thread {thread} got error {status}: {:?}", bed.error())));
        }
    }
    let code = bed.error().code;
    if !check.fails && code != c::NLF_OK {
        return Err(named(format!("the error word has {:?}", bed.error())));
    }
    models::check(check.kernel, &bed.image(shape.threads)?, &shape).map_err(named)
}

fn leave(bed: Bed<'_>, error: MachineError) -> MachineError {
    std::mem::forget(bed);
    error
}

/// Nobody takes anything: every thread is told, and the kernel ends.
fn stuck(machine: &dyn Machine) -> Result<(), MachineError> {
    ends_with(machine, 1000, c::NLF_ERROR_STUCK, |bed| {
        // Nothing: `spins` alone ends it.
        debug_assert!(bed.rings.len() == 2);
        false
    })
}

/// The proxy stops while threads wait for room.
fn stopped(machine: &dyn Machine) -> Result<(), MachineError> {
    let mut taken = 0;
    ends_with(machine, 0, c::NLF_ERROR_STOPPED, move |bed| {
        for ring in &mut bed.rings {
            while ring.take().is_some() {
                taken += 1;
            }
            ring.publish_tail();
        }
        taken > 10_000
    })
}

fn ends_with(
    machine: &dyn Machine,
    spins: u64,
    code: u32,
    mut step: impl FnMut(&mut Bed<'_>) -> bool,
) -> Result<(), MachineError> {
    let mut bed = Bed::new(machine, 2, 6, spins, HeapAt::Nowhere(1 << 40))?;
    let (blocks, threads) = machine.shape();
    let args = bed.args(Form::Thread, 1 << 30, 1, 0);
    let named = |text: String| MachineError(format!("ending with error {code}: {text}"));
    // SAFETY: the bed is kept until the kernel has ended, or for ever.
    let mut running = unsafe { machine.launch("push_two", args, blocks, threads) }?;
    let since = Instant::now();
    let mut is_stopped = false;
    while !running.is_done()? {
        if !is_stopped && step(&mut bed) {
            is_stopped = true;
            bed.publish_state(State::Stopped);
        }
        if since.elapsed() > DEADLINE {
            return Err(leave(bed, named(String::from("the kernel does not end"))));
        }
        std::thread::yield_now();
    }
    for thread in 0..u64::from(blocks) * u64::from(threads) {
        let status = bed.status(thread);
        if status != code as i32 {
            return Err(named(format!("thread {thread} got {status}")));
        }
    }
    let error = bed.error();
    if error.code != code || !bed.is_abandoned() {
        return Err(named(format!("the error word has {error:?}")));
    }
    Ok(())
}
