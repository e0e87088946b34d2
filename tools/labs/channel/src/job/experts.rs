//! Experts: tokens go to the experts that a router has chosen for them, and come back, from one
//! kernel (`cuda/kernels/experts.cuh`). Every value that comes of it is compared with what it must
//! be.

use std::iter;

use channel_producer::Form;
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::job::measures::Naming;
use crate::job::pe::{Job, Pe};
use crate::machines::machine::MachineError;
use crate::models::mix;

/// Experts of a PE, and experts that are chosen for a token: `NLFX_EXPERTS` and `NLFX_CHOSEN` of
/// the kernel.
const EXPERTS: usize = 8;
const CHOSEN: usize = 8;

/// Bytes of a token before its values.
const HEAD: usize = 32;

/// Areas of the heap, as `NLFX_*` of the kernel.
mod area {
    pub(super) const ROUTER: usize = 0;
    pub(super) const OUTGOING: usize = 1;
    pub(super) const COMBINED: usize = 5;
    pub(super) const ARRIVED: usize = 6;
    pub(super) const BACK: usize = 7;
}

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Tokens of each PE.
    pub tokens: usize,
    /// Values of a token, a multiple of 4.
    pub values: usize,
    /// Rounds that are timed; one comes before them, in which PEs wait for one another to begin.
    pub rounds: u64,
    /// Blocks and threads of the kernel.
    pub shape: (u32, u32),
}

/// What a PE's router says in a round: experts for each token, all different, and a weight for
/// each.
struct Router {
    chosen: Vec<i16>,
    weights: Vec<f32>,
}

impl Router {
    fn new(seed: u64, tokens: usize, experts: usize) -> Self {
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        for token in 0..tokens {
            let mut all: Vec<i16> = (0..experts as i16).collect();
            for k in 0..CHOSEN {
                let random = mix(seed, (token * CHOSEN + k) as u64);
                all.swap(k, k + (random % (experts - k) as u64) as usize);
                chosen.push(all[k]);
                weights.push(((random >> 40) + 1) as f32 / (1 << 24) as f32);
            }
        }
        Self { chosen, weights }
    }

    /// How many tokens go to an expert.
    fn sent_to(&self, expert: usize) -> u64 {
        self.chosen.iter().filter(|chosen| **chosen == expert as i16).count() as u64
    }
}

/// A value of a token, from -32 to 31.
fn value(seed: u64, token: usize, at: usize) -> f32 {
    ((mix(seed ^ token as u64, at as u64) & 63) as i32 - 32) as f32
}

/// What an expert makes of a value.
fn factor(expert: i16) -> f32 {
    f32::from(1 + expert % 4)
}

