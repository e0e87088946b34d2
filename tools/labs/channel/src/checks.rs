//! Every kernel, run by PE 0 on rings large and small with the peers' part by the others, against
//! its model: what must be in the heaps of all PEs after it.

use channel_producer::Form;
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::image::{HEAP, Image, PES};
use crate::job::{Job, Pe};
use crate::machines::MachineError;
use crate::models::{self, Shape};

/// Rings and slots of each: rings that nothing fills, and the smallest, in which everything waits
/// for room.
const RINGS: [(u32, u64); 2] = [(4, 4096), (1, 64)];

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
struct Check {
    kernel: &'static str,
    /// Whether units may be warps and blocks.
    forms: bool,
    rounds: u64,
    bytes: u64,
    /// The kernel that does the part of the other PEs.
    peer: Option<&'static str>,
    /// Blocks and threads, if not the machine's own.
    shape: Option<(u32, u32)>,
}

const PLAIN: Check =
    Check { kernel: "", forms: true, rounds: 8, bytes: 0, peer: None, shape: None };

const CHECKS: [Check; 16] = [
    Check { kernel: "put", ..PLAIN },
    Check { kernel: "put_signal", ..PLAIN },
    Check { kernel: "signal", ..PLAIN },
    Check { kernel: "atomics", forms: false, rounds: 4, ..PLAIN },
    Check { kernel: "fetches", forms: false, rounds: 1, ..PLAIN },
    Check { kernel: "get", ..PLAIN },
    Check { kernel: "fence", rounds: 12, ..PLAIN },
    Check { kernel: "quiet", ..PLAIN },
    Check { kernel: "wait", rounds: 10, peer: Some("answer"), ..PLAIN },
    Check { kernel: "mixed", forms: false, rounds: 24, ..PLAIN },
    Check { kernel: "blocking", rounds: 2, ..PLAIN },
    Check { kernel: "rings", ..PLAIN },
    Check { kernel: "words", rounds: 5, peer: Some("answer_words"), ..PLAIN },
    Check { kernel: "barrier", rounds: 5, peer: Some("barrier"), ..PLAIN },
    Check { kernel: "put_bandwidth", bytes: 256, ..PLAIN },
    Check { kernel: "ping_pong", bytes: 512, peer: Some("ping_pong"), ..PLAIN },
];

/// What must be refused: each thread makes its own wrong call.
const ERRORS: Check = Check { kernel: "errors", forms: false, shape: Some((1, 32)), ..PLAIN };

/// Runs all checks with heaps there, and returns how many these are.
pub(crate) fn run_all(job: &Job<'_>, location: MemoryLocation) -> Result<usize, MachineError> {
    let mut count = 0;
    for rings in RINGS {
        let pe = job.open(location, rings)?;
        let mut check = |check: &Check, form: Form| {
            count += 1;
            let (kernel, rings) = (check.kernel, rings.0);
            run(&pe, check, form, rings).map_err(|error| {
                let heap = format!("{rings} rings, heap on {location:?}");
                MachineError(format!("{kernel}, {form:?}, {heap}: {error}"))
            })
        };
        for of in CHECKS {
            check(&of, Form::Thread)?;
            if of.forms {
                check(&of, Form::Warp)?;
                check(&of, Form::Block)?;
            }
        }
        match pe.channel.error() {
            Some(error) => return Err(MachineError(format!("the channel has an error: {error}"))),
            // The channel keeps the first error for good, so this check is its last.
            None => check(&ERRORS, Form::Thread)?,
        }
        if job.me == 0 && pe.channel.error().is_none() {
            return Err(MachineError(String::from("the channel knows of no refused call")));
        }
        pe.channel.stop()?;
    }
    Ok(count)
}

fn run(pe: &Pe<'_>, check: &Check, form: Form, rings: u32) -> Result<(), MachineError> {
    let machine = pe.job.machine;
    let (blocks, threads) = check.shape.unwrap_or_else(|| machine.shape());
    let members = match form {
        Form::Thread => 1,
        Form::Warp => machine.warp(),
        Form::Block => threads,
    };
    let shape = Shape {
        threads: u64::from(blocks) * u64::from(threads),
        members: u64::from(members),
        rounds: check.rounds,
        bytes: check.bytes,
    };
    let mut image = Image::default();
    models::prepare(check.kernel, &mut image, &shape);
    pe.channel.barrier()?;
    pe.write(image.words(pe.job.me))?;
    pe.channel.barrier()?;
    let kernel = match pe.job.me {
        0 => Some(check.kernel),
        1 => check.peer,
        // The others have a part in what is of all PEs.
        _ => check.peer.filter(|peer| *peer == check.kernel),
    };
    if let Some(kernel) = kernel {
        image.out = pe.kernel(kernel, form, check.rounds, check.bytes, (blocks, threads))?;
        // A quiet on each ring, and no puts.
        pe.kernel("put_bandwidth", Form::Thread, 0, 0, (rings, 1))?;
    }
    pe.channel.barrier()?;
    let heaps = pe.job.allgather(&pe.read()?)?;
    if pe.job.me != 0 {
        return Ok(());
    }
    for (heap, of) in heaps.chunks_exact(HEAP).zip(0..PES) {
        image.set_heap(of, heap);
    }
    models::check(check.kernel, &image, &shape).map_err(MachineError)
}
