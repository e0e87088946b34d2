//! The tables of functions that hosts are given, one for each layout.

use nvshmem_abi::{
    AmoVerb3, AmoVerb6, HostOps3b, HostOps4, HostOps6, HostOps7, Major, OpAttrs6, OpAttrs7, c,
};

use crate::abi::calls::{hints, signals, transfers};
use crate::abi::entries as e;
use crate::abi::state::Operations;
use crate::job::Job;

pub(crate) fn of(major: Major, job: &Job) -> Operations {
    let enforces: c::nvt_enforce_cst_fn = Some(e::enforce_cst);
    let offers = Offers { enforce_cst: enforces.filter(|_| job.enforces_consistency()) };
    match major {
        Major::V3 => Operations::V3(ops_3(offers)),
        Major::V4 | Major::V5 => Operations::V4(ops_4(offers)),
        Major::V6 => Operations::V6(ops_6(offers)),
        Major::V7 => Operations::V7(ops_7(offers)),
    }
}

#[derive(Clone, Copy)]
struct Offers {
    /// For requests of consistency; none where there is nothing to do.
    enforce_cst: c::nvt_enforce_cst_fn,
}

/// A layout's functions: those that are the same in every layout, and the given ones.
macro_rules! ops {
    ($layout:ident { $($field:ident: $value:expr),* $(,)? }) => {
        $layout {
            can_reach_peer: Some(e::can_reach_peer),
            release_mem_handle: Some(e::release_mem_handle),
            finalize: Some(e::finalize),
            show_info: Some(e::show_info),
            progress: Some(e::progress),
            quiet: Some(e::quiet),
            enforce_cst_at_target: None,
            add_device_remote_mem_handles: None,
            $($field: $value,)*
        }
    };
}

fn ops_3(offers: Offers) -> HostOps3b {
    ops!(HostOps3b {
        enforce_cst: offers.enforce_cst,
        connect_endpoints: Some(e::connect_endpoints_3),
        // SAFETY: `get_mem_handle_3` takes six integers, which is what both forms of layout 3 pass
        // in registers; it finds out which of the two it was called as.
        get_mem_handle: Some(unsafe {
            std::mem::transmute::<e::GetMemHandle3, e::GetMemHandle3b>(e::get_mem_handle_3)
        }),
        rma: Some(transfers::rma),
        amo: Some(signals::amo::<AmoVerb3>),
        fence: Some(e::fence_3),
    })
}

fn ops_4(offers: Offers) -> HostOps4 {
    ops!(HostOps4 {
        enforce_cst: offers.enforce_cst,
        connect_endpoints: Some(e::connect_endpoints_4),
        get_mem_handle: Some(e::get_mem_handle),
        rma: Some(transfers::rma),
        amo: Some(signals::amo::<AmoVerb3>),
        fence: Some(e::fence_4),
        put_signal: Some(signals::put_signal::<AmoVerb3>),
    })
}

fn ops_6(offers: Offers) -> HostOps6 {
    ops!(HostOps6 {
        enforce_cst: offers.enforce_cst,
        connect_endpoints: Some(e::connect_endpoints_4),
        get_mem_handle: Some(e::get_mem_handle),
        rma: Some(transfers::rma),
        amo: Some(signals::amo::<AmoVerb6>),
        fence: Some(e::fence_4),
        put_signal: Some(signals::put_signal::<AmoVerb6>),
        rma_with_hints: Some(hints::rma_with_hints::<OpAttrs6>),
    })
}

fn ops_7(offers: Offers) -> HostOps7 {
    ops!(HostOps7 {
        enforce_cst: offers.enforce_cst,
        connect_endpoints: Some(e::connect_endpoints_4),
        get_mem_handle: Some(e::get_mem_handle),
        rma: Some(transfers::rma),
        amo: Some(signals::amo::<AmoVerb6>),
        fence: Some(e::fence_4),
        put_signal: Some(signals::put_signal::<AmoVerb6>),
        rma_with_hints: Some(hints::rma_with_hints::<OpAttrs7>),
        region_flush: Some(hints::region_flush),
    })
}