/// The nearest bfloat16; of two as near, the even one.
fn bfloat16(wide: f32) -> u16 {
    let bits = wide.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A PE's part of all rounds, with a heap there. PE 0 prints the mean time of one.
///
/// # Errors
/// Something is wrong with the channel or the data.
pub fn run(
    job: &Job<'_>,
    location: MemoryLocation,
    naming: Naming<'_>,
    size: &Size,
) -> Result<(), MachineError> {
    let Size { tokens, values, rounds, .. } = *size;
    let n = job.n_pes as usize;
    // What is received takes most.
    let words = EXPERTS * n * tokens * (HEAD + 2 * values) / 8;
    let pe = job.open(location, (4, 4096), words)?;
    let mut time = 0.0;
    for round in 0..=rounds {
        let told = one(&pe, size, round)?;
        time += if round == 0 { 0.0 } else { told };
    }
    if job.me == 0 {
        let Naming { prefix, provider, .. } = naming;
        let heap = if location == MemoryLocation::Device { "device" } else { "host" };
        let mean = time / rounds as f64 / 1e3;
        println!("MEASURE {prefix}_experts_{heap}_{tokens}_tokens_us_{provider} {mean:.1}");
    }
    Ok(pe.channel.stop()?)
}

/// What a PE's random numbers begin with in a round.
fn seed(pe: usize, round: u64) -> u64 {
    mix(pe as u64, round)
}

/// A round: its time, in nanoseconds.
fn one(pe: &Pe<'_>, size: &Size, round: u64) -> Result<f64, MachineError> {
    let Size { tokens, values, shape, .. } = *size;
    let (n, me) = (pe.job.n_pes as usize, pe.job.me as usize);
    let routers: Vec<Router> =
        (0..n).map(|pe| Router::new(seed(pe, round), tokens, EXPERTS * n)).collect();
    let mine = &routers[me];

    let choices = mine.chosen.iter().flat_map(|expert| expert.to_le_bytes());
    let weights = mine.weights.iter().flat_map(|weight| weight.to_le_bytes());
    pe.write(area::ROUTER, &words(choices.chain(weights)))?;
    let token = |number: usize| {
        let chosen = &mine.chosen[number * CHOSEN..][..CHOSEN];
        let head = (number as i32).to_le_bytes().into_iter();
        let chosen: Vec<u8> = chosen.iter().flat_map(|expert| expert.to_le_bytes()).collect();
        let values = (0..values)
            .flat_map(move |at| bfloat16(value(seed(me, round), number, at)).to_le_bytes());
        head.chain(chosen).chain(iter::repeat_n(0, 12)).chain(values)
    };
    pe.write(area::OUTGOING, &words((0..tokens).flat_map(token)))?;
    pe.write(area::ARRIVED, &vec![0; EXPERTS * n])?;
    pe.write(area::BACK, &vec![0; EXPERTS * n])?;
    pe.channel.barrier()?;
    let told = pe.kernel("experts", Form::Block, tokens as u64, values, shape)?;
    // All that was to come is here when its kernel has ended, and nobody begins the next round
    // before the barrier.
    pe.channel.barrier()?;

    let failed = |what: String| Err(MachineError(format!("PE {me}, round {round}: {what}")));
    let all = 0..EXPERTS * n;
    let arrived: Vec<u64> =
        all.clone().map(|row| routers[row % n].sent_to(me * EXPERTS + row / n) + 1).collect();
    let back: Vec<u64> = all.map(|expert| mine.sent_to(expert) + 1).collect();
    for (area, expected) in [(area::ARRIVED, arrived), (area::BACK, back)] {
        let bytes = pe.read(area, 8 * expected.len())?;
        for (at, (word, expected)) in bytes.chunks_exact(8).zip(expected).enumerate() {
            if word != expected.to_le_bytes() {
                return failed(format!("word {at} of area {area}: {word:x?}, not {expected}"));
            }
        }
    }
    let combined = pe.read(area::COMBINED, 2 * tokens * values)?;
    for (at, got) in combined.chunks_exact(2).enumerate() {
        let (token, at) = (at / values, at % values);
        let sum = (token * CHOSEN..(token + 1) * CHOSEN).fold(0.0_f32, |sum, choice| {
            let part = value(seed(me, round), token, at) * factor(mine.chosen[choice]);
            mine.weights[choice].mul_add(part, sum)
        });
        if got != bfloat16(sum).to_le_bytes() {
            return failed(format!("value {at} of token {token}: {got:x?}, not that of {sum}"));
        }
    }
    Ok(told.time)
}

/// Bytes as words; the last one may be filled up.
fn words(bytes: impl Iterator<Item = u8>) -> Vec<u64> {
    let bytes: Vec<u8> = bytes.collect();
    let word = |piece: &[u8]| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_chooses_different_experts() {
        let router = Router::new(7, 50, 16);
        for chosen in router.chosen.chunks_exact(CHOSEN) {
            let mut sorted = chosen.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), CHOSEN, "{chosen:?}");
            assert!(sorted.iter().all(|expert| (0..16).contains(expert)));
        }
        let all: u64 = (0..16).map(|expert| router.sent_to(expert)).sum();
        assert_eq!(all, 50 * CHOSEN as u64);
        assert!(router.weights.iter().all(|weight| *weight > 0.0 && *weight <= 1.0));
    }

    #[test]
    fn bfloat16_is_rounded_to_the_nearest_and_even() {
        let bits = |wide: u32| bfloat16(f32::from_bits(wide));
        assert_eq!(bits(0x3f80_0000), 0x3f80);
        assert_eq!((bits(0x3f80_8000), bits(0x3f81_8000)), (0x3f80, 0x3f82));
        assert_eq!((bits(0x3f80_7fff), bits(0x3f80_8001)), (0x3f80, 0x3f81));
        assert_eq!(bfloat16(-32.0), 0xc200);
    }
}
