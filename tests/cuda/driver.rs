//! Finding the driver: there, not there, not a driver, old.

use std::path::PathBuf;
use std::process::Command;

use cuda::{Context, Driver, Kind, LoadError, Memory, Ordinal, Pointer, flush_writes};

use crate::bed::case::Case;
use crate::bed::{self, Bed, count};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::none("a_process_without_cuda_has_no_driver", absent),
        Case::none("a_library_that_is_not_there_is_named", missing),
        Case::none("a_library_that_is_no_driver_is_named", wrong),
        Case::none("an_old_driver_serves_without_what_it_lacks", old),
        Case::none("a_driver_without_a_needed_function_is_refused", incomplete),
        Case::fake("a_process_that_has_not_started_cuda_is_left_alone", not_started),
        Case::any("the_driver_of_the_process_is_found", found),
        Case::fake("a_driver_that_loads_kernels_at_once_is_known", eager)
            .with(&[("CUDA_MODULE_LOADING", "EAGER")]),
    ]
}

fn absent() {
    let error = Driver::of_process().expect_err("nothing has loaded it");
    assert!(matches!(error, LoadError::NotInUse { .. }), "{error:?}");
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    // A program may load it later.
    Driver::of_process().expect_err("still");
}

fn missing() {
    let error = Driver::load("libcuda-of-nowhere.so.1").expect_err("no such library");
    let said = error.to_string();
    assert!(said.contains("libcuda-of-nowhere.so.1"), "{said}");
    assert!(said.contains("cannot open shared object file"), "the loader's own words: {said}");
}

fn wrong() {
    let error = Driver::load("libm.so.6").expect_err("that is no driver");
    assert!(matches!(error, LoadError::Symbol { symbol: "cuInit", .. }), "{error:?}");
    assert!(error.to_string().contains("libm.so.6"), "{error}");
}

fn build_old(name: &str, arguments: &[&str]) -> String {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/old_cuda.c");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(arguments);
    let built = command.status().expect("a C compiler");
    assert!(built.success(), "{command:?}: {built}");
    library.to_string_lossy().into_owned()
}

fn old() {
    let path = build_old("libcuda-old.so.1", &[]);
    let driver = Driver::load(&path).expect("it has what is needed");
    assert_eq!(driver.version().to_string(), "11.4");
    let said = driver.to_string();
    let (_, missing) = said.split_once("without").expect("it lacks some");
    for function in ["cuStreamWriteValue64_v2", "cuMemGetHandleForAddressRange", "cuMemGetAccess"] {
        assert!(missing.contains(function), "{missing}");
    }
    let context = Context::primary(driver, Ordinal(0)).expect("it answers");
    let error = flush_writes(&context).expect_err("it has no such function");
    let said = error.to_string();
    for part in ["cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_NOT_SUPPORTED", "driver 11.4"] {
        assert!(said.contains(part), "{said}");
    }
    let again = Driver::load(&path).expect("it is open");
    assert!(std::ptr::eq(driver, again), "opened once");
}

fn incomplete() {
    let path = build_old("libcuda-incomplete.so.1", &["-DMISSING"]);
    let error = Driver::load(&path).expect_err("it lacks one");
    assert!(matches!(error, LoadError::Symbol { symbol: "cuMemcpyDtoHAsync_v2", .. }), "{error:?}");
}

fn not_started() {
    let raw = bed::open().expect("the fake driver");
    let driver = Driver::of_process().expect("it is loaded");
    let bytes = [1_u8; 64];
    let addr = bytes.as_ptr() as usize;
    let pointer = Pointer::of(driver, addr).expect("host memory needs no CUDA");
    assert_eq!(pointer.kind, Kind::Host);
    assert!(matches!(Memory::examine(driver, addr, 64), Ok(Memory::Host(Kind::Host))));
    assert_eq!(count(&raw, 0), 0, "cuInit was called");
    assert_eq!(count(&raw, 1), 0, "a context was made");
    let error = Context::primary(driver, Ordinal(0)).expect_err("CUDA was not started");
    assert!(error.to_string().contains("CUDA_ERROR_NOT_INITIALIZED (3)"), "{error}");
    driver.initialise().expect("now it is");
    assert_eq!(count(&raw, 0), 1);
    // Asking about host memory makes no context.
    assert_eq!(Pointer::of(driver, addr).expect("it answers").kind, Kind::Host);
    assert_eq!(count(&raw, 1), 0, "a context was made");
}

fn found() {
    let bed = Bed::new();
    println!("{}", bed.driver);
    assert!(std::ptr::eq(bed.driver, Driver::of_process().expect("the same")));
    if bed.is_fake() {
        assert_eq!(bed.driver.version().to_string(), "13.0");
        assert!(!bed.driver.to_string().contains("without"), "{}", bed.driver);
        assert!(bed.driver.loads_kernels_lazily(), "which it does by default");
    }
}

fn eager() {
    assert!(!Bed::new().driver.loads_kernels_lazily());
}
