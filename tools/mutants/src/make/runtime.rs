// What the rewritten code asks: whether a mutant is on. `MUTANT` is its number; with
// `MUTANTS_REACHED` none is on, and the numbers of those that were asked for are in the file of
// that name when the process ends.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const NONE: u32 = u32::MAX;
const RECORDS: u32 = u32::MAX - 1;
const UNKNOWN: u32 = u32::MAX - 2;

static ON: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

#[inline(always)]
pub fn on(mutant: u32) -> bool {
    let on = ON.load(Relaxed);
    on == mutant || on == RECORDS && record(mutant) || on == UNKNOWN && first(mutant)
}

#[cold]
fn record(mutant: u32) -> bool {
    REACHED[mutant as usize].store(true, Relaxed);
    false
}

#[cold]
fn first(mutant: u32) -> bool {
    let on = std::env::var("MUTANT").ok().and_then(|text| text.parse().ok());
    let records = std::env::var_os("MUTANTS_REACHED").is_some();
    if records && ON.compare_exchange(UNKNOWN, RECORDS, Relaxed, Relaxed).is_ok() {
        unsafe extern "C" {
            safe fn atexit(end: extern "C" fn()) -> i32;
        }
        atexit(tell);
    }
    if !records {
        ON.store(on.unwrap_or(NONE), Relaxed);
    }
    self::on(mutant)
}

extern "C" fn tell() {
    let numbers = (0..COUNT).filter(|at| REACHED[*at].load(Relaxed)).map(|at| at.to_string());
    let numbers = numbers.collect::<Vec<_>>().join("\n");
    let file = std::env::var_os("MUTANTS_REACHED").expect("it was there");
    std::fs::write(file, numbers).expect("a file that can be written");
}
