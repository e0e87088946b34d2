//! Endpoints: their lock, their order and what they inject.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use libfabric_sys::{
    FI_EBUSY, FI_EINVAL, FI_ENABLE, FI_ENOMEM, FI_ENOPROTOOPT, FI_ENOSPC, FI_ENOSYS, FI_EOPNOTSUPP,
    FI_OPT_CUDA_API_PERMITTED, FI_OPT_ENDPOINT, FI_ORDER_RMA_WAW, FI_ORDER_WAW, Version, fi_addr_t,
    fi_info, fi_msg, fi_ops, fi_ops_ep, fi_ops_msg, fi_ops_rma, fid, fid_domain, fid_ep,
};

use crate::devices::Cuda;
use crate::hook::{Hook, Inside, State};
use crate::info::{INJECT, Real};
use crate::memory_region::local;
use crate::messages::register_buffer;
use crate::persona::{Persona, broken, number};

/// The libfabric in which cxi knows `FI_OPT_CUDA_API_PERMITTED`: HPE's 1.22.
const CUDA_OPTION: Version = Version::new(1, 22);
const OVERFLOW_BUFFERS: usize = 3;

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
            table.writedata = Some(write_data);
        });
        Hook::<fi_ops_msg>::put(&mut ep.msg, state, |table| {
            table.recv = Some(receive);
            table.sendmsg = Some(send_message);
            table.inject = Some(inject);
        });
        code
    }
}

unsafe extern "C" fn control(endpoint: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: called as `fi_control(3)` says.
    unsafe {
        let hook = Hook::of((*endpoint).ops);
        let Some(control) = hook.inner.control else { return -(FI_ENOSYS as c_int) };
        let state = hook.domain;
        let enables = command == FI_ENABLE as c_int;
        // The NIC's service has no more of something (`cxip_cmdq_alloc`, `cxip_pte_alloc`).
        if enables && enabled_on(state, 0) >= number("CXI_LAB_ENDPOINTS", usize::MAX) {
            return -(FI_ENOSPC as c_int);
        }
        let code = control(endpoint, command, argument);
        if code == 0 && enables {
            enabled_on(state, 1);
            (0..OVERFLOW_BUFFERS).for_each(|_| register_buffer(state));
            state.messages.start(endpoint.cast());
            state.enabled.store(true, Ordering::Release);
        }
        code
    }
}

fn enabled_on(state: &State, change: isize) -> usize {
    static ENABLED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());
    let mut enabled = ENABLED.lock().unwrap_or_else(PoisonError::into_inner);
    let count = enabled.entry(state.nic.clone()).or_default();
    *count = count.saturating_add_signed(change);
    *count
}

unsafe extern "C" fn close(endpoint: *mut fid) -> c_int {
    // SAFETY: called as `fi_close(3)` says.
    unsafe {
        let hook = Hook::of((*endpoint).ops);
        if hook.domain.bound.load(Ordering::Acquire) != 0 {
            return -(FI_EBUSY as c_int);
        }
        if hook.domain.enabled.swap(false, Ordering::AcqRel) {
            enabled_on(hook.domain, -1);
        }
        hook.inner.close.map_or(-(FI_ENOSYS as c_int), |close| close(endpoint))
    }
}

/// As `cxip_ep_setopt_priv`.
unsafe extern "C" fn set_option(
    endpoint: *mut fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT as c_int {
        return -(FI_ENOPROTOOPT as c_int);
    }
    // SAFETY: an endpoint of the persona, and a value of the option's type.
    let state = unsafe { Hook::<fi_ops_ep>::of((*endpoint.cast::<fid_ep>()).ops) }.domain;
    if option as u32 != FI_OPT_CUDA_API_PERMITTED || Persona::get().version < CUDA_OPTION {
        return -(FI_ENOPROTOOPT as c_int);
    }
    if len != size_of::<bool>() {
        return -(FI_EINVAL as c_int);
    }
    // SAFETY: as above.
    let permitted = unsafe { value.cast::<u8>().read() } != 0;
    let Some(cuda) = Cuda::get() else { return -(FI_EOPNOTSUPP as c_int) };
    if !permitted && !cuda.has_gdrcopy() {
        return -(FI_EOPNOTSUPP as c_int);
    }
    state.needs_copies.store(!permitted, Ordering::Release);
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
    carry_read = rma: fi_ops_rma, read(
        buf: *mut c_void, len: usize, desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void);
    carry_write = rma: fi_ops_rma, write(
        buf: *const c_void, len: usize, desc: *mut c_void, peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void);
    send_message = msg: fi_ops_msg, sendmsg(message: *const fi_msg, flags: u64);
    send_inject = msg: fi_ops_msg, inject(buf: *const c_void, len: usize, peer: fi_addr_t);
}

/// The state of an endpoint's domain.
///
/// # Safety
/// An endpoint of the persona.
unsafe fn state(endpoint: *mut fid_ep) -> &'static State {
    // SAFETY: by contract.
    unsafe { Hook::<fi_ops_rma>::of((*endpoint).rma) }.domain
}

unsafe extern "C" fn read(
    endpoint: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: called as `fi_rma(3)` says.
    unsafe {
        let buf = local(state(endpoint), buf, len, desc);
        carry_read(endpoint, buf, len, ptr::null_mut(), peer, addr, key, context)
    }
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: called as `fi_rma(3)` says.
    unsafe {
        let buf = local(state(endpoint), buf.cast_mut(), len, desc);
        carry_write(endpoint, buf, len, ptr::null_mut(), peer, addr, key, context)
    }
}

/// Its keys have no room for the data's match bits, unless `FI_CXI_ENABLE_WRITEDATA` is set.
unsafe extern "C" fn write_data(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    -(FI_ENOSYS as isize)
}

unsafe extern "C" fn receive(
    endpoint: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    _peer: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of the persona.
    let state = unsafe { state(endpoint) };
    let _inside: Inside<'_> = state.enter("fi_recv");
    state.messages.receive(state, buf, len, context);
    0
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
