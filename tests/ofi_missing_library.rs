//! A libfabric that is not there. In a process of its own: one that has loaded a libfabric answers
//! that it has another already.

use nvshmem_transport_libfabric::ofi::{Discovery, OfiError};
use nvshmem_transport_libfabric::settings::{
    Devices, Progress, Provider, Settings, Threading, YieldWhen,
};

#[test]
fn a_missing_library_is_an_error_that_names_it() {
    let settings = Settings {
        provider: Provider::Auto,
        devices: Devices::Any,
        max_nic_per_pe: 16,
        progress: Progress::Auto,
        threading: Threading::Completion,
        queue_depth: 0,
        max_segment: 0,
        warn_after: None,
        fail_after: None,
        yield_when: YieldWhen::Auto,
        library: String::from("libfabric-of-nowhere.so.1"),
    };
    let error = Discovery::run(&settings, true).expect_err("no such library");
    assert!(matches!(error, OfiError::Load(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("libfabric-of-nowhere.so.1"), "{said}");
    assert!(said.contains("cannot open shared object file"), "the loader's own words: {said}");
    assert!(said.contains("install libfabric 1.17"), "{said}");
}
