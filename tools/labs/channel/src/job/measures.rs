//! Measures between PEs 0 and 1: one way, bytes and puts a second.

use channel_producer::Form;
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::job::pe::{Job, Pe};
use crate::machines::machine::MachineError;
use crate::models::area;

/// Words in an area of the heap: 4 MiB.
const AREA: usize = 1 << 19;

/// How measures are called, and how much of what a GPU has to do is enough: one part in `share`.
#[derive(Clone, Copy, Debug)]
pub struct Naming<'a> {
    /// The beginning of their names.
    pub prefix: &'a str,
    /// At the end of names, of measures of device memory.
    pub provider: &'a str,
    /// See above.
    pub share: u64,
}

/// A PE's part of all measures with a heap there. PE 0 prints.
///
/// # Errors
/// Something is wrong with the channel or the data.
pub fn run(
    job: &Job<'_>,
    location: MemoryLocation,
    naming: Naming<'_>,
) -> Result<(), MachineError> {
    let pe = job.open(location, (4, 4096), AREA)?;
    let Naming { prefix, provider, share } = naming;
    let told = |name: String, value: f64| {
        if job.me == 0 {
            println!("MEASURE {name} {value:.3}");
        }
    };
    let on_device = location == MemoryLocation::Device;
    for (bytes, rounds) in [(8, 2000), (4096, 1000), (1 << 20, 100)] {
        let time = ping_pong(&pe, bytes, rounds / share)? / 2.0;
        if on_device {
            told(format!("channel_device_put_signal_{}_ns_{provider}", short(bytes)), time);
        } else {
            told(format!("{prefix}_put_signal_{bytes}_bytes_one_way_us"), time / 1e3);
        }
    }
    for bytes in [4096_usize, 65_536, 1 << 20] {
        let rounds = ((256 << 20) / bytes).min(4000) as u64 / share;
        let rate = bandwidth(&pe, 1, bytes, rounds)? * bytes as f64 / 1e9;
        if on_device {
            told(format!("channel_device_put_{}_GBs_{provider}", short(bytes)), rate);
        } else {
            told(format!("{prefix}_put_bandwidth_{bytes}_bytes_GBs"), rate);
        }
    }
    for threads in [1, 32, 256] {
        let rate = bandwidth(&pe, threads, 8, (20_000 / u64::from(threads) + 200) / share)?;
        if on_device {
            told(format!("channel_device_puts_8B_{threads}_threads_per_second_{provider}"), rate);
        } else {
            told(format!("{prefix}_puts_8_bytes_{threads}_threads_per_second"), rate);
        }
    }
    Ok(pe.channel.stop()?)
}

/// A length as names of measures have it.
fn short(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{}KiB", bytes >> 10),
        _ => format!("{}MiB", bytes >> 20),
    }
}

/// The word at a place of what a PE puts in a round of measuring.
fn content(pe: u32, salt: usize, index: usize) -> u64 {
    (u64::from(pe) << 56)
        ^ ((salt as u64) << 40)
        ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Fills the first `words` of the source, and empties what peers write to.
fn prepare(pe: &Pe<'_>, salt: usize, words: usize) -> Result<(), MachineError> {
    pe.channel.barrier()?;
    let source: Vec<u64> = (0..words).map(|index| content(pe.job.me, salt, index)).collect();
    pe.write(area::SRC, &source)?;
    pe.write(area::DST, &vec![0; words])?;
    pe.write(area::SIGNAL, &[0; 16])?;
    Ok(pe.channel.barrier()?)
}

/// Whether what the peer has put is here.
fn verify(pe: &Pe<'_>, salt: usize, words: usize) -> Result<(), MachineError> {
    let me = pe.job.me;
    let bytes = pe.read(area::DST, 8 * words)?;
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let expected = content(1 - me, salt, index);
        if word != expected.to_le_bytes() {
            return Err(MachineError(format!(
                "PE {me}: word {index} of {words} is {word:x?}, not {expected:#x}"
            )));
        }
    }
    Ok(())
}

/// Nanoseconds of a round: there and back.
fn ping_pong(pe: &Pe<'_>, bytes: usize, rounds: u64) -> Result<f64, MachineError> {
    let mut time = 0.0;
    // The first one connects, and loads code.
    for rounds in [rounds / 10 + 1, rounds] {
        prepare(pe, bytes, bytes / 8)?;
        let told = pe.kernel("ping_pong", Form::Thread, rounds, bytes, (1, 1))?;
        time = told.time / rounds as f64;
        pe.channel.barrier()?;
        verify(pe, bytes, bytes / 8)?;
    }
    Ok(time)
}

/// Puts a second from PE 0 to PE 1, delivered.
fn bandwidth(pe: &Pe<'_>, threads: u32, bytes: usize, rounds: u64) -> Result<f64, MachineError> {
    let words = threads as usize * bytes / 8;
    let warp = pe.job.machine.warp().min(threads);
    let mut rate = 0.0;
    for rounds in [rounds / 10 + 1, rounds] {
        prepare(pe, bytes + 1, words)?;
        if pe.job.me == 0 {
            let shape = (threads / warp, warp);
            let told = pe.kernel("put_bandwidth", Form::Thread, rounds, bytes, shape)?;
            rate = rounds as f64 * f64::from(threads) * 1e9 / told.time;
        }
        pe.channel.barrier()?;
        if pe.job.me == 1 {
            verify(pe, bytes + 1, words)?;
        }
    }
    Ok(rate)
}
