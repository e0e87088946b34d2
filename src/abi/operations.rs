//! Function tables for hosts; layouts 3a and 3b share one, and so do 4 and 5.

use std::ffi::c_int;
use std::mem;

use nvshmem_abi::{
    AmoVerb3, AmoVerb6, HostOps3b, HostOps4, HostOps6, HostOps7, OpAttrs6, OpAttrs7,
};
use nvshmem_abi::{RmaBytes, RmaMem, RmaVerb, Transport, c};

use crate::abi::calls::{signals, transfers};
use crate::abi::entries as e;

/// Function that enforces consistency; None if there is nothing to do.
type Consistency = c::nvt_enforce_cst_fn;

/// Builds a layout's table of the functions common to all layouts and the given ones.
macro_rules! ops {
    ($layout:ident<$amo_verb:ty>, $consistency:expr, { $($field:ident: $value:expr),* $(,)? }) => {
        $layout {
            enforce_cst: $consistency,
            can_reach_peer: Some(e::can_reach_peer),
            release_mem_handle: Some(e::release_mem_handle),
            finalize: Some(e::finalize),
            show_info: Some(e::show_info),
            progress: Some(e::progress),
            rma: Some(transfers::rma),
            amo: Some(signals::amo::<$amo_verb>),
            quiet: Some(e::quiet),
            enforce_cst_at_target: None,
            add_device_remote_mem_handles: None,
            $($field: $value,)*
        }
    };
}

/// Builds the table of layout 4 or later, which have more functions in common.
macro_rules! ops_since_4 {
    ($layout:ident<$amo_verb:ty>, $consistency:expr, { $($field:ident: $value:expr),* $(,)? }) => {
        ops!($layout<$amo_verb>, $consistency, {
            connect_endpoints: Some(e::connect_endpoints_4),
            get_mem_handle: Some(e::get_mem_handle),
            fence: Some(e::fence_4),
            put_signal: Some(signals::put_signal::<$amo_verb>),
            $($field: $value,)*
        })
    };
}

type RmaWithHints<A> = unsafe extern "C" fn(
    *mut Transport,
    c_int,
    RmaVerb,
    *mut RmaMem,
    *mut RmaMem,
    RmaBytes,
    c_int,
    *const A,
) -> c_int;

/// Returns `rma` as the entry `rma_with_hints` of layouts 6 and 7. A layout that declares it
/// otherwise does not compile.
fn rma_with_hints<A>() -> Option<RmaWithHints<A>> {
    // SAFETY: `rma` takes the arguments before the hints. Callers pass these after them, on the
    // stack or in a register, which it ignores, and remove what they have pushed.
    Some(unsafe { mem::transmute::<*const (), RmaWithHints<A>>(transfers::rma as *const ()) })
}

pub(crate) fn ops_3(consistency: Consistency) -> HostOps3b {
    ops!(HostOps3b<AmoVerb3>, consistency, {
        connect_endpoints: Some(e::connect_endpoints_3),
        // SAFETY: `get_mem_handle_3` takes six integers, which both forms of layout 3 pass in
        // registers, and detects the form.
        get_mem_handle: Some(unsafe {
            mem::transmute::<e::GetMemHandle3, e::GetMemHandle3b>(e::get_mem_handle_3)
        }),
        fence: Some(e::fence_3),
    })
}

pub(crate) fn ops_4(consistency: Consistency) -> HostOps4 {
    ops_since_4!(HostOps4<AmoVerb3>, consistency, {})
}

pub(crate) fn ops_6(consistency: Consistency) -> HostOps6 {
    ops_since_4!(HostOps6<AmoVerb6>, consistency, {
        rma_with_hints: rma_with_hints::<OpAttrs6>(),
    })
}

pub(crate) fn ops_7(consistency: Consistency) -> HostOps7 {
    ops_since_4!(HostOps7<AmoVerb6>, consistency, {
        rma_with_hints: rma_with_hints::<OpAttrs7>(),
        region_flush: Some(transfers::region_flush),
    })
}
