//! NCCL's RMA plugin interface: one table of functions per version, from NCCL 2.30 on.
//!
//! The versions have most functions in common, so one macro describes them all. Facts are from
//! NVIDIA's public headers (`src/include/plugin/rma` and `net` of NCCL): v14 of 2.30.7, v15 of
//! 2.31, v16 of 2.32. v13, of 2.30.3 and 2.30.4, is not supported; there is no v12 or older.
//!
//! | version | differs from the one before in |
//! |---|---|
//! | 15 | flags of operations, see [`MORE_FOLLOWS`] |
//! | 16 | [`RmaProperties`] |

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// Result of every function: `ncclResult_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub c_int);

impl Status {
    pub const SUCCESS: Self = Self(0);
    /// A call of the system or of the network failed.
    pub const SYSTEM: Self = Self(2);
    /// A fault of the plugin's own.
    pub const INTERNAL: Self = Self(3);
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// The call is not valid now, or not supported.
    pub const INVALID_USAGE: Self = Self(5);
    /// A peer is at fault.
    pub const REMOTE: Self = Self(6);
}

/// Bytes of a handle that [`listen`](Table14::listen) fills in.
pub const HANDLE_BYTES: usize = 128;

/// Memory of the host, in [`Properties::ptr_support`] and as the type of a registration.
pub const PTR_HOST: c_int = 1;
/// Memory of CUDA devices.
pub const PTR_CUDA: c_int = 2;
/// Memory of CUDA devices by dma-buf.
pub const PTR_DMABUF: c_int = 4;

/// Flag of a registration: the memory may hold signals.
pub const MR_FORCE_SO: u64 = 1;
/// Flag of a registration: its signals only ever grow.
pub const MR_SIGNAL_NEVER_RESET: u64 = 2;

/// Adds one to a signal, whatever the value.
pub const SIGNAL_INC: u32 = 1;
/// Adds the value to a signal.
pub const SIGNAL_ADD: u32 = 2;

/// Flag of an operation, from v15 on: others follow at once, so the doorbell may wait.
pub const MORE_FOLLOWS: u32 = 1;

/// [`Properties::net_device_type`] of a plugin that a proxy thread of NCCL's drives.
pub const DEVICE_GIN_PROXY: c_int = 2;

/// Operations that NCCL has in flight per context and rank, times [`Properties::max_recvs`].
pub const MAX_REQUESTS: usize = 32;

/// NCCL's logger: level, subsystems, file or function, line, format, arguments.
pub type Logger = Option<
    unsafe extern "C" fn(
        level: c_int,
        subsystems: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    ),
>;

/// Levels of [`Logger`].
pub mod level {
    use std::ffi::c_int;

    /// Shown with `NCCL_DEBUG=WARN`; `ncclGetLastError` returns the latest.
    pub const WARN: c_int = 2;
    /// Shown with `NCCL_DEBUG=INFO`.
    pub const INFO: c_int = 3;
}

/// Subsystems of [`Logger`], a bit each.
pub mod subsystem {
    use std::ffi::c_ulong;

    pub const INIT: c_ulong = 1;
    pub const NET: c_ulong = 16;
    /// Topology.
    pub const GRAPH: c_ulong = 32;
    pub const PROXY: c_ulong = 1024;
    pub const REG: c_ulong = 8192;
    pub const ALL: c_ulong = c_ulong::MAX;
}

/// `ncclNetProperties_v12_t`: what a device is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// For the log; stays valid.
    pub name: *const c_char,
    /// Path of the device in sysfs, or null; stays valid.
    pub pci_path: *const c_char,
    /// Unique per chip.
    pub guid: u64,
    /// [`PTR_HOST`], [`PTR_CUDA`] and [`PTR_DMABUF`].
    pub ptr_support: c_int,
    /// Whether registrations serve every group.
    pub reg_is_global: c_int,
    /// Whether every receive has to be flushed.
    pub force_flush: c_int,
    /// Megabits per second.
    pub speed: c_int,
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Groups at most.
    pub max_comms: c_int,
    /// Operations in flight, in units of [`MAX_REQUESTS`].
    pub max_recvs: c_int,
    /// [`DEVICE_GIN_PROXY`].
    pub net_device_type: c_int,
    /// Version of a device interface for kernels.
    pub net_device_version: c_int,
    /// The devices that this one merges.
    pub virtual_devices: VirtualDevices,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    /// Operations of one call at most.
    pub max_multi_request_size: c_int,
    /// -1: not known.
    pub rail_id: i16,
    /// -1: not known.
    pub plane_id: i16,
}

/// `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevices {
    pub count: c_int,
    pub devices: [c_int; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub contexts: c_int,
    /// Traffic class of the network, or -1.
    pub traffic_class: c_int,
    /// Distance between the ranks that are used.
    pub rank_stride: c_int,
}

/// `ncclRmaProperties_v16_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RmaProperties {
    /// Whether a signal from any peer makes all puts visible that were received before it.
    pub flushes_all_puts_on_any_signal: bool,
}

