//! What an endpoint is told and asked for, with libfabric's tables replaced.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use libfabric_sys::{FI_ENOSYS, FI_EOPNOTSUPP, FI_OPT_CUDA_API_PERMITTED, fi_info, fid_domain};

use super::*;
use crate::data_path::rail::{self, Receives};
use crate::data_path::some_rail;
use crate::objects::domain::tests::{some_device, some_domain, without_devices};
use crate::objects::tables;
use crate::provider::Provider;

type OpenEndpoint =
    unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;

thread_local! {
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
    static TOLD: RefCell<Vec<(u32, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
    static OPEN: Cell<Option<OpenEndpoint>> = const { Cell::new(None) };
    static NAME: Cell<usize> = const { Cell::new(0) };
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

unsafe extern "C" fn getopt(
    _: *mut fid,
    _: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: a place of that length.
    unsafe {
        assert_eq!(*len, 1);
        value.cast::<u8>().write(u8::from(option == 1));
    }
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
fn an_endpoint_is_told_what_its_provider_is_better_off_without() {
    let no = vec![0];
    let cuda = (FI_OPT_CUDA_API_PERMITTED, no.clone());
    let sharing = (FI_OPT_SHARED_MEMORY_PERMITTED, no);
    const UNSUPPORTED: c_int = -FI_EOPNOTSUPP;
    let unknown = -libc::ENOPROTOOPT;
    for (provider, devices, answer, told) in [
        (Provider::TcpRxm, false, 0, vec![]),
        (Provider::Efa, false, 0, vec![sharing.clone()]),
        (Provider::Efa, false, unknown, vec![sharing.clone()]),
        (Provider::Efa, true, 0, vec![cuda.clone(), sharing]),
        (Provider::Cxi, true, 0, vec![]),
        (Provider::TcpRxm, true, 0, vec![cuda.clone()]),
        (Provider::TcpRxm, true, UNSUPPORTED, vec![cuda.clone()]),
        (Provider::TcpRxm, true, unknown, vec![cuda.clone()]),
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
        let endpoint = Endpoint::open(&domain, 16, 1, false, Wakes::Never).expect("an endpoint");
        let is_for_cuda = told.contains(&cuda);
        assert_eq!(TOLD.take(), told, "{provider} {answer}");
        let calls = endpoint.cuda_calls();
        match (is_for_cuda, answer) {
            (false, _) => assert_eq!(*calls, CudaCalls::NotAsked, "{provider}"),
            (true, 0) => assert_eq!(*calls, CudaCalls::None),
            (true, UNSUPPORTED) => assert!(matches!(calls, CudaCalls::Needed(_)), "{calls:?}"),
            (true, _) => assert!(matches!(calls, CudaCalls::Unknown(_)), "{calls:?}"),
        }
    }
}

#[test]
fn an_option_is_known_only_if_the_provider_answers() {
    let rail = some_rail(Provider::TcpRxm);
    let endpoint = rail.endpoint();
    // SAFETY: open, and of this thread.
    unsafe {
        tables::change(&raw mut (*endpoint.as_ptr()).ops, |table| table.getopt = Some(getopt));
    }
    for (answer, option, value) in
        [(0, 1, Some(true)), (0, 2, Some(false)), (-libc::ENOPROTOOPT, 1, None)]
    {
        ANSWER.set(answer);
        assert_eq!(endpoint.option(option), value, "{answer} {option}");
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
fn an_address_of_any_length_is_read_as_a_whole() {
    let rail = some_rail(Provider::TcpRxm);
    let raw = NonNull::new(rail.endpoint().as_ptr()).expect("open");
    // SAFETY: open, and of this thread.
    unsafe {
        tables::change(&raw mut (*raw.as_ptr()).cm, |table| table.getname = Some(getname));
    }
    for (takes, too_small) in
        [(16, 0), (127, 0), (128, 0), (129, 0), (300, 0), (300, -(FI_ETOOSMALL as c_int))]
    {
        NAME.set(takes);
        ANSWER.set(too_small);
        assert_eq!(name_of(rail.domain(), raw), Ok(vec![0xf1; takes]), "{takes} {too_small}");
    }
    NAME.set(16);
    ANSWER.set(-libc::EIO);
    assert_eq!(name_of(rail.domain(), raw).expect_err("refused").code, libc::EIO);
}

#[test]
fn objects_are_closed_once_and_none_before_what_is_made_from_it() {
    let domain = some_domain(Provider::TcpRxm, false, |_| {});
    let mut endpoint = Endpoint::open(&domain, 16, 1, true, Wakes::Never).expect("an endpoint");
    let events = endpoint.events.as_ref().expect("an event queue").as_fid();
    // SAFETY: all open, and of this thread.
    let order = unsafe {
        [
            tables::watch(endpoint.as_fid()),
            tables::watch(endpoint.queue.as_fid()),
            tables::watch(endpoint.vector.as_fid()),
            tables::watch(domain.as_ptr().cast()),
            tables::watch(events),
            tables::watch(domain.fabric().as_ptr().cast()),
        ]
    };
    endpoint.close();
    assert_eq!(tables::closed(), order[..1]);
    drop(domain);
    assert_eq!(tables::closed(), [], "the endpoint has its domain");
    drop(endpoint);
    assert_eq!(tables::closed(), order[1..]);
}

#[test]
fn errors_of_no_operation_have_a_queue_where_the_provider_has_such_errors() {
    for (provider, has) in [(Provider::TcpRxm, false), (Provider::Efa, true)] {
        let device = some_device(provider, false, |_| {});
        let rail = rail::tests::open(&device, 4, Receives::Nothing).expect("opened");
        assert_eq!(rail.endpoint().events.is_some(), has, "{provider}");
    }
}

#[test]
fn calls_that_a_provider_does_not_have_are_refused() {
    let rail = some_rail(Provider::TcpRxm);
    let endpoint = rail.endpoint();
    // SAFETY: open, and of this thread. Nothing is posted, for there is nothing that would.
    unsafe {
        tables::change(&raw mut (*endpoint.as_ptr()).rma, |table| {
            (table.write, table.read) = (None, None);
        });
        tables::change(&raw mut (*endpoint.as_ptr()).msg, |table| {
            (table.inject, table.recv) = (None, None);
        });
        let direct = endpoint.direct();
        let none = ptr::null_mut();
        let op = Rma { buf: none, len: 0, desc: none, peer: 0, remote: 0, key: 0, context: none };
        let buffer = MessageBuffer { buf: none, len: 0, desc: none, context: none };
        let answers =
            [direct.write(&op), direct.read(&op), direct.inject(&[], 0), direct.receive(&buffer)];
        assert_eq!(answers, [-(FI_ENOSYS as isize); 4]);
    }
}
