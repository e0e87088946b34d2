//! A persona of cxi: a libfabric with one provider, which shows cxi's attributes and keeps its
//! rules.
//!
//! Data goes by `tcp;ofi_rxm` of a real libfabric. Its objects are used as they are, but for the
//! tables of operations that matter, which are replaced by tables of this library. So what it
//! proves is that its rules are kept, and nothing of cxi's own code. The rules are those of
//! libfabric's sources, 2.1 to 2.6 and HPE's 1.20.2 and 1.22.0 (`release/shs-12.0`; HPE's 1.15.2 is
//! not public), files being of `prov/cxi/src` where no folder is named:
//!
//! - Progress is manual (`cxip_info.c`). Regions belong to endpoints (`FI_MR_ENDPOINT`): they are
//!   bound to one that is enabled, enabled, and closed before it, and have no key before; those
//!   that peers do not reach have none at all (`cxip_mr.c`, `cxip_mr_bind`, `cxip_mr_enable`). Keys
//!   are the provider's, with bit 63 (`cxip.h`, `CXIP_IS_PROV_MR_KEY_BIT`). There are 65536 regions
//!   at most (`cxip_domain_ctrl_id_alloc`).
//! - Short of `FI_THREAD_SAFE` an endpoint has no lock (`cxip_ep.c`, `cxip_alloc_endpoint`).
//!   Enabling and closing a region waits for events that reading the completion queue would take
//!   (`cxip_mr_wait_append`): two threads in an endpoint, its queue and its regions at once end the
//!   process.
//! - `FI_MR_HMEM` is never shown (`cxip_info.c`); what memory is, the provider asks CUDA
//!   (`cxip_iomm.c`, `cxip_map`). With `enable_hybrid_mr_desc` (`cxip_dom.c`) it heeds descriptors
//!   of local memory (`cxip_rma.c`, `cxip_rma_emit_dma`), which have to be of the region.
//! - A dma-buf is known from libfabric 2.5 on (`cxip_mr_init`). Before, its description would be
//!   read as vectors, and a region of other memory made: that ends the process.
//! - Memory of devices is mapped from its allocation's start to its end
//!   (`cxip_map_get_mem_region_size`): a region that goes on in the next one ends the process.
//!   Without a cache of such memory the NIC finds the allocation's start in its place
//!   (`cxip_map_nocache`, `cxip_dmabuf_hints`). There is none where the environment has switched it
//!   off, and where libfabric's monitor of host memory does not start, which only libfabric's log
//!   tells (`cxip_iomm_init`, `prov/util/src/util_mem_monitor.c`); from libfabric 2.5 on the domain
//!   is refused where the user has named that monitor. Where there is GDRCopy, and unless
//!   `FI_CXI_DISABLE_HMEM_DEV_REGISTER` is set, it pins all of it (`cxip_do_map`).
//! - `FI_OPT_CUDA_API_PERMITTED` is known from HPE's 1.22 on; forbidding takes GDRCopy
//!   (`cxip_ep_setopt_priv`), and refuses regions that it does not map (`cxip_mr_bind`).
//! - Buffers for unexpected messages are registered with CUDA, three when an endpoint is enabled
//!   and one for each that is used up, in whatever call finds that, unless
//!   `FI_CXI_DISABLE_HOST_REGISTER` is set (`cxip_ptelist_buf.c`). While a kernel runs that ends
//!   the process.
//! - Receives that are posted and messages that are unexpected take match entries. When they are
//!   used up and the NIC alone matches (`FI_CXI_RX_MATCH_MODE`), the process ends
//!   (`cxip_msg_hpc.c`, `FC_SW_ONLOAD_MSG_FATAL`).
//! - A queue holds as many completions as it was opened for; with more the NIC drops messages
//!   (`cxip_evtq.c`).
//! - Enabling an endpoint takes queues and table entries of the NIC's service, and fails with
//!   `FI_ENOSPC` without (`cxip_cmdq.c`, `cxip_pte.c`).
//! - What is injected fits into a command of the NIC. There is no immediate data unless
//!   `FI_CXI_ENABLE_WRITEDATA` is set (`cxip_rma.c`), which is not known here.
//!
//! What costs time alone, or waits where somebody else has to help, is printed, for tests to read:
//! whether writes are ordered and regions optimised, how many completions a queue holds, whether
//! CUDA copies small writes from memory of devices or is asked about each transfer, and what
//! GDRCopy maps.
//!
//! # Environment
//! Beside the provider's own variables:
//!
//! | variable | default | |
//! |---|---|---|
//! | `CXI_LAB_LIBFABRIC` | `libfabric.so.1` | the real one |
//! | `CXI_LAB_VERSION` | `2.6` | the version that this one says it is |
//! | `CXI_LAB_NICS` | 2 | NICs, each an address of the loopback network |
//! | `CXI_LAB_MATCH_ENTRIES` | 16384 | match entries of an endpoint |
//! | `CXI_LAB_OVERFLOW_BYTES` | 12 MiB | unexpected bytes that use up a buffer |
//! | `CXI_LAB_ENDPOINTS` | no limit | endpoints that a process can enable on a NIC |
//! | `CXI_LAB_KDREG2` | 1 | with 0, the monitor kdreg2, HPE's default, does not start |

