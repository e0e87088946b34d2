//! Memory regions: mapped, bound, enabled, and without a key before.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, ptr};

use libfabric_sys::{
    FI_EINVAL, FI_ENABLE, FI_ENODEV, FI_ENOKEY, FI_ENOSPC, FI_ENOSYS, FI_EOPNOTSUPP,
    FI_KEY_NOTAVAIL, FI_LOG_INFO, FI_LOG_WARN, FI_MR_DMABUF, FI_REMOTE_READ, FI_REMOTE_WRITE,
    Padded, Version, fi_mr_attr, fi_mr_dmabuf, fi_ops, fid, fid_domain, fid_mr, iovec,
};

use crate::devices::{Allocation, Cuda};
use crate::hook::{Hook, State};
use crate::log::say;
use crate::persona::{Persona, broken, flag, number};

const DMA_BUFS: Version = Version::new(2, 5);
const REFUSES: Version = Version::new(2, 5);
const PROVIDERS: u64 = 1 << 63;
const OPTIMISED: u64 = 1 << 62;
const BUFFER_IDS: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Stage {
    addr: usize,
    len: usize,
    key: u64,
    remote: bool,
    /// It is memory of a device, and whether GDRCopy maps it.
    device: Option<bool>,
    bound: bool,
    enabled: bool,
}

static STAGES: Mutex<BTreeMap<usize, Stage>> = Mutex::new(BTreeMap::new());

fn with_stage<R>(region: *mut fid, run: impl FnOnce(&mut Stage) -> R) -> R {
    let mut stages = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
    match stages.get_mut(&(region as usize)) {
        Some(stage) => run(stage),
        None => broken("a region that is not there is used"),
    }
}

fn map(state: &State, memory: iovec) -> Result<(usize, Option<bool>), c_int> {
    let (addr, len) = (memory.iov_base as usize, memory.iov_len);
    let Some(cuda) = Cuda::get() else { return Ok((addr, None)) };
    if cuda.window(addr, 1).is_none() {
        return Ok((addr, None));
    }
    if !state.devices {
        broken("memory of a device is registered in a domain that was opened without FI_HMEM");
    }
    let asked = Allocation { base: addr, len };
    let whole = cuda.allocation(addr).unwrap_or(asked);
    // What is mapped, and from where on the dma-buf is: its export is that of the allocation.
    let (mapped, from) = if state.caches { (whole, addr) } else { (asked, whole.base) };
    if addr + len > mapped.base + mapped.len {
        broken(&format!(
            "a region of {len} bytes begins in an allocation of {} bytes, and cxi maps no more",
            whole.len
        ));
    }
    let pinned =
        if flag("FI_CXI_DISABLE_HMEM_DEV_REGISTER", false) { false } else { cuda.pin(mapped)? };
    if pinned {
        eprintln!("cxi-lab: {}: GDRCopy maps {} bytes of a device whole", state.nic, mapped.len);
    }
    let window = cuda.window(from, len).or_else(|| cuda.window(addr, len));
    Ok((window.unwrap_or_else(|| broken("memory of a device is not whole")), Some(pinned)))
}

pub(crate) fn start_cache() -> Result<bool, c_int> {
    let starts = || {
        if number("FI_MR_CACHE_MAX_COUNT", 1) == 0 {
            return Err((FI_ENOSPC as c_int, "No space left on device"));
        }
        let monitor = env::var("FI_MR_CACHE_MONITOR");
        let is_kdreg2 = monitor.as_deref().unwrap_or("kdreg2") == "kdreg2";
        if !is_kdreg2 || flag("CXI_LAB_KDREG2", true) {
            return Ok(());
        }
        let (code, why) = (FI_ENODEV as c_int, "No such device");
        let failed = format!("Failed to start FI_HMEM_SYSTEM memory monitor: {why}");
        say("core", FI_LOG_WARN, &failed);
        Err((code, why))
    };
    let Err((code, why)) = starts() else {
        return Ok(flag("FI_MR_CUDA_CACHE_MONITOR_ENABLED", true));
    };
    say("cxi", FI_LOG_INFO, &format!("MR cache init failed: {why}. MR caching disabled."));
    let is_named = code == FI_ENODEV as c_int && env::var_os("FI_MR_CACHE_MONITOR").is_some();
    if is_named && Persona::get().version >= REFUSES { Err(code) } else { Ok(false) }
}

