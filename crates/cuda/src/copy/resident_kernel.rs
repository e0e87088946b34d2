//! PTX of the resident kernel, and the page-locked memory that it shares with the processor.

use std::ffi::CStr;

/// The kernel's only argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments {
    pub(super) page: u64,
    /// Number of the launch.
    pub(super) number: u32,
    /// Number of the first order to execute.
    pub(super) next: u32,
    /// Nanoseconds without orders, and since its start, after which the kernel ends.
    pub(super) idle_ns: u32,
    pub(super) life_ns: u32,
}

const _: () = assert!(size_of::<Arguments>() == 24);

pub(super) const NAME: &CStr = c"nvshmem_libfabric_resident";

pub(super) const THREADS: u32 = 32;

// Offsets in the page. The kernel writes the first cache line, the processor all others.

/// 4 bytes: all orders before this number are executed and visible. At the page's start.
pub(super) const DONE: usize = 0;
/// 4 bytes: number of the last launch that has started.
pub(super) const STARTED: usize = 4;
/// 8 bytes: number of the last launch that has ended; above it, of the order where it stopped.
pub(super) const ENDED: usize = 8;
/// 4 bytes: number of a launch that must execute nothing.
pub(super) const REVOKED: usize = 64;
/// `RING` orders of four words of 8 bytes.
pub(super) const ORDERS: usize = 256;
pub(super) const RING: u32 = 64;
pub(super) const BYTES: usize = ORDERS + RING as usize * ORDER;
pub(super) const ORDER: usize = 32;

// An order: the destination; the source, or the low half of a stored word; flags and count; the
// high half of a stored word. The top byte of each is the number of the order by `RING`, so a word
// of an earlier order is told from the expected one, and the kernel needs no index of the last.

pub(super) const LAP_SHIFT: u32 = 56;
/// The count is below, the logarithm of the unit's bytes here. A lane copies one unit of less than
/// 16 bytes, and up to 8 of 16.
pub(super) const UNIT_SHIFT: u32 = 32;
pub(super) const STORE: u64 = 1 << 40;
/// All earlier orders are visible on the device before this one.
pub(super) const AFTER: u64 = 1 << 41;
/// Sets `DONE` once it is visible, with all before it.
pub(super) const REPORT: u64 = 1 << 42;
/// The copy is to the host, so the fence before `DONE` is for the system.
pub(super) const TO_HOST: u64 = 1 << 43;

/// Loads eight orders at once, of which lane 4 k + i has word i of order k. It ends without a look
/// back: the processor launches it again when it has ended and orders are left. Lanes decide
/// together, by votes and by values of lane 0.
///
/// Loads of data are volatile: neither the host's nor the device's bytes may come from a cache of
/// the multiprocessor. A barrier orders the accesses of lanes, and the fence behind it makes them
/// visible before lane 0 stores: on the device, whose cache is the point of coherence of its
/// memory, and to the system if the host's memory was written.
pub(super) const PTX: &str = concat!(include_str!("resident.ptx"), "\0");