mod devices;
mod domain;
mod endpoint;
mod hook;
mod info;
mod log;
mod memory_region;
mod messages;
mod persona;

use std::ffi::{c_char, c_int, c_void};

use libfabric_sys::{FI_ENOSYS, fi_fabric_attr, fi_info, fi_type, fid, fid_fabric};

use persona::Persona;

/// The version that the persona says it is.
#[unsafe(no_mangle)]
pub extern "C" fn fi_version() -> u32 {
    Persona::get().version.packed()
}

/// Lists the NICs.
///
/// # Safety
/// As `fi_getinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_getinfo(
    version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi_info,
    list: *mut *mut fi_info,
) -> c_int {
    if version > fi_version() {
        return -(FI_ENOSYS as c_int);
    }
    // SAFETY: the caller's promise.
    match unsafe { info::list(hints) } {
        Ok(found) => {
            // SAFETY: the caller's promise.
            unsafe { list.write(found) };
            0
        }
        Err(code) => -code,
    }
}

/// Frees a list.
///
/// # Safety
/// As `fi_freeinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_freeinfo(info: *mut fi_info) {
    // SAFETY: all infos are the real library's.
    unsafe { (Persona::get().library.freeinfo)(info) }
}

/// Copies an entry.
///
/// # Safety
/// As `fi_dupinfo(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_dupinfo(info: *const fi_info) -> *mut fi_info {
    // SAFETY: all infos are the real library's.
    unsafe { (Persona::get().library.dupinfo)(info) }
}

/// Opens the fabric.
///
/// # Safety
/// As `fi_fabric(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_fabric(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { domain::open_fabric(attr, fabric, context) }
}

/// Opens an object of libfabric itself.
///
/// # Safety
/// As `fi_open(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_open(
    _version: u32,
    name: *const c_char,
    _attr: *mut c_void,
    _attr_len: usize,
    _flags: u64,
    object: *mut *mut fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { log::open(name, object, context) }
}

/// Libfabric's text for an error code.
#[unsafe(no_mangle)]
pub extern "C" fn fi_strerror(code: c_int) -> *const c_char {
    persona::error_text(code)
}

/// A value in words.
///
/// # Safety
/// As `fi_tostr(3)` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_tostr_r(
    buffer: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: fi_type,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    let text = unsafe { Persona::get().library.tostr(data, kind) };
    let fitting = text.len().min(len.saturating_sub(1));
    // SAFETY: the buffer has `len` bytes, and the text with its end has no more.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, fitting);
        if len > 0 {
            buffer.add(fitting).write(0);
        }
    }
    buffer
}
