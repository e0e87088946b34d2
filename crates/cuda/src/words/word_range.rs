//! A range with the window that the CPU has on its words, where there is one.

use std::sync::Arc;

use crate::MEM;
use crate::copy::request::CopyError;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use crate::words::gdrcopy::Gdrcopy;
use crate::words::mapping::Mapped;

/// Makes the words of ranges reachable by the way that was found for a context.
///
/// # Threads
/// Any, at once: a range is made reachable where it is registered, and used by another thread.
#[derive(Clone, Copy, Debug)]
pub struct Mapper {
    /// None: by the stream.
    pub(crate) gdrcopy: Option<&'static Gdrcopy>,
}

/// A range whose words can be read and written. Dropping it takes the CPU's window on it away.
#[derive(Debug)]
pub struct WordRange {
    range: Arc<DeviceRange>,
    /// None: by the stream.
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    mapped: Mapped,
    /// The mapped range, or the same memory at other addresses.
    of: Arc<DeviceRange>,
}

impl Mapper {
    /// Makes the words of a range reachable. Where it cannot be mapped (a PCIe window too small for
    /// it, for one), `alias` is tried: the same memory at other addresses, of the same length.
    /// Where that fails as well the driver's streams serve it, and the log says why.
    ///
    /// It may take system calls for each allocation, and does not wait for kernels.
    pub fn open(&self, range: Arc<DeviceRange>, alias: Option<Arc<DeviceRange>>) -> WordRange {
        // Nothing maps managed memory: it moves.
        let gdrcopy = self.gdrcopy.filter(|_| range.kind() != Kind::Managed);
        let Some(gdrcopy) = gdrcopy else { return WordRange::unmapped(range) };
        let mut reasons = Vec::new();
        let aliases = alias.filter(|alias| alias.len() == range.len());
        for of in [Some(Arc::clone(&range)), aliases].into_iter().flatten() {
            match Mapped::by_gdrcopy(&of, gdrcopy) {
                Ok(mapped) => return WordRange { range, window: Some(Window { mapped, of }) },
                Err(reason) => reasons.push(format!("at {:#x}: {reason}", of.addr())),
            }
        }
        log::warn!(
            target: MEM,
            "words in {} bytes of {} cannot be reached by GDRCopy, and are by the driver's streams: {}",
            range.len(),
            range.context(),
            reasons.join("; "),
        );
        WordRange::unmapped(range)
    }
}

impl WordRange {
    /// A range whose words the driver's streams reach. Costs nothing.
    pub fn unmapped(range: Arc<DeviceRange>) -> Self {
        Self { range, window: None }
    }

    /// The range.
    pub fn range(&self) -> &Arc<DeviceRange> {
        &self.range
    }

    /// Whether the CPU has a window on it.
    pub fn is_mapped(&self) -> bool {
        self.window.is_some()
    }

    /// Where the CPU finds an address of the range, to the end of its allocation: stores are
    /// combined there, and loads go all the way to the device. None without a window.
    pub fn cpu_addr(&self, addr: usize) -> Option<usize> {
        let (mapped, addr) = self.window(addr)?;
        Some(mapped.cpu_addr(addr))
    }

    pub(crate) fn check(&self, addr: usize, len: usize) -> Result<(), CopyError> {
        let has_them = self.range.contains(addr, len);
        if has_them { Ok(()) } else { Err(CopyError::Bounds { addr, len }) }
    }

    #[inline]
    pub(crate) fn window(&self, addr: usize) -> Option<(&Mapped, usize)> {
        let window = self.window.as_ref()?;
        Some((&window.mapped, addr - self.range.addr() + window.of.addr()))
    }
}
