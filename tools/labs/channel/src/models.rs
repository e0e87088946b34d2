//! Models of the kernels in `cuda/kernels/bodies.cuh`: the memory that each must leave, computed
//! from the promises of the device API.

use std::collections::BTreeMap;

use channel_sys as c;

use crate::image::{AREA, Image, PES};

/// Areas of the heap, as `NLFK_*` in the kernels.
pub(crate) mod area {
    pub(crate) const DST: usize = 0;
    pub(crate) const SRC: usize = 1;
    pub(crate) const SIGNAL: usize = 2;
    pub(crate) const SET: usize = 3;
    pub(crate) const ATOMIC: usize = 4;
    pub(crate) const RESULT: usize = 5;
    pub(crate) const EXTRA: usize = 7;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) threads: u64,
    pub(crate) members: u64,
    pub(crate) rounds: u64,
    /// Bytes of each operation, for kernels that leave that open.
    pub(crate) bytes: u64,
}

impl Shape {
    fn units(&self) -> u64 {
        self.threads / self.members
    }
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (b.wrapping_add(1)).wrapping_mul(0xd1b5_4a32_d192_ed03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

pub(crate) fn prepare(kernel: &str, image: &mut Image, shape: &Shape) {
    match kernel {
        "fetches" => {
            let t = shape.threads;
            image.set_word(1, area::ATOMIC, 3, 0x5a5a_5a5a);
            image.set_word(1, area::ATOMIC, 6, 7);
            image.set_half(1, area::EXTRA, 3, 0x5a5a_5a5a);
            image.set_half(1, area::EXTRA, 6, 7);
            for word in 0..t.div_ceil(64) {
                image.set_word(1, area::ATOMIC, 8 + 3 * word + 1, u64::MAX);
            }
            for word in 0..t.div_ceil(32) {
                image.set_half(1, area::EXTRA, 8 + 3 * word + 1, u32::MAX);
            }
        }
        "atomics" => {
            let n = shape.threads * shape.rounds;
            for pe in 0..PES {
                for word in 0..n.div_ceil(64) {
                    image.set_word(pe, area::ATOMIC, 1 + 3 * word + 1, u64::MAX);
                }
                for word in 0..n.div_ceil(32) {
                    image.set_half(pe, area::EXTRA, 1 + 3 * word + 1, u32::MAX);
                }
            }
        }
        "get" => {
            for pe in 0..PES {
                for word in 0..shape.threads * shape.rounds {
                    image.set_word(pe, area::SRC, word, mix(word, u64::from(pe)));
                }
            }
        }
        "put_bandwidth" | "ping_pong" => {
            for word in 0..AREA {
                image.set_word(0, area::SRC, word, mix(word, 3));
            }
        }
        _ => {}
    }
}

pub(crate) fn check(kernel: &str, image: &Image, shape: &Shape) -> Result<(), String> {
    match kernel {
        "put" => put(image, shape),
        "put_signal" => put_signal(image, shape),
        "signal" => signal(image, shape),
        "atomics" => atomics(image, shape),
        "fetches" => {
            fetches(image, shape, &Words::Eight)?;
            fetches(image, shape, &Words::Four)?;
            told(image, shape, 8)
        }
        "get" | "wait" | "words" => told(image, shape, shape.rounds),
        "fence" => fence(image, shape),
        "quiet" | "rings" => put(image, shape),
        "blocking" => blocking(image, shape),
        "barrier" => barrier(image, shape),
        "mixed" => mixed(image, shape),
        "errors" => errors(image),
        "put_bandwidth" => put_bandwidth(image, shape),
        "ping_pong" => ping_pong(image, shape),
        other => Err(format!("no model of {other}")),
    }
}

fn equal(what: impl Fn() -> String, found: u64, expected: u64) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{} is {found:#x}, not {expected:#x}", what()))
    }
}

fn area_is(
    image: &Image,
    area: usize,
    expected: impl Fn(u32, u64) -> u64,
    until: u64,
) -> Result<(), String> {
    for pe in 0..PES {
        for word in 0..until.min(AREA) {
            let what = || format!("word {word} of area {area} at PE {pe}");
            equal(what, image.word(pe, area, word), expected(pe, word))?;
        }
    }
    Ok(())
}

fn pe_of(number: u64) -> u32 {
    (number % u64::from(PES)) as u32
}

fn told(image: &Image, shape: &Shape, expected: u64) -> Result<(), String> {
    (0..shape.threads)
        .try_for_each(|t| equal(|| format!("what thread {t} counted"), image.out(t), expected))
}

fn put(image: &Image, shape: &Shape) -> Result<(), String> {
    let m = shape.members;
    let expected = |pe, word| if pe_of(word / m) == pe { mix(word / m, word % m) } else { 0 };
    let words = shape.threads * shape.rounds;
    area_is(
        image,
        area::DST,
        |pe, word| if word < words { expected(pe, word) } else { 0 },
        words + m,
    )
}

fn blocking(image: &Image, shape: &Shape) -> Result<(), String> {
    put(image, shape)?;
    let (m, count) = (shape.members, shape.units() * shape.rounds);
    let there = |pe, n| n < count && pe_of(n) == pe;
    let extra = |pe, word| if there(pe, word / m) { !mix(word / m, word % m) } else { 0 };
    area_is(image, area::EXTRA, extra, count * m + 1)?;
    area_is(image, area::SET, |pe, n| if there(pe, n) { n + 1 } else { 0 }, count + 1)?;
    told(image, shape, shape.rounds)
}

/// The round that PE 0 has told all PEs, and the rounds that it has heard of.
fn barrier(image: &Image, shape: &Shape) -> Result<(), String> {
    area_is(image, area::DST, |_, _| shape.rounds, 1)?;
    told(image, shape, shape.rounds * u64::from(PES))
}

fn value_of(n: u64) -> u64 {
    if n % 2 == 0 { n } else { mix(n, 1) | 1 << 63 }
}

fn signals(
    image: &Image,
    count: u64,
    sets: impl Fn(u64) -> bool,
    adds: impl Fn(u64) -> bool,
) -> Result<(), String> {
    let mut sums = BTreeMap::new();
    for n in (0..count).filter(|n| adds(*n)) {
        let sum = sums.entry((pe_of(n), n % 16)).or_insert(0u64);
        *sum = sum.wrapping_add(value_of(n));
    }
    area_is(image, area::SIGNAL, |pe, word| sums.get(&(pe, word)).copied().unwrap_or(0), 17)?;
    let set = |pe, n| if n < count && sets(n) && pe_of(n) == pe { value_of(n) } else { 0 };
    area_is(image, area::SET, set, count + 1)
}

fn put_signal(image: &Image, shape: &Shape) -> Result<(), String> {
    let (m, count) = (shape.members, shape.units() * shape.rounds);
    let expected = |pe, word| {
        let n = word / m;
        if n < count && n % 7 != 0 && pe_of(n) == pe { mix(n, word % m) } else { 0 }
    };
    area_is(image, area::DST, expected, count * m + 1)?;
    signals(image, count, |n| n % 3 == 0, |n| n % 3 != 0)
}

fn signal(image: &Image, shape: &Shape) -> Result<(), String> {
    signals(image, shape.units() * shape.rounds, |_| true, |_| true)
}

enum Words {
    Four,
    Eight,
}

impl Words {
    fn bits(&self) -> u64 {
        match self {
            Words::Four => 32,
            Words::Eight => 64,
        }
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    fn word(&self, image: &Image, pe: u32, index: u64) -> u64 {
        match self {
            Words::Four => u64::from(image.half(pe, area::EXTRA, index)),
            Words::Eight => image.word(pe, area::ATOMIC, index),
        }
    }

    fn result(&self, image: &Image, index: u64) -> u64 {
        match self {
            Words::Four => u64::from(image.half(0, area::DST, index)),
            Words::Eight => image.word(0, area::RESULT, index),
        }
    }
}

fn atomics(image: &Image, shape: &Shape) -> Result<(), String> {
    let count = shape.threads * shape.rounds;
    for words in [Words::Eight, Words::Four] {
        let bits = words.bits();
        for pe in 0..PES {
            let mine = |n: &u64| pe_of(*n) == pe;
            let sum = (0..count).filter(mine).fold(0u64, |sum, n| sum.wrapping_add(mix(n, 0)));
            let what = |what: &str, n: u64| format!("{what} {n} of {bits} bits at PE {pe}");
            equal(|| what("sum", 0), words.word(image, pe, 0), sum & words.mask())?;
            for group in 0..count.div_ceil(bits) {
                let numbers = group * bits..((group + 1) * bits).min(count);
                let set = numbers.filter(mine).fold(0u64, |set, n| set | 1 << (n % bits));
                let at = |which| words.word(image, pe, 1 + 3 * group + which);
                equal(|| what("or", group), at(0), set)?;
                equal(|| what("and", group), at(1), !set & words.mask())?;
                equal(|| what("xor", group), at(2), set)?;
            }
            for n in 0..count {
                let own = words.word(image, pe, 1 + 3 * (count / bits + 1) + n);
                let expected = if mine(&n) { mix(n, 2) & words.mask() } else { 0 };
                equal(|| what("word set by", n), own, expected)?;
            }
        }
    }
    Ok(())
}

fn same_set(what: &str, mut found: Vec<u64>, expected: Vec<u64>) -> Result<(), String> {
    found.sort_unstable();
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:x?}, not {expected:x?}")) }
}

fn fetches(image: &Image, shape: &Shape, words: &Words) -> Result<(), String> {
    let t = shape.threads;
    let bits = words.bits();
    let results = |which: u64| (0..t).map(move |thread| words.result(image, 8 * thread + which));
    for (which, word) in [(0, 0), (7, 4)] {
        same_set("results of fetch_add", results(which).collect(), (0..t).collect())?;
        equal(|| String::from("the sum"), words.word(image, 1, word), t)?;
    }
    for thread in 0..t {
        let bit = 1 << (thread % bits);
        let result = |which| words.result(image, 8 * thread + which) & bit;
        equal(|| format!("what fetch_or had for {thread}"), result(1), 0)?;
        equal(|| format!("what fetch_and had for {thread}"), result(2), bit)?;
        equal(|| format!("what fetch_xor had for {thread}"), result(3), 0)?;
    }
    for group in 0..t.div_ceil(bits) {
        let numbers = group * bits..((group + 1) * bits).min(t);
        let set = numbers.fold(0u64, |set, n| set | 1 << (n % bits));
        let at = |which| words.word(image, 1, 8 + 3 * group + which);
        equal(|| format!("or {group}"), at(0), set)?;
        equal(|| format!("and {group}"), at(1), !set & words.mask())?;
        equal(|| format!("xor {group}"), at(2), set)?;
    }
    let mut swapped: Vec<u64> = results(4).collect();
    swapped.push(words.word(image, 1, 1));
    same_set("what was swapped", swapped, (0..=t).collect())?;
    let winner = words.word(image, 1, 2);
    if winner == 0 || winner > t {
        return Err(format!("compare_swap left {winner}"));
    }
    for (thread, old) in results(5).enumerate() {
        let expected = if thread as u64 + 1 == winner { 0 } else { winner };
        equal(|| format!("what compare_swap had for {thread}"), old, expected)?;
    }
    equal(|| String::from("the word of blocking compare_swap"), words.word(image, 1, 6), 8)
}

fn fence(image: &Image, shape: &Shape) -> Result<(), String> {
    let units = shape.units();
    let mine = |pe, unit: u64| unit < units && pe_of(unit) == pe;
    let last = |pe, unit| if mine(pe, unit) { mix(unit, shape.rounds - 1) } else { 0 };
    area_is(image, area::DST, last, units + 1)?;
    area_is(image, area::SET, |pe, unit| if mine(pe, unit) { shape.rounds } else { 0 }, units + 1)
}

fn mixed(image: &Image, shape: &Shape) -> Result<(), String> {
    let count = shape.threads * shape.rounds;
    let mut put = BTreeMap::new();
    let mut sums = [[0u64; 6]; PES as usize];
    for n in 0..count {
        let r = mix(n, 77);
        let pe = pe_of(r >> 8);
        let turn = (r % 6) as usize;
        if turn < 3 {
            put.insert((pe, n), mix(n, 5));
        }
        let sum = &mut sums[pe as usize][turn];
        let value = [0, n, r | 1 << 60, n, 1, 1][turn];
        *sum = sum.wrapping_add(value);
    }
    area_is(image, area::DST, |pe, n| put.get(&(pe, n)).copied().unwrap_or(0), count + 1)?;
    area_is(image, area::ATOMIC, |pe, word| sums[pe as usize][word as usize], 6)?;
    // The fetched numbers of each PE are all up to its count, once each.
    let fetched = sums.iter().map(|sums| sums[4] * sums[4].saturating_sub(1) / 2).sum();
    let told = (0..shape.threads).map(|thread| image.out(thread)).sum();
    equal(|| String::from("the sum of what was fetched"), told, fetched)
}

const REFUSED: [u32; 27] = [
    c::NLF_ERROR_PE,
    c::NLF_ERROR_PE,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_LENGTH,
    c::NLF_ERROR_ALIGNMENT,
    c::NLF_ERROR_KIND,
    c::NLF_ERROR_KIND,
    c::NLF_ERROR_ALIGNMENT,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_PE,
    c::NLF_ERROR_KIND,
    c::NLF_ERROR_KIND,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_PE,
    c::NLF_ERROR_ADDRESS,
    c::NLF_ERROR_PE,
    c::NLF_ERROR_PE,
    c::NLF_ERROR_KIND,
    c::NLF_ERROR_KIND,
    c::NLF_OK,
    c::NLF_OK,
    c::NLF_OK,
    c::NLF_OK,
    c::NLF_OK,
];

fn errors(image: &Image) -> Result<(), String> {
    for (thread, code) in REFUSED.iter().enumerate() {
        let told = image.out(thread as u64);
        equal(|| format!("what wrong call {thread} was answered"), told, u64::from(*code))?;
    }
    Ok(())
}

fn put_bandwidth(image: &Image, shape: &Shape) -> Result<(), String> {
    let words = shape.bytes / 8 * shape.units();
    let expected = |pe, word| if pe == 1 && word < words { mix(word, 3) } else { 0 };
    area_is(image, area::DST, expected, words + 1)
}

fn ping_pong(image: &Image, shape: &Shape) -> Result<(), String> {
    let words = shape.bytes / 8;
    let expected = |pe, word| if pe == 1 && word < words { mix(word, 3) } else { 0 };
    area_is(image, area::DST, expected, words + 1)?;
    area_is(image, area::SIGNAL, |pe, word| if pe < 2 && word == 0 { shape.rounds } else { 0 }, 2)
}
