//! The order of closing, with libfabric's tables replaced.

use super::*;
use crate::objects::domain::tests::some_domain;
use crate::objects::tables;
use crate::provider::Provider;

#[test]
fn objects_close_once_children_first() {
    let domain = some_domain(Provider::Efa, |_| {});
    let mut endpoint = Endpoint::open(&domain, 16, 1, false).expect("an endpoint");
    let events = endpoint.events.as_ref().expect("efa has such errors").as_fid();
    // SAFETY: all open, and of this thread.
    let order = unsafe {
        [
            tables::watch(endpoint.as_fid()),
            tables::watch(endpoint.queue.as_fid()),
            tables::watch(endpoint.vector.as_fid()),
            tables::watch(events),
            tables::watch(domain.as_ptr().cast()),
            tables::watch(domain.fabric.as_ptr().cast()),
        ]
    };
    assert_eq!(endpoint.option(i32::MAX), None, "there is no such option");
    endpoint.close();
    assert_eq!(tables::closed(), order[..1]);
    drop(domain);
    assert_eq!(tables::closed(), [], "the endpoint has its domain");
    drop(endpoint);
    assert_eq!(tables::closed(), order[1..]);
}
