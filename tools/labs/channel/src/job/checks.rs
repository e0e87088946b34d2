//! Every kernel of PE 0 against its model, with real peers: what must be in the heaps of all PEs
//! after it.

use channel_producer::{AREAS, Form};
use channel_sys as c;
use nvshmem_transport_libfabric::channel::{MemoryLocation, StreamSignal};

use crate::bed::HEAP;
use crate::checks::{CHECKS, Check};
use crate::image::Image;
use crate::image::{AREA, PES};
use crate::job::pe::{Job, Pe};
use crate::machines::machine::{MachineError, Running};
use crate::models::{self, area, mix};

/// Rings and slots of each: those that nothing fills, and the smallest, in which everything waits
/// for room.
const RINGS: [(u32, u64); 2] = [(4, 4096), (1, 64)];

/// A PE's part of all checks with heaps there. How many there were.
///
/// # Errors
/// What is wrong, with the kernel and the form.
pub fn run(job: &Job<'_>, location: MemoryLocation) -> Result<usize, MachineError> {
    let mut count = 0;
    for rings in RINGS {
        let mut pe = job.open(location, rings, AREA as usize)?;
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
        count += usize::from(on_stream(&pe)?);
        count += reaches(&mut pe)?;
        pe.channel.stop()?;
    }
    Ok(count)
}

/// A put on the stream of a kernel that writes what is put. Whether PE 0's kernels have streams.
fn on_stream(pe: &Pe<'_>) -> Result<bool, MachineError> {
    const ROUNDS: u64 = 2;
    let shape = pe.job.machine.shape();
    let threads = u64::from(shape.0) * u64::from(shape.1);
    pe.channel.barrier()?;
    pe.write(0, Image::default().words(0))?;
    pe.channel.barrier()?;
    let mut has_stream = false;
    if pe.job.me == 0 {
        let [dst, src, word] = [area::DST, area::SRC, area::SIGNAL].map(|area| pe.at(area));
        let signal = StreamSignal { word: word as *mut u64, value: 1, kind: c::NLF_KIND_ADD };
        let (dst, src, bytes) = (dst as *mut u8, src as *const u8, 8 * threads as usize);
        let behind = |running: &dyn Running| {
            let Some(stream) = running.stream() else { return Ok(()) };
            has_stream = true;
            // SAFETY: a stream of the context that this thread has; nothing writes there again.
            unsafe {
                pe.channel.put_on_stream(dst, src, bytes, Some(signal), 1, stream)?;
                Ok(pe.channel.quiet_on_stream(stream)?)
            }
        };
        pe.kernel_and("stamp", Form::Thread, ROUNDS, 0, shape, behind)?;
    }
    pe.channel.barrier()?;
    let heaps = pe.job.allgather(&pe.read(0, HEAP)?)?;
    if has_stream {
        let mut image = Image::default();
        image.set_heap(1, &heaps[HEAP..2 * HEAP]);
        let put = |word| image.word(1, area::DST, word) == mix(word, ROUNDS);
        if !(0..threads).all(put) || image.word(1, area::SIGNAL, 0) != 1 {
            return Err(MachineError(String::from(
                "a put on a stream is not what its kernel wrote",
            )));
        }
    }
    Ok(has_stream)
}

/// Stores of PE 0's kernels to PE 1's memory, where they reach that: to the heap, and to memory of
/// `cuMemAlloc` where the heap is on a device. How many kinds of memory there were.
fn reaches(pe: &mut Pe<'_>) -> Result<usize, MachineError> {
    reach(pe, &format!("the heap on {:?}", pe.location))?;
    if pe.location == MemoryLocation::Host {
        return Ok(1);
    }
    let memory = pe.job.machine.fast(&vec![0; HEAP])?;
    // SAFETY: it stays until it is released, and is for this check.
    unsafe { pe.channel.register_symmetric(memory.addr as *mut u8, HEAP)? };
    let heap = std::mem::replace(&mut pe.heap, memory.addr);
    reach(pe, "memory of cuMemAlloc")?;
    pe.channel.release(memory.addr as *mut u8)?;
    pe.heap = heap;
    Ok(2)
}

