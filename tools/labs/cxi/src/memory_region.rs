//! Memory regions: bound, enabled, and without a key before.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use libfabric_sys::{
    FI_EINVAL, FI_ENABLE, FI_ENOSYS, FI_KEY_NOTAVAIL, FI_MR_DMABUF, Padded, Version, fi_mr_attr,
    fi_mr_dmabuf, fi_ops, fid, fid_domain, fid_mr, iovec,
};

use crate::hook::Hook;
use crate::persona::{Persona, broken};

/// The libfabric in which cxi knows dma-bufs.
const DMA_BUFS: Version = Version::new(2, 5);

/// How far a region has come. By the address of its object.
#[derive(Clone, Copy, Debug)]
struct Stage {
    key: u64,
    bound: bool,
    enabled: bool,
}

static STAGES: Mutex<BTreeMap<usize, Stage>> = Mutex::new(BTreeMap::new());

/// Reads or changes the stage of a region.
fn with_stage<R>(region: *mut fid, run: impl FnOnce(&mut Stage) -> R) -> R {
    let mut stages = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
    match stages.get_mut(&(region as usize)) {
        Some(stage) => run(stage),
        None => broken("a region that is not there is used"),
    }
}

pub(crate) unsafe extern "C" fn register(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    region: *mut *mut fid_mr,
) -> c_int {
    /// The real provider's keys are ours to choose.
    static KEYS: AtomicU64 = AtomicU64::new(1);
    // SAFETY: called as `fi_mr(3)` says, on a domain of the persona, whose first field its
    // identifier is.
    unsafe {
        let hook = Hook::of((*domain.cast::<fid_domain>()).mr);
        let state = hook.domain;
        let Some(register) = hook.inner.regattr else { return -(FI_ENOSYS as c_int) };
        let attr = &*attr;
        if attr.iov_count != 1 {
            return -(FI_EINVAL as c_int);
        }
        let memory = if flags & FI_MR_DMABUF != 0 {
            let version = Persona::get().version;
            if version < DMA_BUFS {
                broken(&format!(
                    "a dma-buf is registered, which cxi of {version} reads as vectors"
                ));
            }
            let part = &*attr.mr_iov.cast::<fi_mr_dmabuf>();
            iovec { iov_base: part.base_addr.byte_add(part.offset as usize), iov_len: part.len }
        } else {
            *attr.mr_iov
        };
        let mut real = Padded::<fi_mr_attr>::new();
        real.mr_iov = &memory;
        real.iov_count = 1;
        real.access = attr.access;
        real.requested_key = KEYS.fetch_add(1, Ordering::Relaxed);
        let code = register(domain, real.as_mut_ptr(), flags & !FI_MR_DMABUF, region);
        if code != 0 {
            return code;
        }
        let made = &mut **region;
        let stage = Stage { key: made.key, bound: false, enabled: false };
        made.key = FI_KEY_NOTAVAIL;
        STAGES.lock().unwrap_or_else(PoisonError::into_inner).insert(*region as usize, stage);
        Hook::<fi_ops>::put(&mut made.fid.ops, state, |table| {
            table.bind = Some(bind);
            table.control = Some(control);
            table.close = Some(close);
        });
        code
    }
}

unsafe extern "C" fn bind(region: *mut fid, _endpoint: *mut fid, _flags: u64) -> c_int {
    // SAFETY: a region of the persona.
    let state = unsafe { Hook::of((*region).ops) }.domain;
    with_stage(region, |stage| {
        if stage.bound || !state.enabled.load(Ordering::Acquire) {
            return -(FI_EINVAL as c_int);
        }
        stage.bound = true;
        state.bound.fetch_add(1, Ordering::AcqRel);
        0
    })
}

unsafe extern "C" fn control(region: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: a region of the persona.
    let state = unsafe { Hook::of((*region).ops) }.domain;
    let stage = with_stage(region, |stage| *stage);
    if command != FI_ENABLE as c_int || !stage.bound || stage.enabled {
        return -(FI_EINVAL as c_int);
    }
    let _inside = state.enter("fi_mr_enable");
    wait_for_the_nic();
    with_stage(region, |stage| stage.enabled = true);
    // SAFETY: a region, whose first field its identifier is.
    unsafe { (*region.cast::<fid_mr>()).key = stage.key };
    0
}

unsafe extern "C" fn close(region: *mut fid) -> c_int {
    // SAFETY: a region of the persona, closed once.
    unsafe {
        let hook = Hook::of((*region).ops);
        let stage = with_stage(region, |stage| *stage);
        STAGES.lock().unwrap_or_else(PoisonError::into_inner).remove(&(region as usize));
        if stage.bound {
            hook.domain.bound.fetch_sub(1, Ordering::AcqRel);
        }
        let _inside = stage.enabled.then(|| {
            let inside = hook.domain.enter("fi_close of a region");
            wait_for_the_nic();
            inside
        });
        hook.inner.close.map_or(-(FI_ENOSYS as c_int), |close| close(region))
    }
}

/// As long as the NIC takes to answer, at least: another thread gets a turn, if nothing keeps it
/// out.
fn wait_for_the_nic() {
    std::thread::yield_now();
}
