// What the rewritten code asks: whether a mutant is on. `MUTANT` is its number. With
// `MUTANTS_REACHED` none is on: it names a file with a byte for each mutant, which becomes 1 when
// the mutant is asked for. All processes of a test share the file, and it is right however they
// end.

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

const COUNT: usize = 0;
const NONE: u32 = u32::MAX;
const RECORDS: u32 = u32::MAX - 1;
const UNKNOWN: u32 = u32::MAX - 2;

static ON: AtomicU32 = AtomicU32::new(UNKNOWN);
/// The file's bytes, once `ON` is `RECORDS`.
static REACHED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

#[inline(always)]
pub fn on(mutant: u32) -> bool {
    let on = ON.load(Relaxed);
    on == mutant || on == RECORDS && record(mutant) || on == UNKNOWN && first(mutant)
}

#[cold]
fn record(mutant: u32) -> bool {
    let bytes = REACHED.load(Acquire);
    if !bytes.is_null() {
        // SAFETY: there are COUNT bytes, mapped for as long as the process lives, and the numbers
        // of mutants are below COUNT.
        unsafe { (*bytes.add(mutant as usize)).store(1, Relaxed) };
    }
    false
}

#[cold]
fn first(mutant: u32) -> bool {
    let on = match std::env::var_os("MUTANTS_REACHED").and_then(map) {
        Some(bytes) => {
            REACHED.store(bytes, Release);
            RECORDS
        }
        None => std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(NONE),
    };
    ON.store(on, Relaxed);
    self::on(mutant)
}

fn map(file: std::ffi::OsString) -> Option<*mut AtomicU8> {
    unsafe extern "C" {
        fn mmap(at: *mut c_void, len: usize, prot: i32, flags: i32, fd: i32, from: i64)
        -> *mut c_void;
    }
    const READ_WRITE: i32 = 3;
    const SHARED: i32 = 1;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).ok()?;
    // SAFETY: the mapping is a new one, and the file, made by who tries the mutants, is as long.
    let bytes = unsafe { mmap(null_mut(), COUNT, READ_WRITE, SHARED, file.as_raw_fd(), 0) };
    (bytes as isize != -1).then_some(bytes.cast())
}
