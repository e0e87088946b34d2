use std::sync::Arc;

use crate::MEM;
use crate::copy::request::CopyError;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use crate::words::mapping::{RangeMapping, Window};

/// Maps ranges for access to their words, by the method chosen for a context.
///
/// # Threads
/// Any, at once: the thread that registers a range maps it, and another one uses it.
#[derive(Clone, Copy, Debug)]
pub struct Mapper {
    /// None if words are reached through the stream.
    pub(crate) window: Option<Window>,
}

/// A range whose words can be read and written. Dropping it ends its CPU mapping.
#[derive(Debug)]
pub struct WordRange {
    range: Arc<DeviceRange>,
    /// None if words are reached through the stream.
    mapping: Option<CpuMapping>,
}

#[derive(Debug)]
struct CpuMapping {
    mapped: RangeMapping,
    /// The mapped range, or the same memory at other addresses.
    of: Arc<DeviceRange>,
}

impl Mapper {
    /// Maps a range for the CPU. If it cannot be mapped (a PCIe BAR that is too small, for
    /// example), tries `alias`: the same memory at other addresses, of the same length. If that
    /// fails as well, words are reached through the driver's streams, and the log says why.
    ///
    /// May make system calls for each allocation; does not wait for kernels.
    pub fn open(&self, range: Arc<DeviceRange>, alias: Option<Arc<DeviceRange>>) -> WordRange {
        // Nothing maps managed memory: it moves.
        let window = self.window.filter(|_| range.kind() != Kind::Managed);
        let Some(window) = window else { return WordRange::unmapped(range) };
        let mut reasons = Vec::new();
        let aliases = alias.filter(|alias| alias.len() == range.len());
        for of in [Some(Arc::clone(&range)), aliases].into_iter().flatten() {
            match RangeMapping::new(&of, window) {
                Ok(mapped) => return WordRange { range, mapping: Some(CpuMapping { mapped, of }) },
                Err(reason) => reasons.push(format!("at {:#x}: {reason}", of.addr())),
            }
        }
        log::warn!(
            target: MEM,
            "words in {} bytes of {} cannot be reached by {window}, and are by the driver's streams: {}",
            range.len(),
            range.context(),
            reasons.join("; "),
        );
        WordRange::unmapped(range)
    }
}

impl WordRange {
    /// Wraps a range whose words are reached through the driver's streams.
    pub fn unmapped(range: Arc<DeviceRange>) -> Self {
        Self { range, mapping: None }
    }

    pub fn range(&self) -> &Arc<DeviceRange> {
        &self.range
    }

    pub fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns the CPU's address of a byte of the range, valid to the end of its allocation. Stores
    /// to it are write-combined, and loads go to the device. None without a CPU mapping.
    pub fn cpu_addr(&self, addr: usize) -> Option<usize> {
        let (mapped, addr) = self.cpu_mapping(addr)?;
        Some(mapped.cpu_addr(addr))
    }

    pub(crate) fn check(&self, addr: usize, len: usize) -> Result<(), CopyError> {
        let has_them = self.range.contains(addr, len);
        if has_them { Ok(()) } else { Err(CopyError::Bounds { addr, len }) }
    }

    #[inline]
    pub(crate) fn cpu_mapping(&self, addr: usize) -> Option<(&RangeMapping, usize)> {
        let mapping = self.mapping.as_ref()?;
        Some((&mapping.mapped, addr - self.range.addr() + mapping.of.addr()))
    }
}
