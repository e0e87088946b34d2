//! A libfabric that is not there. In a process of its own: one that has loaded a libfabric answers
//! that it has another already.

use nvshmem_transport_libfabric::ofi::{Discovery, MemoryKinds, OfiError};
use nvshmem_transport_libfabric::settings::Settings;

#[test]
fn a_missing_library_is_an_error_that_names_it() {
    let settings =
        Settings { library: String::from("libfabric-of-nowhere.so.1"), ..Settings::default() };
    let error = Discovery::run(&settings, true, MemoryKinds::Host).expect_err("no such library");
    assert!(matches!(error, OfiError::Load(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("libfabric-of-nowhere.so.1"), "{said}");
    assert!(said.contains("cannot open shared object file"), "the loader's own words: {said}");
    assert!(said.contains("install libfabric 1.17"), "{said}");
}
