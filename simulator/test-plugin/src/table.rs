//! Writes a transport of each layout, and reads the host's fields back.

use nvshmem_abi::{Major, c};

use crate::calls;
use crate::{Fail, Plugin};

/// Operations that all layouts have in the same form.
macro_rules! common {
    ($t:ident, $plugin:ident) => {
        let ops = &mut (*$t).host_ops;
        ops.can_reach_peer = Some(calls::can_reach_peer);
        ops.release_mem_handle = Some(calls::release_mem_handle);
        ops.finalize = Some(calls::finalize);
        ops.show_info = Some(calls::show_info);
        ops.progress = Some(calls::progress);
        ops.rma = Some(calls::rma);
        ops.quiet = if $plugin.fail == Fail::NullQuiet { None } else { Some(calls::quiet) };
        ops.enforce_cst = Some(calls::enforce_cst);
    };
}

/// What the plugin sets beside its operations.
macro_rules! fields {
    ($t:ident, $plugin:ident, $state:expr, $api:expr) => {
        (*$t).api_version = $api;
        (*$t).attr = c::NVT_ATTR_CONNECTED;
        (*$t).state = $state.cast();
        (*$t).is_successfully_initialized = 1;
        (*$t).n_devices = $plugin.device_pointers.len() as i32;
        (*$t).device_pci_paths = $plugin.device_pointers.as_ptr().cast_mut();
        (*$t).max_op_len = crate::env("TEST_PLUGIN_MAX_OP_LEN").unwrap_or(0);
    };
}

/// One function as either form of get_mem_handle: `F` is the type of the field.
fn any_form<F: Copy>(f: calls::AnyForm) -> F {
    const { assert!(size_of::<F>() == size_of::<calls::AnyForm>()) };
    // SAFETY: `F` is an `Option` of a function pointer, of the same size. The function takes all
    // arguments of both forms as words, which is how they are passed.
    unsafe { std::mem::transmute_copy::<calls::AnyForm, F>(&f) }
}

/// Writes the transport.
///
/// # Safety
/// `plugin.raw` is valid for the largest layout.
pub(crate) unsafe fn fill(plugin: &Plugin, state: *mut Plugin, api: i32) {
    let raw = plugin.raw;
    // SAFETY: the caller vouches for `raw`; each layout is plain data and writes its prefix only.
    unsafe {
        match plugin.major {
            Major::V3 => {
                // 3a and 3b agree on everything here but the type of get_mem_handle. The maps of
                // 3b are left as they are: a 3a host must not touch them.
                let t = raw.cast::<c::nvt_transport_3a>();
                t.write(c::nvt_transport_3a::default());
                common!(t, plugin);
                fields!(t, plugin, state, api);
                let ops = &mut (*t).host_ops;
                ops.connect_endpoints = Some(calls::connect_3);
                ops.get_mem_handle = any_form(calls::get_mem_handle);
                ops.amo = Some(calls::amo_3);
                ops.fence = Some(calls::fence_3);
            }
            Major::V4 | Major::V5 => {
                let t = raw.cast::<c::nvt_transport_4>();
                t.write(c::nvt_transport_4::default());
                common!(t, plugin);
                fields!(t, plugin, state, api);
                let ops = &mut (*t).host_ops;
                ops.connect_endpoints = Some(calls::connect_4);
                ops.get_mem_handle = any_form(calls::get_mem_handle);
                ops.amo = Some(calls::amo_3);
                ops.fence = Some(calls::fence_4);
                ops.put_signal = Some(calls::put_signal_4);
            }
            Major::V6 => {
                let t = raw.cast::<c::nvt_transport_6>();
                t.write(c::nvt_transport_6::default());
                common!(t, plugin);
                fields!(t, plugin, state, api);
                let ops = &mut (*t).host_ops;
                ops.connect_endpoints = Some(calls::connect_4);
                ops.get_mem_handle = any_form(calls::get_mem_handle);
                ops.amo = Some(calls::amo_6);
                ops.fence = Some(calls::fence_4);
                ops.put_signal = Some(calls::put_signal_6);
                ops.rma_with_hints = Some(calls::rma_with_hints_6);
            }
            Major::V7 => {
                let t = raw.cast::<c::nvt_transport_7>();
                t.write(c::nvt_transport_7::default());
                common!(t, plugin);
                fields!(t, plugin, state, api);
                let ops = &mut (*t).host_ops;
                ops.connect_endpoints = Some(calls::connect_4);
                ops.get_mem_handle = any_form(calls::get_mem_handle);
                ops.amo = Some(calls::amo_6);
                ops.fence = Some(calls::fence_4);
                ops.put_signal = Some(calls::put_signal_6);
                ops.rma_with_hints = Some(calls::rma_with_hints_7);
                ops.region_flush = Some(calls::region_flush);
            }
        }
    }
}

/// What the host has written.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) boot: *mut c::nvt_bootstrap_handle,
    pub(crate) cap: *mut i32,
    pub(crate) heap_base: u64,
    pub(crate) granularity: u64,
    pub(crate) max_op_len: u64,
    pub(crate) my_pe: i32,
    pub(crate) n_pes: i32,
    pub(crate) api_version: i32,
}

/// Reads the host's fields.
pub(crate) fn given(plugin: &Plugin) -> Given {
    macro_rules! read {
        ($ty:ty) => {{
            let t = plugin.raw.cast::<$ty>();
            // SAFETY: `raw` is a transport of this layout, which the host writes before it calls
            // anything and not later.
            unsafe {
                Given {
                    boot: (*t).boot_handle,
                    cap: (*t).cap,
                    heap_base: (*t).heap_base as u64,
                    granularity: 1_u64.checked_shl((*t).log2_cumem_granularity as u32).unwrap_or(0),
                    max_op_len: (*t).max_op_len,
                    my_pe: (*t).my_pe,
                    n_pes: (*t).n_pes,
                    api_version: (*t).api_version,
                }
            }
        }};
    }
    match plugin.major {
        Major::V3 => read!(c::nvt_transport_3a),
        Major::V4 | Major::V5 => read!(c::nvt_transport_4),
        Major::V6 => read!(c::nvt_transport_6),
        Major::V7 => read!(c::nvt_transport_7),
    }
}
