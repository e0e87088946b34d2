//! Finding the driver: there, not there, not a driver, old.

use std::path::Path;

use cuda::{Driver, LoadError};
use test_support::built::compile;

use crate::bed::{self, count};
use crate::prelude::*;

cases! {
    None: process_without_cuda_has_no_driver, missing_library_is_named,
        library_without_driver_is_named, old_driver_serves, incomplete_driver_is_refused;
    Unstarted: unstarted_cuda_is_left_alone;
    Any: driver_of_the_process_is_found;
    Fake ("CUDA_MODULE_LOADING" = "EAGER"): eager_kernel_loading_is_known;
}

fn process_without_cuda_has_no_driver() {
    let error = Driver::of_process().expect_err("nothing has loaded it");
    assert!(matches!(error, LoadError::NotInUse { .. }), "{error:?}");
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    Driver::of_process().expect_err("still");
}

fn missing_library_is_named() {
    refused(
        Driver::load("libcuda-of-nowhere.so.1"),
        &["libcuda-of-nowhere.so.1", "cannot open shared object file"],
    );
}

fn library_without_driver_is_named() {
    let error = Driver::load("libm.so.6").expect_err("that is no driver");
    assert!(matches!(error, LoadError::Symbol { symbol: "cuInit", .. }), "{error:?}");
    assert!(error.to_string().contains("libm.so.6"), "{error}");
}

fn build_old(name: &str, arguments: &[&str]) -> String {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/old_cuda.c");
    compile(&library, Path::new(source), &[&["-shared", "-fPIC"], arguments].concat());
    library.to_string_lossy().into_owned()
}

fn old_driver_serves() {
    let path = build_old("libcuda-old.so.1", &[]);
    let driver = Driver::load(&path).expect("it has what is needed");
    assert_eq!(driver.version().to_string(), "11.4");
    let said = driver.to_string();
    let (_, missing) = said.split_once("without").expect("it lacks some");
    for function in ["cuStreamWriteValue64_v2", "cuMemGetHandleForAddressRange", "cuMemGetAccess"] {
        assert!(missing.contains(function), "{missing}");
    }
    let context = Context::primary(driver, Ordinal(0)).expect("it answers");
    refused(
        flush_writes(&context),
        &["cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_NOT_SUPPORTED", "driver 11.4"],
    );
    let again = Driver::load(&path).expect("it is open");
    assert!(std::ptr::eq(driver, again), "opened once");
}

fn incomplete_driver_is_refused() {
    let path = build_old("libcuda-incomplete.so.1", &["-DMISSING"]);
    let error = Driver::load(&path).expect_err("it lacks one");
    assert!(matches!(error, LoadError::Symbol { symbol: "cuMemcpyDtoHAsync_v2", .. }), "{error:?}");
}

fn unstarted_cuda_is_left_alone() {
    let raw = bed::open().expect("the fake driver");
    let driver = Driver::of_process().expect("it is loaded");
    let bytes = [1_u8; 64];
    let addr = bytes.as_ptr() as usize;
    let pointer = Pointer::of(driver, addr).expect("host memory needs no CUDA");
    assert_eq!(pointer.kind, Kind::Host);
    assert!(matches!(Memory::examine(driver, addr, 64), Ok(Memory::Host(Kind::Host))));
    assert_eq!(count(&raw, 0), 0, "cuInit was called");
    assert_eq!(count(&raw, 1), 0, "a context was made");
    refused(Context::primary(driver, Ordinal(0)), &["CUDA_ERROR_NOT_INITIALIZED (3)"]);
    driver.initialise().expect("now it is");
    assert_eq!(count(&raw, 0), 1);
    // Asking about host memory makes no context.
    assert_eq!(Pointer::of(driver, addr).expect("it answers").kind, Kind::Host);
    assert_eq!(count(&raw, 1), 0, "a context was made");
}

fn driver_of_the_process_is_found(bed: &Bed) {
    println!("{}", bed.driver);
    assert!(std::ptr::eq(bed.driver, Driver::of_process().expect("the same")));
    if bed.is_fake() {
        assert_eq!(bed.driver.version().to_string(), "13.0");
        assert!(!bed.driver.to_string().contains("without"), "{}", bed.driver);
        assert!(bed.driver.loads_kernels_lazily(), "which it does by default");
    }
}

fn eager_kernel_loading_is_known(bed: &Bed) {
    assert!(!bed.driver.loads_kernels_lazily());
}