fn reach(pe: &Pe<'_>, what: &str) -> Result<(), MachineError> {
    let (blocks, threads) = pe.job.machine.shape();
    let words = u64::from(blocks) * u64::from(threads);
    let content = |word| mix(word, 1) >> 1;
    pe.write(0, &vec![0; AREAS * AREA as usize])?;
    pe.write(area::SRC, &(0..words).map(content).collect::<Vec<_>>())?;
    pe.channel.barrier()?;
    let out = match pe.job.me {
        0 => pe.kernel("reach", Form::Thread, 1, 0, (blocks, threads))?.out,
        1 => pe.kernel("reached", Form::Thread, 1, 0, (blocks, threads))?.out,
        _ => vec![0; words as usize],
    };
    let bytes: Vec<u8> = out.iter().flat_map(|word| word.to_le_bytes()).collect();
    let told = pe.job.allgather(&bytes)?;
    let told: Vec<u64> = told
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let (there, found) = (&told[..words as usize], &told[words as usize..2 * words as usize]);
    let is_reached = there[0] != 0;
    let host = pe.channel.peer_ptr(pe.at(area::DST) as *const u8, 1) as u64;
    if pe.job.me == 0 {
        let answer =
            if is_reached { "reached" } else { "NULL; with NVSHMEM_DEBUG=INFO the log says why" };
        println!("nlf_ptr from PE 0 to {what} of PE 1: {answer}");
        if host != there[0] {
            let text =
                format!("kernels find {what} of PE 1 at {:#x}, the host at {host:#x}", there[0]);
            return Err(MachineError(text));
        }
    }
    for (word, (at, found)) in there.iter().zip(found).enumerate() {
        let (due, at_due) = match is_reached {
            true => (content(word as u64) + 1, there[0] + 8 * word as u64),
            false => (0, 0),
        };
        if (*at, *found) != (at_due, due) {
            return Err(MachineError(format!(
                "{what}: thread {word} reaches {at:#x}, not {at_due:#x}, and PE 1 has {found:#x}, not {due:#x}"
            )));
        }
    }
    pe.channel.barrier()?;
    Ok(())
}

fn one(pe: &Pe<'_>, check: &Check, form: Form, rings: u32) -> Result<(), MachineError> {
    let machine = pe.job.machine;
    let (blocks, threads) = machine.shape();
    let shape = check.shape_on(machine, form);
    let mut image = Image::default();
    models::prepare(check.kernel, &mut image, &shape);
    pe.channel.barrier()?;
    pe.write(0, image.words(pe.job.me))?;
    pe.channel.barrier()?;
    let kernel = match pe.job.me {
        0 => Some(check.kernel),
        1 => check.peer,
        // The others have a part in what is of all PEs.
        _ => check.peer.filter(|peer| *peer == check.kernel),
    };
    if let Some(kernel) = kernel {
        let bytes = check.bytes as usize;
        let told = pe.kernel(kernel, form, check.rounds, bytes, (blocks, threads))?;
        image.out = told.out;
        // A quiet on each ring, and no puts.
        pe.kernel("put_bandwidth", Form::Thread, 0, 0, (rings, 1))?;
    }
    pe.channel.barrier()?;
    let heaps = pe.job.allgather(&pe.read(0, HEAP)?)?;
    if pe.job.me != 0 {
        return Ok(());
    }
    const { assert!(HEAP == 8 * AREAS * AREA as usize) };
    for (heap, of) in heaps.chunks_exact(HEAP).zip(0..PES) {
        image.set_heap(of, heap);
    }
    models::check(check.kernel, &image, &shape).map_err(MachineError)
}
