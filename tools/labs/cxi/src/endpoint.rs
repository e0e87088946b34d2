//! Endpoints: their lock, their order and what they inject.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libfabric_sys::{
    FI_EBUSY, FI_ENABLE, FI_ENOMEM, FI_ENOSYS, FI_ORDER_RMA_WAW, FI_ORDER_WAW, fi_addr_t,
    fi_datatype, fi_info, fi_msg, fi_msg_rma, fi_op, fi_ops, fi_ops_atomic, fi_ops_ep, fi_ops_msg,
    fi_ops_rma, fid, fid_domain, fid_ep,
};

use crate::hook::Hook;
use crate::info::{INJECT, Real};
use crate::persona::{Persona, broken};

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called as `fi_endpoint(3)` says, with an info of the persona.
    unsafe {
        let Some(real) = Real::of(info) else { return -(FI_ENOMEM as c_int) };
        let hook = Hook::of((*domain).ops);
        let state = hook.domain;
        let Some(open) = hook.inner.endpoint else { return -(FI_ENOSYS as c_int) };
        let code = open(domain, real.0, endpoint, context);
        if code != 0 {
            return code;
        }
        let ordered = (*(*info).tx_attr).msg_order & (FI_ORDER_WAW | FI_ORDER_RMA_WAW) != 0;
        let order = if ordered { "ordered" } else { "free" };
        eprintln!("cxi-lab: {}: the order of writes is {order}", state.nic);
        if state.devices && Persona::get().copies_by_cuda() {
            eprintln!("cxi-lab: {}: CUDA copies small writes from memory of devices", state.nic);
        }
        let ep = &mut **endpoint;
        Hook::<fi_ops>::put(&mut ep.fid.ops, state, |table| {
            table.control = Some(control);
            table.close = Some(close);
        });
        Hook::<fi_ops_ep>::put(&mut ep.ops, state, |table| table.setopt = Some(set_option));
        Hook::<fi_ops_rma>::put(&mut ep.rma, state, |table| {
            table.read = Some(read);
            table.write = Some(write);
            table.writemsg = Some(write_message);
            table.writedata = Some(write_data);
        });
        Hook::<fi_ops_msg>::put(&mut ep.msg, state, |table| {
            table.recv = Some(receive);
            table.sendmsg = Some(send_message);
            table.inject = Some(inject);
        });
        if !ep.atomic.is_null() {
            Hook::<fi_ops_atomic>::put(&mut ep.atomic, state, |table| {
                table.write = Some(atomic);
                table.readwrite = Some(fetch_atomic);
                table.compwrite = Some(compare_atomic);
            });
        }
        code
    }
}

unsafe extern "C" fn control(endpoint: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: called as `fi_control(3)` says.
    unsafe {
        let hook = Hook::of((*endpoint).ops);
        let Some(control) = hook.inner.control else { return -(FI_ENOSYS as c_int) };
        let code = control(endpoint, command, argument);
        if code == 0 && command == FI_ENABLE as c_int {
            hook.domain.enabled.store(true, Ordering::Release);
        }
        code
    }
}

unsafe extern "C" fn close(endpoint: *mut fid) -> c_int {
    // SAFETY: called as `fi_close(3)` says.
    unsafe {
        let hook = Hook::of((*endpoint).ops);
        if hook.domain.bound.load(Ordering::Acquire) != 0 {
            return -(FI_EBUSY as c_int);
        }
        hook.inner.close.map_or(-(FI_ENOSYS as c_int), |close| close(endpoint))
    }
}

/// Every option of cxi's that callers here know is one that it takes.
unsafe extern "C" fn set_option(
    _: *mut fid,
    _: c_int,
    _: c_int,
    _: *const c_void,
    _: usize,
) -> c_int {
    0
}

/// Functions that enter the endpoint and do what the real one does.
macro_rules! entered {
    ($($name:ident = $table:ident: $type:ty, $field:ident($($argument:ident: $of:ty),*);)*) => {$(
        unsafe extern "C" fn $name(endpoint: *mut fid_ep, $($argument: $of),*) -> isize {
            // SAFETY: called as the manual page of the operation says, on an endpoint of the
            // persona.
            unsafe {
                let hook = Hook::<$type>::of((*endpoint).$table);
                let _inside = hook.domain.enter(stringify!($field));
                match hook.inner.$field {
                    Some(call) => call(endpoint, $($argument),*),
                    None => -(FI_ENOSYS as isize),
                }
            }
        }
    )*};
}

entered! {
    read = rma: fi_ops_rma, read(
        buf: *mut c_void, len: usize, desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void);
    write = rma: fi_ops_rma, write(
        buf: *const c_void, len: usize, desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void);
    write_message = rma: fi_ops_rma, writemsg(message: *const fi_msg_rma, flags: u64);
    write_data = rma: fi_ops_rma, writedata(
        buf: *const c_void, len: usize, desc: *mut c_void, data: u64, peer: fi_addr_t, addr: u64, key: u64,
        context: *mut c_void);
    receive = msg: fi_ops_msg, recv(
        buf: *mut c_void, len: usize, desc: *mut c_void, peer: fi_addr_t, context: *mut c_void);
    send_message = msg: fi_ops_msg, sendmsg(message: *const fi_msg, flags: u64);
    send_inject = msg: fi_ops_msg, inject(buf: *const c_void, len: usize, peer: fi_addr_t);
    atomic = atomic: fi_ops_atomic, write(
        buf: *const c_void, count: usize, desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void);
    fetch_atomic = atomic: fi_ops_atomic, readwrite(
        buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void,
        peer: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void);
    compare_atomic = atomic: fi_ops_atomic, compwrite(
        buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void, compare_desc: *mut c_void,
        result: *mut c_void, result_desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64,
        datatype: fi_datatype, op: fi_op, context: *mut c_void);
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: fi_addr_t,
) -> isize {
    if len > INJECT {
        broken(&format!("{len} bytes are injected, of {INJECT} that fit into a command"));
    }
    // SAFETY: called as `fi_inject(3)` says.
    unsafe { send_inject(endpoint, buf, len, peer) }
}
