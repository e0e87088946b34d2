//! What an endpoint is told and asked for, with libfabric's tables replaced.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, fi_eq_err_entry, fi_info, fid_domain};

use super::*;
use crate::data_path::some_rail;
use crate::objects::domain::tests::{some_domain, without_devices};
use crate::objects::tables;
use crate::provider::Provider;

type OpenEndpoint =
    unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;

thread_local! {
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
    static TOLD: RefCell<Vec<(u32, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
    static OPEN: Cell<Option<OpenEndpoint>> = const { Cell::new(None) };
    static NAME: Cell<usize> = const { Cell::new(0) };
    static EVENTS: RefCell<Vec<isize>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn setopt(
    _: *mut fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    assert_eq!(level, FI_OPT_ENDPOINT as c_int);
    // SAFETY: so many bytes.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) }.to_vec();
    TOLD.with_borrow_mut(|told| told.push((option as u32, value)));
    ANSWER.get()
}

unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    let own = OPEN.get().expect("the provider's");
    // SAFETY: the provider's own, with what it takes; the endpoint is new.
    unsafe {
        let code = without_devices(info, || own(domain, info, endpoint, context));
        assert_eq!(code, 0);
        tables::change(&raw mut (**endpoint).ops, |table| table.setopt = Some(setopt));
        code
    }
}

#[test]
fn endpoint_is_told_what_to_do_without() {
    const UNSUPPORTED: c_int = -FI_EOPNOTSUPP;
    let cuda = (FI_OPT_CUDA_API_PERMITTED, vec![0]);
    let sharing = (FI_OPT_SHARED_MEMORY_PERMITTED, vec![0]);
    let unknown = -libc::ENOPROTOOPT;
    for (provider, devices, answer, told) in [
        (Provider::TcpRxm, false, 0, vec![]),
        (Provider::Efa, false, unknown, vec![sharing.clone()]),
        (Provider::Efa, true, 0, vec![cuda.clone(), sharing]),
        (Provider::Cxi, true, 0, vec![]),
        (Provider::TcpRxm, true, UNSUPPORTED, vec![cuda.clone()]),
        (Provider::TcpRxm, true, unknown, vec![cuda]),
    ] {
        let domain = some_domain(provider, devices, |_| {});
        ANSWER.set(answer);
        // SAFETY: open, and of this thread.
        unsafe {
            tables::change(&raw mut (*domain.as_ptr()).ops, |table| {
                OPEN.set(table.endpoint);
                table.endpoint = Some(open);
            });
        }
        let endpoint = Endpoint::open(&domain, 16, 1, false).expect("an endpoint");
        assert_eq!(TOLD.take(), told, "{provider} {answer}");
        let needs = endpoint.needs_cuda.is_some();
        assert_eq!(needs, answer == UNSUPPORTED, "{provider} {answer}");
    }
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
fn address_of_any_length_is_read_whole() {
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
fn objects_are_closed_once_and_children_first() {
    let domain = some_domain(Provider::Efa, false, |_| {});
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

unsafe extern "C" fn read_event(
    _: *mut fid_eq,
    _: *mut u32,
    _: *mut c_void,
    len: usize,
    _: u64,
) -> isize {
    assert!(len >= 64, "no event is longer");
    EVENTS.with_borrow_mut(|events| events.pop()).unwrap_or(-(FI_EAGAIN as isize))
}

unsafe extern "C" fn read_event_error(
    _: *mut fid_eq,
    entry: *mut fi_eq_err_entry,
    _: u64,
) -> isize {
    // SAFETY: room for an entry.
    unsafe { ((*entry).err, (*entry).prov_errno) = (libc::EIO, 4711) };
    ANSWER.get() as isize
}

#[test]
fn trouble_is_told_and_other_events_are_dropped() {
    let domain = some_domain(Provider::Efa, false, |_| {});
    let endpoint = Endpoint::open(&domain, 16, 1, false).expect("an endpoint");
    assert_eq!(endpoint.trouble(), None, "nothing has happened");
    let queue = endpoint.events.as_ref().expect("efa has such errors").as_ptr();
    // SAFETY: open, and of this thread.
    unsafe {
        tables::change(&raw mut (*queue).ops, |table| {
            table.read = Some(read_event);
            table.readerr = Some(read_event_error);
        });
    }
    let (again, there_is_one) = (-(FI_EAGAIN as isize), -(FI_EAVAIL as isize));
    for (events, answer, is_told) in [
        (vec![there_is_one, 16, 0], 48, true),
        // Somebody else has taken it; nothing more for now; no way to learn of it.
        (vec![there_is_one], again as c_int, false),
        (vec![there_is_one, again], 48, false),
        (vec![there_is_one, -5], 48, false),
    ] {
        EVENTS.set(events);
        ANSWER.set(answer);
        let told = endpoint.trouble();
        assert_eq!(told.is_some(), is_told, "{told:?}");
        assert!(told.is_none_or(|told| told.text.ends_with("; the provider's code: 4711")));
    }
    EVENTS.set(vec![16; 100]);
    ANSWER.set(again as c_int);
    assert_eq!((endpoint.trouble(), EVENTS.take().len()), (None, 36), "a queue of them at a time");
}
