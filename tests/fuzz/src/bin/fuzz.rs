//! The program that libFuzzer runs: the target that `FUZZ_TARGET` names, whose inputs it first
//! writes to the directory `FUZZ_INPUTS`, if that is set. `scripts/fuzz.sh` builds and starts it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use nvshmem_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn begin() {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let target = Target::named(&name).expect("FUZZ_TARGET names a target that there is");
    if let Some(directory) = std::env::var_os("FUZZ_INPUTS") {
        let directory = std::path::PathBuf::from(directory);
        for (at, input) in target.inputs().iter().enumerate() {
            std::fs::write(directory.join(format!("{at}")), input).expect("an input is written");
        }
    }
    TARGET.set(target).expect("it begins once");
}

fuzz_target!(
    init: begin(),
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(input);
        }
    }
);
