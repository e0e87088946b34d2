//! The calls that libfabric's headers define as static inline functions.
//!
//! Each goes through the table of operations of the object it is made on. Arguments, results and
//! threading rules are those of the man page of the same name; a result below zero is a negated
//! `fi_errno` code.
//!
//! # Safety
//! The same for all of them: every object is one that libfabric gave out and that is not closed,
//! every other pointer is valid as the man page asks, and the threading level of the domain is
//! respected.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_void};

use crate::{
    FI_ENABLE, FI_ENOSYS, FI_GETWAIT, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry,
    fi_eq_attr, fi_eq_err_entry, fi_info, fi_mr_attr, fi_msg, fid, fid_av, fid_cq, fid_domain,
    fid_ep, fid_eq, fid_fabric, fid_mr,
};

/// Declares the functions, each with its table, its operation and its arguments. They return
/// `-FI_ENOSYS` when the table has no such operation.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($object:ident: $type:ty $(, $argument:ident: $argument_type:ty)*) -> $result:ty
            = $table:expr, $operation:ident($($passed:expr),*);
    )*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name($object: $type $(, $argument: $argument_type)*) -> $result {
            // SAFETY: by the contract of this module the object is live, so its table is, and the
            // arguments are what the operation asks for.
            unsafe {
                match (*$table).$operation {
                    Some(operation) => operation($($passed),*),
                    None => (-FI_ENOSYS) as _,
                }
            }
        }
    )*};
}