/// A table of functions. The parts in braces are what differs between versions.
macro_rules! table {
    (
        $(#[$doc:meta])* $name:ident,
        properties: { $($properties:tt)* },
        flags: { $($flags:tt)* }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// For the log; stays valid.
            pub name: *const c_char,
            /// Begins the use of the plugin by a communicator.
            pub init: unsafe extern "C" fn(
                ctx: *mut *mut c_void, communicator: u64, logger: Logger,
            ) -> Status,
            pub devices: unsafe extern "C" fn(count: *mut c_int) -> Status,
            $($properties)*
            pub get_properties: unsafe extern "C" fn(
                device: c_int, properties: *mut Properties,
            ) -> Status,
            /// Makes a listener, and the [`HANDLE_BYTES`] by which others connect to it.
            pub listen: unsafe extern "C" fn(
                ctx: *mut c_void, device: c_int, handle: *mut c_void, listening: *mut *mut c_void,
            ) -> Status,
            /// Makes a group of all ranks whose handles are given. Collective.
            pub connect: unsafe extern "C" fn(
                ctx: *mut c_void, handles: *const *const c_void, ranks: c_int, rank: c_int,
                listening: *mut c_void, group: *mut *mut c_void,
            ) -> Status,
            /// Makes a block of contexts, each with an order of its own.
            pub create_context: unsafe extern "C" fn(
                group: *mut c_void, config: *mut Config, contexts: *mut *mut c_void,
            ) -> Status,
            /// Registers memory. Collective.
            pub reg_mr_sym: unsafe extern "C" fn(
                group: *mut c_void, data: *mut c_void, size: usize, kind: c_int, flags: u64,
                handle: *mut *mut c_void,
            ) -> Status,
            pub reg_mr_sym_dma_buf: unsafe extern "C" fn(
                group: *mut c_void, data: *mut c_void, size: usize, kind: c_int, offset: u64,
                fd: c_int, flags: u64, handle: *mut *mut c_void,
            ) -> Status,
            pub dereg_mr_sym: unsafe extern "C" fn(
                group: *mut c_void, handle: *mut c_void,
            ) -> Status,
            pub destroy_context: unsafe extern "C" fn(contexts: *mut c_void) -> Status,
            pub close_coll: unsafe extern "C" fn(group: *mut c_void) -> Status,
            pub close_listen: unsafe extern "C" fn(listening: *mut c_void) -> Status,
            pub iput: unsafe extern "C" fn(
                contexts: *mut c_void, context: c_int, source_offset: u64, source: *mut c_void,
                size: usize, target_offset: u64, target: *mut c_void, rank: u32,
                $($flags)* request: *mut *mut c_void,
            ) -> Status,
            /// Starts a put with a signal behind it; with no bytes and no handles, a signal alone.
            pub iput_signal: unsafe extern "C" fn(
                contexts: *mut c_void, context: c_int, source_offset: u64, source: *mut c_void,
                size: usize, target_offset: u64, target: *mut c_void, rank: u32,
                signal_offset: u64, signal: *mut c_void, value: u64, operation: u32,
                strong: bool, $($flags)* request: *mut *mut c_void,
            ) -> Status,
            pub iget: unsafe extern "C" fn(
                contexts: *mut c_void, context: c_int, remote_offset: u64, remote: *mut c_void,
                size: usize, local_offset: u64, local: *mut c_void, rank: u32,
                $($flags)* request: *mut *mut c_void,
            ) -> Status,
            /// Makes the data of completed gets visible to the device.
            pub iflush: unsafe extern "C" fn(
                contexts: *mut c_void, context: c_int, handle: *mut c_void, rank: u32,
                request: *mut *mut c_void,
            ) -> Status,
            /// Whether an operation is complete.
            pub test: unsafe extern "C" fn(
                group: *mut c_void, request: *mut c_void, done: *mut c_int,
            ) -> Status,
            pub progress: unsafe extern "C" fn(contexts: *mut c_void) -> Status,
            pub query_last_error: unsafe extern "C" fn(
                contexts: *mut c_void, has_error: *mut bool,
            ) -> Status,
            pub finalize: unsafe extern "C" fn(ctx: *mut c_void) -> Status,
        }

        // SAFETY: functions, and a string that is never freed or changed.
        unsafe impl Sync for $name {}
    };
}

table! {
    /// `ncclRmaPlugin_v14`.
    Table14,
    properties: {},
    flags: {}
}

table! {
    /// `ncclRmaPlugin_v15`.
    Table15,
    properties: {},
    flags: { flags: u32, }
}

table! {
    /// `ncclRmaPlugin_v16`.
    Table16,
    properties: {
        /// Optional guarantees of the plugin for a group.
        pub get_rma_properties: unsafe extern "C" fn(
            group: *mut c_void, properties: *mut RmaProperties,
        ) -> Status,
    },
    flags: { flags: u32, }
}

/// Names of the symbols that NCCL looks for, the newest first.
pub const SYMBOLS: [&str; 3] = ["ncclRmaPlugin_v16", "ncclRmaPlugin_v15", "ncclRmaPlugin_v14"];

const _: () = {
    assert!(size_of::<Properties>() == 128);
    assert!(std::mem::offset_of!(Properties, virtual_devices) == 64);
    assert!(std::mem::offset_of!(Properties, max_p2p_bytes) == 104);
    assert!(std::mem::offset_of!(Properties, plane_id) == 126);
    assert!(size_of::<Config>() == 12);
    assert!(size_of::<Table14>() == 21 * 8);
    assert!(size_of::<Table15>() == 21 * 8 && size_of::<Table16>() == 22 * 8);
    assert!(std::mem::offset_of!(Table16, get_rma_properties) == 24);
};
