//! Every kernel of PE 0 against its model, with real peers: what must be in the heaps of all PEs
//! after it.

use channel_producer::{AREAS, Form};
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::bed::HEAP;
use crate::checks::{CHECKS, Check};
use crate::image::{AREA, Image, PES};
use crate::job::pe::{Job, Pe};
use crate::machines::machine::MachineError;
use crate::models;

const RINGS: [(u32, u64); 2] = [(4, 4096), (1, 64)];

pub(crate) fn run(job: &Job<'_>, location: MemoryLocation) -> Result<usize, MachineError> {
    let mut count = 0;
    for rings in RINGS {
        let pe = job.open(location, rings)?;
        for check in CHECKS {
            for form in [Form::Thread, Form::Warp, Form::Block] {
                if check.forms || form == Form::Thread {
                    let (kernel, rings) = (check.kernel, rings.0);
                    one(&pe, &check, form, rings).map_err(|MachineError(text)| {
                        let heap = format!("{rings} rings, heap on {location:?}");
                        MachineError(format!("{kernel}, {form:?}, {heap}: {text}"))
                    })?;
                    count += 1;
                }
            }
        }
        pe.channel.stop()?;
    }
    Ok(count)
}

fn one(pe: &Pe<'_>, check: &Check, form: Form, rings: u32) -> Result<(), MachineError> {
    let machine = pe.job.machine;
    let (blocks, threads) = machine.shape();
    let shape = check.shape_on(machine, form);
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
    const { assert!(HEAP == 8 * AREAS * AREA as usize) };
    for (heap, of) in heaps.chunks_exact(HEAP).zip(0..PES) {
        image.set_heap(of, heap);
    }
    models::check(check.kernel, &image, &shape).map_err(MachineError)
}
