//! Loading: what is said when there is nothing to load, and what is had when there is.

use libfabric_sys::{
    DEFAULT_LIBRARY, FI_EAGAIN, FI_EAVAIL, FI_ENODATA, FI_TYPE_VERSION, Library, LoadError,
    MINIMUM_VERSION, NEWEST_API, Version,
};

/// One test, because a process has one libfabric: the order of the steps matters.
#[test]
fn process_has_one_library() {
    let missing = Library::load("/nonexistent/libfabric.so.1").unwrap_err();
    assert!(matches!(missing, LoadError::Open { .. }), "{missing:?}");
    let said = missing.to_string();
    assert!(said.contains("/nonexistent/libfabric.so.1"), "{said}");
    assert!(said.contains("No such file"), "the dynamic loader's text is missing: {said}");
    assert!(said.contains("1.17"), "{said}");

    let stranger = Library::load("libc.so.6").unwrap_err();
    assert!(
        matches!(stranger, LoadError::Symbol { symbol: "fi_version", .. }),
        "libc is no libfabric: {stranger:?}"
    );

    // The failures above are not remembered.
    let library = Library::load(DEFAULT_LIBRARY).expect("libfabric is installed");
    assert!(library.version() >= MINIMUM_VERSION);
    // Whatever headers the builder's machine has or lacks.
    assert_eq!(library.api_version(), library.version().min(NEWEST_API));
    assert!(NEWEST_API >= Version::new(1, 20), "device memory cannot be registered");
    assert_eq!(library.path(), DEFAULT_LIBRARY);
    let again = Library::load(DEFAULT_LIBRARY).expect("the same one again");
    assert!(std::ptr::eq(library, again));

    let other = Library::load("/elsewhere/libfabric.so.1").unwrap_err();
    let said = other.to_string();
    assert!(matches!(other, LoadError::AlreadyLoaded { .. }), "{other:?}");
    assert!(said.contains("/elsewhere/libfabric.so.1") && said.contains(DEFAULT_LIBRARY), "{said}");

    assert_eq!(library.strerror(-FI_EAGAIN), library.strerror(FI_EAGAIN));
    assert_ne!(library.strerror(FI_ENODATA), library.strerror(FI_EAVAIL as i32));
    // SAFETY: FI_TYPE_VERSION prints libfabric's version; the pointer need only not be null.
    let version = unsafe { library.tostr((&raw const library).cast(), FI_TYPE_VERSION) };
    assert!(version.contains(&library.version().to_string()), "{version}");

    // SAFETY: null is allowed; what is made of it is freed once.
    unsafe {
        let hints = (library.dupinfo)(std::ptr::null());
        assert!(!hints.is_null());
        (library.freeinfo)(hints);
    }
}