calls! {
    /// Closes any object. Objects that others were made from are closed after those.
    fn fi_close(object: *mut fid) -> c_int = (*object).ops, close(object);

    /// Gives operations that only a provider has, by their name (`fi_open_ops(3)`).
    fn fi_open_ops(
        object: *mut fid, name: *const c_char, flags: u64, operations: *mut *mut c_void,
        context: *mut c_void
    ) -> c_int = (*object).ops, ops_open(object, name, flags, operations, context);

    fn fi_domain(
        fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain,
        context: *mut c_void
    ) -> c_int = (*fabric).ops, domain(fabric, info, domain, context);

    fn fi_endpoint(
        domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void
    ) -> c_int = (*domain).ops, endpoint(domain, info, ep, context);
    fn fi_eq_open(
        fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void
    ) -> c_int = (*fabric).ops, eq_open(fabric, attr, eq, context);
    fn fi_cq_open(
        domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void
    ) -> c_int = (*domain).ops, cq_open(domain, attr, cq, context);
    fn fi_av_open(
        domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void
    ) -> c_int = (*domain).ops, av_open(domain, attr, av, context);
    fn fi_mr_regattr(
        domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr
    ) -> c_int = (*domain).mr, regattr(&raw mut (*domain).fid, attr, flags, mr);

    fn fi_ep_bind(ep: *mut fid_ep, object: *mut fid, flags: u64) -> c_int
        = (*ep).fid.ops, bind(&raw mut (*ep).fid, object, flags);
    fn fi_enable(ep: *mut fid_ep) -> c_int
        = (*ep).fid.ops, control(&raw mut (*ep).fid, FI_ENABLE as c_int, std::ptr::null_mut());
    fn fi_setopt(
        ep: *mut fid_ep, level: c_int, option: c_int, value: *const c_void, len: usize
    ) -> c_int = (*ep).ops, setopt(&raw mut (*ep).fid, level, option, value, len);
    fn fi_getopt(
        ep: *mut fid_ep, level: c_int, option: c_int, value: *mut c_void, len: *mut usize
    ) -> c_int = (*ep).ops, getopt(&raw mut (*ep).fid, level, option, value, len);
    /// The endpoint's own address; `-FI_ETOOSMALL` leaves the size needed in `len`.
    fn fi_getname(ep: *mut fid_ep, address: *mut c_void, len: *mut usize) -> c_int
        = (*ep).cm, getname(&raw mut (*ep).fid, address, len);

    /// Binds a region to an endpoint (`FI_MR_ENDPOINT`).
    fn fi_mr_bind(mr: *mut fid_mr, object: *mut fid, flags: u64) -> c_int
        = (*mr).fid.ops, bind(&raw mut (*mr).fid, object, flags);
    /// Makes a bound region usable (`FI_MR_ENDPOINT`).
    fn fi_mr_enable(mr: *mut fid_mr) -> c_int
        = (*mr).fid.ops, control(&raw mut (*mr).fid, FI_ENABLE as c_int, std::ptr::null_mut());

    /// Inserts `count` packed addresses; the number accepted, or an error.
    fn fi_av_insert(
        av: *mut fid_av, addresses: *const c_void, count: usize, peers: *mut fi_addr_t, flags: u64,
        context: *mut c_void
    ) -> c_int = (*av).ops, insert(av, addresses, count, peers, flags, context);

    /// Reads up to `count` completions and drives progress; `-FI_EAGAIN` when there is none,
    /// `-FI_EAVAIL` when an error comes first.
    fn fi_cq_read(cq: *mut fid_cq, entries: *mut c_void, count: usize) -> isize
        = (*cq).ops, read(cq, entries, count);
    fn fi_cq_readerr(cq: *mut fid_cq, entry: *mut fi_cq_err_entry, flags: u64) -> isize
        = (*cq).ops, readerr(cq, entry, flags);

    /// Asks an object that was opened with a wait object for it: a descriptor, for `FI_WAIT_FD`.
    fn fi_getwait(object: *mut fid, into: *mut c_void) -> c_int
        = (*object).ops, control(object, FI_GETWAIT as c_int, into);
    /// Whether it is safe to wait for the wait objects of these; `-FI_EAGAIN` when there is
    /// something to read.
    fn fi_trywait(fabric: *mut fid_fabric, objects: *mut *mut fid, count: c_int) -> c_int
        = (*fabric).ops, trywait(fabric, objects, count);

    /// Reads an event; `-FI_EAGAIN` when there is none, `-FI_EAVAIL` when an error comes first.
    fn fi_eq_read(eq: *mut fid_eq, event: *mut u32, into: *mut c_void, len: usize, flags: u64) -> isize
        = (*eq).ops, read(eq, event, into, len, flags);
    fn fi_eq_readerr(eq: *mut fid_eq, entry: *mut fi_eq_err_entry, flags: u64) -> isize
        = (*eq).ops, readerr(eq, entry, flags);

    fn fi_read(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, peer: fi_addr_t,
        remote: u64, key: u64, context: *mut c_void
    ) -> isize = (*ep).rma, read(ep, buf, len, desc, peer, remote, key, context);
    fn fi_write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, peer: fi_addr_t,
        remote: u64, key: u64, context: *mut c_void
    ) -> isize = (*ep).rma, write(ep, buf, len, desc, peer, remote, key, context);
    fn fi_writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        peer: fi_addr_t, remote: u64, key: u64, context: *mut c_void
    ) -> isize = (*ep).rma, writedata(ep, buf, len, desc, data, peer, remote, key, context);

    fn fi_recv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, peer: fi_addr_t,
        context: *mut c_void
    ) -> isize = (*ep).msg, recv(ep, buf, len, desc, peer, context);
    fn fi_send(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, peer: fi_addr_t,
        context: *mut c_void
    ) -> isize = (*ep).msg, send(ep, buf, len, desc, peer, context);
    /// Sends at most `inject_size` bytes that may be reused at once; no completion. The caller
    /// checks the size: providers do not.
    fn fi_inject(ep: *mut fid_ep, buf: *const c_void, len: usize, peer: fi_addr_t) -> isize
        = (*ep).msg, inject(ep, buf, len, peer);
    fn fi_sendmsg(ep: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize
        = (*ep).msg, sendmsg(ep, message, flags);
}
