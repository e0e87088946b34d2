//! Fuzz targets: whatever reads bytes that others have written, under arbitrary bytes.
//!
//! A target panics when something is wrong, and only then. `tests/short.rs` runs all of them for a
//! moment, with what encoders write, with the corpus, and with both changed at random; `make fuzz`
//! runs them by libFuzzer, which changes what has led to code that nothing had led to before.
//!
//! The corpus of a target is `corpus/NAME.txt`: a line for each input, in hexadecimal digits.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a finding")]

mod descriptors;
mod frames;
mod handles;
mod handshake;
mod lane;
mod messages;
mod settings;
mod sysfs;

use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub short: u32,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Bytes of the longest input. scripts/fuzz.sh has the same number.
pub const LONGEST: usize = 2048;

pub const TARGETS: [Target; 10] = [
    messages::PLAIN,
    messages::STAGED,
    messages::RECORD,
    handles::TARGET,
    handshake::TARGET,
    frames::TARGET,
    descriptors::TARGET,
    settings::TARGET,
    sysfs::TARGET,
    lane::TARGET,
];

impl Target {
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Its inputs to begin with, and those of its corpus.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let text = std::fs::read_to_string(self.corpus()).unwrap_or_default();
        let lines = text.lines().map(|line| from_hex(line).expect("a line of hexadecimal digits"));
        (self.seeds)().into_iter().chain(lines).collect()
    }

    /// The file with its corpus. There is none before something was found worth keeping.
    pub fn corpus(&self) -> PathBuf {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        directory.join(self.name).with_extension("txt")
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(|pair| if pair.len() == 2 { byte(pair) } else { None }).collect()
}

/// So many bytes from a place on; zeros beyond the end.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|offset| bytes.get(at + offset).copied().unwrap_or(0))
}
