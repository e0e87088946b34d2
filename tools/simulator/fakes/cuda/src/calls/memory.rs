//! Memory of a device or managed, and what is to be known of an address.

use std::os::fd::IntoRawFd;

use super::stream::{allowed, of_handle};
use crate::state::context::{current, current_at_once};
use crate::state::device::{EXPORTED, MEMORY};
use crate::state::memory::{Mapping, find, forget, remove};
use crate::state::pages::{DEVICE_PAGE, Kind, Pages, reserve, round_up};
use crate::state::settings::variable;
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Out, Status};

const PAGE: usize = 4096;

/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, of CUDA 12.8 and newer.
const BY_PCIE: u64 = 1;

fn allocate(len: usize, kind: Kind) -> Result<usize, Status> {
    let context = current()?;
    allowed()?;
    let device = context.device;
    let whole = round_up(len)?;
    device.take(MEMORY, len)?;
    let pages = Pages::new(whole)?;
    pages.soil();
    let base = pages.show(reserve(whole, DEVICE_PAGE)?, kind == Kind::Managed)?;
    let context = (kind != Kind::Pool).then_some(context);
    let made = Mapping::new((base, len), kind, device, Some(pages));
    Mapping { context, ..made }.insert();
    Ok(base)
}

calls! {
    fn cuMemAlloc_v2(into: Out<usize>, len: usize) {
        into.put(allocate(len, Kind::Device)?)
    }

    fn cuMemAllocManaged(into: Out<usize>, len: usize, _flags: u32) {
        into.put(allocate(len, Kind::Managed)?)
    }

    fn cuMemFree_v2(base: usize) {
        let context = current()?;
        if base == 0 {
            return Ok(());
        }
        allowed()?;
        context.alone(|| forget(remove(base, &[Kind::Device, Kind::Managed, Kind::Pool])?))
    }

    /// Memory of the device's pool. It is there at once.
    fn cuMemAllocAsync(into: Out<usize>, len: usize, on: usize) {
        of_handle(on)?;
        into.put(allocate(len, Kind::Pool)?)
    }

    fn cuMemGetAddressRange_v2(base: Out<usize>, len: Out<usize>, address: usize) {
        current_at_once()?;
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        // Each may be null.
        let (base, len) = ((base, mapping.base), (len, mapping.len));
        [base, len].iter().filter(|(to, _)| !to.is_null()).try_for_each(|(to, is)| to.put(*is))
    }

    /// A dma-buf is the file of the pages here; it begins where the descriptor is in the file. One
    /// that the CPU may map begins where the file does: `mmap` looks at no position.
    fn cuMemGetHandleForAddressRange(
        into: Out<i32>,
        address: usize,
        len: usize,
        handle_type: u32,
        flags: u64,
    ) {
        let context = current()?;
        let offered = variable("FAKE_CUDA_DMA_BUF", 2);
        if offered == 0 || handle_type != 1 {
            return Err(NOT_SUPPORTED);
        }
        if flags > BY_PCIE || flags == BY_PCIE && offered < 2 {
            return Err(INVALID_VALUE);
        }
        if flags == BY_PCIE {
            context.device.count(EXPORTED);
        }
        if address % PAGE != 0 || len % PAGE != 0 || len == 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        let whole = round_up(mapping.len)?;
        let offset = address - mapping.base;
        let may_be_mapped = matches!(mapping.kind, Kind::Device | Kind::VmmDevice) && offset == 0;
        if offered > 2 && flags == 0 && !may_be_mapped {
            return Err(NOT_SUPPORTED);
        }
        let pages = mapping.pages.ok_or(INVALID_VALUE)?;
        if len > whole - offset {
            return Err(INVALID_VALUE);
        }
        into.put(pages.open_at(offset)?.into_raw_fd())
    }
}