pub(crate) unsafe extern "C" fn register(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    region: *mut *mut fid_mr,
) -> c_int {
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
            // The descriptor is not looked at.
            let part = &*attr.mr_iov.cast::<fi_mr_dmabuf>();
            iovec { iov_base: part.base_addr.byte_add(part.offset as usize), iov_len: part.len }
        } else {
            *attr.mr_iov
        };
        let remote = attr.access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
        // Keys of the caller's have 32 bits. The plugin leaves them to the provider.
        if remote && !state.chooses_keys {
            return -(FI_ENOKEY as c_int);
        }
        if remote && state.remote.load(Ordering::Acquire) >= BUFFER_IDS {
            return -(FI_ENOSPC as c_int);
        }
        let (mapped, device) = match map(state, memory) {
            Ok(mapped) => mapped,
            Err(code) => return code,
        };
        let optimised = if Persona::get().optimises() { OPTIMISED } else { 0 };
        let key = PROVIDERS | optimised | KEYS.fetch_add(1, Ordering::Relaxed);
        let reached = iovec { iov_base: mapped as *mut c_void, iov_len: memory.iov_len };
        let mut real = Padded::<fi_mr_attr>::zeroed();
        real.mr_iov = &reached;
        real.iov_count = 1;
        real.access = attr.access;
        real.requested_key = key;
        let code = register(domain, real.as_mut_ptr(), flags & !FI_MR_DMABUF, region);
        if code != 0 {
            return code;
        }
        if remote {
            state.remote.fetch_add(1, Ordering::AcqRel);
            if optimised != 0 {
                eprintln!("cxi-lab: {}: a region is optimised", state.nic);
            }
        }
        let made = &mut **region;
        made.key = FI_KEY_NOTAVAIL;
        made.mem_desc = (*region).cast();
        let (addr, len) = (memory.iov_base as usize, memory.iov_len);
        let stage = Stage { addr, len, key, remote, device, bound: false, enabled: false };
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
        if stage.device == Some(false) && state.needs_copies.load(Ordering::Acquire) {
            return -(FI_EOPNOTSUPP as c_int);
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
    if command != FI_ENABLE as c_int || !stage.bound {
        return -(FI_EINVAL as c_int);
    }
    // A region that peers do not reach takes nothing of the NIC, and has no key.
    if stage.enabled || !stage.remote {
        return 0;
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
        if stage.remote {
            hook.domain.remote.fetch_sub(1, Ordering::AcqRel);
        }
        let _inside = stage.enabled.then(|| {
            let inside = hook.domain.enter("fi_close of a region");
            wait_for_the_nic();
            inside
        });
        hook.inner.close.map_or(-(FI_ENOSYS as c_int), |close| close(region))
    }
}

pub(crate) fn local(state: &State, buf: *mut c_void, len: usize, desc: *mut c_void) -> *mut c_void {
    let named = !desc.is_null() && state.heeds_descriptors.load(Ordering::Acquire);
    if named {
        let inside = with_stage(desc.cast(), |stage| {
            (buf as usize).checked_sub(stage.addr).is_some_and(|at| at + len <= stage.len)
        });
        if !inside {
            broken(&format!(
                "{len} bytes at {buf:?} are named by the descriptor of another region"
            ));
        }
    }
    let window = Cuda::get().and_then(|cuda| cuda.window(buf as usize, len));
    let Some(window) = window else { return buf };
    if !state.devices {
        broken("a transfer is of memory of a device, in a domain that was opened without FI_HMEM");
    }
    if !named {
        state.said_asked.call_once(|| {
            eprintln!("cxi-lab: {}: CUDA is asked about memory by each transfer", state.nic);
        });
    }
    ptr::without_provenance_mut(window)
}

/// As long as the NIC takes to answer, at least: another thread gets a turn, if nothing keeps it
/// out.
fn wait_for_the_nic() {
    std::thread::yield_now();
}
