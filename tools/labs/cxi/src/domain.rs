//! Fabric, domain and completion queue.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use libfabric_sys::{
    FI_CQ_FORMAT_DATA, FI_EINVAL, FI_ENOMEM, FI_ENOSYS, FI_MR_PROV_KEY, FI_THREAD_SAFE, fi_cq_attr,
    fi_cq_err_entry, fi_fabric_attr, fi_info, fi_ops, fi_ops_cq, fi_ops_domain, fi_ops_fabric,
    fi_ops_mr, fid, fid_cq, fid_domain, fid_fabric,
};

use crate::hook::{Hook, State};
use crate::info::{Real, text, with_real_fabric};
use crate::persona::Persona;
use crate::{endpoint, memory_region};

/// # Safety
/// As `fi_fabric(3)` says.
pub(crate) unsafe fn open_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: by contract. The state is that of no domain: the table's functions do not look at it.
    unsafe {
        let code =
            with_real_fabric(attr, |real| (Persona::get().library.fabric)(real, fabric, context));
        if code == 0 {
            let nobody = State::new(String::new(), false, false, false, false);
            Hook::<fi_ops_fabric>::put(&mut (**fabric).ops, nobody, |table| {
                table.domain = Some(open_domain);
            });
        }
        code
    }
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called as `fi_domain(3)` says, with an info of the persona.
    unsafe {
        let Some(real) = Real::of(info) else { return -(FI_ENOMEM as c_int) };
        let Some(open) = Hook::of((*fabric).ops).inner.domain else { return -(FI_ENOSYS as c_int) };
        let caches = match memory_region::start_cache() {
            Ok(caches) => caches,
            Err(code) => return -code,
        };
        let code = open(fabric, real.0, domain, context);
        if code == 0 {
            let attr = &*(*info).domain_attr;
            let nic = text(attr.name).to_string_lossy().into_owned();
            let devices = (*info).caps & libfabric_sys::FI_HMEM != 0;
            let chooses_keys = attr.mr_mode & FI_MR_PROV_KEY != 0;
            let unlocked = attr.threading != FI_THREAD_SAFE;
            let state = State::new(nic, unlocked, devices, chooses_keys, caches);
            Hook::<fi_ops>::put(&mut (**domain).fid.ops, state, |table| {
                table.ops_open = Some(open_operations);
            });
            Hook::<fi_ops_domain>::put(&mut (**domain).ops, state, |table| {
                table.endpoint = Some(endpoint::open);
                table.cq_open = Some(open_queue);
            });
            Hook::<fi_ops_mr>::put(&mut (**domain).mr, state, |table| {
                table.regattr = Some(memory_region::register);
            });
        }
        code
    }
}

#[repr(C)]
struct Operations {
    counter: Option<unsafe extern "C" fn()>,
    topology: Option<unsafe extern "C" fn()>,
    enable_hybrid_mr_desc: unsafe extern "C" fn(*mut fid, bool) -> c_int,
}

/// Gives cxi's own operations of a domain (`cxip_dom_ops_open`).
unsafe extern "C" fn open_operations(
    _domain: *mut fid,
    name: *const c_char,
    _flags: u64,
    operations: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    static OPERATIONS: Operations =
        Operations { counter: None, topology: None, enable_hybrid_mr_desc };
    // SAFETY: called as `fi_open_ops(3)` says.
    unsafe {
        if !text(name).to_bytes().starts_with(b"dom_ops_v") {
            return -(FI_EINVAL as c_int);
        }
        operations.write((&raw const OPERATIONS).cast_mut().cast());
    }
    0
}

unsafe extern "C" fn enable_hybrid_mr_desc(domain: *mut fid, enable: bool) -> c_int {
    // SAFETY: a domain of the persona.
    let state = unsafe { Hook::<fi_ops>::of((*domain).ops) }.domain;
    state.heeds_descriptors.store(enable, Ordering::Release);
    0
}

unsafe extern "C" fn open_queue(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    queue: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called as `fi_cq(3)` says.
    unsafe {
        let hook = Hook::of((*domain).ops);
        let Some(open) = hook.inner.cq_open else { return -(FI_ENOSYS as c_int) };
        // The one that the persona reads; cxi has them all.
        if (*attr).format != FI_CQ_FORMAT_DATA {
            return -(FI_ENOSYS as c_int);
        }
        let code = open(domain, attr, queue, context);
        if code == 0 {
            eprintln!("cxi-lab: {}: a queue of {} completions", hook.domain.nic, (*attr).size);
            hook.domain.completions.store((*attr).size, Ordering::Release);
            Hook::<fi_ops_cq>::put(&mut (**queue).ops, hook.domain, |table| {
                table.read = Some(read);
                table.readerr = Some(read_error);
            });
        }
        code
    }
}

unsafe extern "C" fn read(queue: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    // SAFETY: called as `fi_cq(3)` says.
    unsafe {
        let hook = Hook::of((*queue).ops);
        let _inside = hook.domain.enter("fi_cq_read");
        let Some(read) = hook.inner.read else { return -(FI_ENOSYS as isize) };
        hook.domain.messages.read(hook.domain, queue, read, entries, count)
    }
}

unsafe extern "C" fn read_error(
    queue: *mut fid_cq,
    entry: *mut fi_cq_err_entry,
    flags: u64,
) -> isize {
    // SAFETY: called as `fi_cq(3)` says.
    unsafe {
        let hook = Hook::of((*queue).ops);
        let _inside = hook.domain.enter("fi_cq_readerr");
        hook.inner.readerr.map_or(-(FI_ENOSYS as isize), |read| read(queue, entry, flags))
    }
}
