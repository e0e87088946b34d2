//! The order of closing, options and errors, with libfabric's tables replaced.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use libfabric_sys::{
    FI_EAGAIN, FI_EAVAIL, FI_ENOPROTOOPT, FI_EOPNOTSUPP, FI_HMEM, fi_cq_err_entry, fi_eq_err_entry,
    fi_info, fid_domain,
};

use super::*;
use crate::objects::domain::tests::some_domain;
use crate::objects::info::tests::edit;
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

type OpenEndpoint =
    unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int;

thread_local! {
    /// Answers of calls: the first one, and all later ones.
    static ANSWERS: Cell<[isize; 2]> = Cell::default();
    static OPTIONS: RefCell<Vec<u32>> = RefCell::default();
    static OPEN: Cell<Option<OpenEndpoint>> = Cell::default();
}

fn answer() -> isize {
    let [now, next] = ANSWERS.get();
    ANSWERS.set([next; 2]);
    now
}

unsafe extern "C" fn event(_: *mut fid_eq, _: *mut u32, _: *mut c_void, _: usize, _: u64) -> isize {
    answer()
}

unsafe extern "C" fn event_error(_: *mut fid_eq, entry: *mut fi_eq_err_entry, _: u64) -> isize {
    // SAFETY: room for an entry.
    unsafe { ((*entry).err, (*entry).prov_errno) = (libc::EIO, 77) };
    answer()
}

unsafe extern "C" fn queue_error(_: *mut fid_cq, entry: *mut fi_cq_err_entry, _: u64) -> isize {
    // SAFETY: room for an entry.
    unsafe { ((*entry).err, (*entry).op_context) = (libc::EIO, ptr::without_provenance_mut(9)) };
    answer()
}

unsafe extern "C" fn set(
    _: *mut fid,
    _: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: a `bool`.
    assert!(len == 1 && unsafe { *value.cast::<u8>() } == 0, "what is set is forbidden");
    OPTIONS.with_borrow_mut(|options| options.push(option as u32));
    answer() as c_int
}

unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    let open = OPEN.get().expect("the provider's");
    // SAFETY: the provider's own call; what it has opened is of this thread alone. It would refuse
    // memory of devices.
    unsafe {
        let caps = (*info).caps;
        (*info).caps &= !FI_HMEM;
        let code = open(domain, info, endpoint, context);
        (*info).caps = caps;
        tables::change(&raw mut (**endpoint).ops, |table| table.setopt = Some(set));
        code
    }
}

#[test]
fn provider_is_forbidden_detours() {
    const CUDA: u32 = FI_OPT_CUDA_API_PERMITTED;
    const SHARED: u32 = FI_OPT_SHARED_MEMORY_PERMITTED;
    let [lacks, older, no_cuda] =
        [FI_EOPNOTSUPP, FI_ENOPROTOOPT, FI_EINVAL].map(|it| -(it as isize));
    for (provider, caps, code, options, needs_cuda) in [
        (Provider::Efa, FI_HMEM, 0, &[CUDA, SHARED][..], false),
        (Provider::Efa, FI_HMEM, lacks, &[CUDA, SHARED], true),
        (Provider::Efa, FI_HMEM, older, &[CUDA, SHARED], true),
        (Provider::Efa, FI_HMEM, no_cuda, &[CUDA, SHARED], false),
        (Provider::Efa, 0, lacks, &[SHARED], false),
        (Provider::Tcp, 0, lacks, &[], false),
        (Provider::Cxi, FI_HMEM, lacks, &[], false),
    ] {
        let mut domain = some_domain(provider, |_| {});
        let mut info = domain.info.for_any_thread().expect("memory");
        edit(&mut info, |raw| raw.caps |= caps);
        Arc::get_mut(&mut domain).expect("no other owner").info = Arc::new(info);
        // SAFETY: open, and of this thread.
        unsafe {
            let ops = &raw mut (*domain.as_ptr()).ops;
            OPEN.set((**ops).endpoint);
            tables::change(ops, |table| table.endpoint = Some(open));
        }
        ANSWERS.set([code, older]);
        let endpoint = Endpoint::open(&domain, 16, 1, false).expect("an endpoint");
        assert_eq!(OPTIONS.take(), options);
        assert_eq!(endpoint.needs_cuda.is_some(), needs_cuda, "{provider:?}, {code}");
    }
}

#[test]
fn errors_are_told_in_words() {
    let domain = some_domain(Provider::Efa, |_| {});
    let endpoint = Endpoint::open(&domain, 16, 1, false).expect("an endpoint");
    // SAFETY: all open, and of this thread.
    unsafe {
        let events = endpoint.events.as_ref().expect("efa has such errors").as_ptr();
        tables::change(&raw mut (*events).ops, |table| {
            table.read = Some(event);
            table.readerr = Some(event_error);
        });
        tables::change(&raw mut (*endpoint.queue.as_ptr()).ops, |table| {
            table.readerr = Some(queue_error);
        });
    }
    let (again, there, broken) =
        (-(FI_EAGAIN as isize), -(FI_EAVAIL as isize), -(libc::EPIPE as isize));
    for (now, next, is_told) in
        [(again, 1, false), (there, 1, true), (there, again, false), (8, there, false)]
    {
        ANSWERS.set([now, next]);
        let told = endpoint.endpoint_error().map(|error| error.text);
        assert_eq!(told.is_some(), is_told, "{now} {next}");
        assert!(told.iter().all(|text| text.ends_with("; the provider's code: 77")), "{told:?}");
    }
    // SAFETY: one thread.
    let read = || unsafe { endpoint.read_error() }.map(|(at, error)| (at as usize, error));
    for code in [again, 0] {
        ANSWERS.set([code, code]);
        assert_eq!(read(), None);
    }
    ANSWERS.set([broken, broken]);
    assert_eq!(read().map(|(at, error)| (at, error.call)), Some((0, "fi_cq_readerr")));
    ANSWERS.set([1, 1]);
    let (context, plain) = read().expect("an error");
    assert_eq!((context, plain.code), (9, libc::EIO));
}
