//! What is asked of an endpoint, with libfabric's tables replaced, and the order of closing.

use std::cell::Cell;
use std::ffi::c_int;

use super::*;
use crate::data_path::some_rail;
use crate::objects::domain::tests::some_domain;
use crate::objects::tables;
use crate::provider::Provider;

thread_local! {
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
    static NAME: Cell<usize> = const { Cell::new(0) };
}

/// Whoever asks is told how much room an address takes, by an error or without one.
unsafe extern "C" fn getname(_: *mut fid, into: *mut c_void, len: *mut usize) -> c_int {
    let takes = NAME.get();
    // SAFETY: room for as much as is said.
    unsafe {
        let room = std::mem::replace(&mut *len, takes);
        into.cast::<u8>().write_bytes(0xf1, room.min(takes));
        if room < takes || ANSWER.get() == -libc::EIO { ANSWER.get() } else { 0 }
    }
}

#[test]
fn addresses_of_any_length_are_read() {
    let rail = some_rail(Provider::TcpRxm);
    let raw = rail.endpoint.object.as_ptr();
    // SAFETY: open, and of this thread.
    unsafe { tables::change(&raw mut (*raw).cm, |table| table.getname = Some(getname)) };
    for (takes, too_small) in
        [(127, 0), (128, 0), (129, 0), (300, 0), (300, -(FI_ETOOSMALL as c_int))]
    {
        NAME.set(takes);
        ANSWER.set(too_small);
        assert_eq!(name_of(&rail.domain, raw), Ok(vec![0xf1; takes]), "{takes} {too_small}");
    }
    NAME.set(16);
    ANSWER.set(-libc::EIO);
    assert_eq!(name_of(&rail.domain, raw).expect_err("refused").code, libc::EIO);
}

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
    endpoint.close();
    assert_eq!(tables::closed(), order[..1]);
    drop(domain);
    assert_eq!(tables::closed(), [], "the endpoint has its domain");
    drop(endpoint);
    assert_eq!(tables::closed(), order[1..]);
}
