//! The functions in a plugin's transport, in the form that each layout has.

use nvshmem_abi::{Layout, c};

use crate::error::{Error, Result};

/// The functions a plugin has put in its table. Each is a pointer to a function that the loaded
/// library keeps as long as [`Transport`] lives.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) can_reach_peer: c::nvt_can_reach_peer_fn,
    pub(crate) connect: Connect,
    pub(crate) get_mem_handle: GetMemHandle,
    pub(crate) release_mem_handle: c::nvt_release_mem_handle_fn,
    pub(crate) finalize: c::nvt_finalize_fn,
    pub(crate) show_info: c::nvt_show_info_fn,
    pub(crate) progress: c::nvt_progress_fn,
    pub(crate) rma: c::nvt_rma_fn,
    pub(crate) hints: Hints,
    pub(crate) amo: Amo,
    pub(crate) fence: Fence,
    pub(crate) quiet: c::nvt_quiet_fn,
    pub(crate) put_signal: PutSignal,
    pub(crate) enforce_cst: c::nvt_enforce_cst_fn,
    pub(crate) region_flush: c::nvt_region_flush_fn,
}

#[derive(Debug)]
pub(crate) enum Connect {
    Three(c::nvt_connect_endpoints_fn_3),
    Five(c::nvt_connect_endpoints_fn_4),
}

#[derive(Debug)]
pub(crate) enum GetMemHandle {
    WithHandleIn(c::nvt_get_mem_handle_fn_3a),
    Short(c::nvt_get_mem_handle_fn_3b),
}

#[derive(Debug)]
pub(crate) enum Hints {
    None,
    Six(c::nvt_rma_with_hints_fn_6),
    Seven(c::nvt_rma_with_hints_fn_7),
}

#[derive(Debug)]
pub(crate) enum Amo {
    Three(c::nvt_amo_fn_3),
    Six(c::nvt_amo_fn_6),
}

#[derive(Debug)]
pub(crate) enum Fence {
    Three(c::nvt_fence_fn_3),
    Four(c::nvt_fence_fn_4),
}

#[derive(Debug)]
pub(crate) enum PutSignal {
    None,
    Four(c::nvt_put_signal_fn_4),
    Six(c::nvt_put_signal_fn_6),
}

/// Builds a [`Table`] from one layout's operations and the fields that differ.
macro_rules! table {
    ($ops:expr, $($field:ident: $value:expr),+ $(,)?) => {{
        let ops = $ops;
        Table {
            can_reach_peer: ops.can_reach_peer,
            release_mem_handle: ops.release_mem_handle,
            finalize: ops.finalize,
            show_info: ops.show_info,
            progress: ops.progress,
            rma: ops.rma,
            quiet: ops.quiet,
            enforce_cst: ops.enforce_cst,
            $($field: $value),+
        }
    }};
}

impl Table {
    /// Reads the table.
    ///
    /// # Safety
    /// `raw` points to a transport of this layout.
    pub(crate) unsafe fn read(layout: Layout, raw: *mut c::nvt_transport) -> Table {
        // SAFETY: the caller vouches for the pointer and the layout; the tables are plain data.
        unsafe {
            match layout {
                Layout::V3a => {
                    let ops = (*raw.cast::<c::nvt_transport_3a>()).host_ops;
                    table!(ops,
                        connect: Connect::Three(ops.connect_endpoints),
                        get_mem_handle: GetMemHandle::WithHandleIn(ops.get_mem_handle),
                        hints: Hints::None,
                        amo: Amo::Three(ops.amo),
                        fence: Fence::Three(ops.fence),
                        put_signal: PutSignal::None,
                        region_flush: None,
                    )
                }
                Layout::V3b => {
                    let ops = (*raw.cast::<c::nvt_transport_3b>()).host_ops;
                    table!(ops,
                        connect: Connect::Three(ops.connect_endpoints),
                        get_mem_handle: GetMemHandle::Short(ops.get_mem_handle),
                        hints: Hints::None,
                        amo: Amo::Three(ops.amo),
                        fence: Fence::Three(ops.fence),
                        put_signal: PutSignal::None,
                        region_flush: None,
                    )
                }
                Layout::V4 | Layout::V5 => {
                    let ops = (*raw.cast::<c::nvt_transport_4>()).host_ops;
                    table!(ops,
                        connect: Connect::Five(ops.connect_endpoints),
                        get_mem_handle: GetMemHandle::Short(ops.get_mem_handle),
                        hints: Hints::None,
                        amo: Amo::Three(ops.amo),
                        fence: Fence::Four(ops.fence),
                        put_signal: PutSignal::Four(ops.put_signal),
                        region_flush: None,
                    )
                }
                Layout::V6 => {
                    let ops = (*raw.cast::<c::nvt_transport_6>()).host_ops;
                    table!(ops,
                        connect: Connect::Five(ops.connect_endpoints),
                        get_mem_handle: GetMemHandle::Short(ops.get_mem_handle),
                        hints: Hints::Six(ops.rma_with_hints),
                        amo: Amo::Six(ops.amo),
                        fence: Fence::Four(ops.fence),
                        put_signal: PutSignal::Six(ops.put_signal),
                        region_flush: None,
                    )
                }
                Layout::V7 => {
                    let ops = (*raw.cast::<c::nvt_transport_7>()).host_ops;
                    table!(ops,
                        connect: Connect::Five(ops.connect_endpoints),
                        get_mem_handle: GetMemHandle::Short(ops.get_mem_handle),
                        hints: Hints::Seven(ops.rma_with_hints),
                        amo: Amo::Six(ops.amo),
                        fence: Fence::Four(ops.fence),
                        put_signal: PutSignal::Six(ops.put_signal),
                        region_flush: ops.region_flush,
                    )
                }
            }
        }
    }

    /// Refuses a table without what the host calls unchecked.
    pub(crate) fn check(&self) -> Result<()> {
        let present = [
            ("can_reach_peer", self.can_reach_peer.is_some()),
            (
                "connect_endpoints",
                match self.connect {
                    Connect::Three(f) => f.is_some(),
                    Connect::Five(f) => f.is_some(),
                },
            ),
            (
                "get_mem_handle",
                match self.get_mem_handle {
                    GetMemHandle::WithHandleIn(f) => f.is_some(),
                    GetMemHandle::Short(f) => f.is_some(),
                },
            ),
            ("finalize", self.finalize.is_some()),
            ("rma", self.rma.is_some()),
            (
                "amo",
                match self.amo {
                    Amo::Three(f) => f.is_some(),
                    Amo::Six(f) => f.is_some(),
                },
            ),
            ("quiet", self.quiet.is_some()),
            (
                "put_signal",
                match self.put_signal {
                    PutSignal::None => true,
                    PutSignal::Four(f) => f.is_some(),
                    PutSignal::Six(f) => f.is_some(),
                },
            ),
        ];
        match present.iter().find(|(_, is)| !is) {
            Some((name, _)) => Err(missing(name)),
            None => Ok(()),
        }
    }
}

pub(crate) fn missing(name: &str) -> Error {
    Error::Plugin(format!("{name} is NULL, and NVSHMEM calls it"))
}
