//! Registration of device memory for direct access by NICs, from CUDA's description of the range.

use log::{debug, info};

use crate::job::memory::consistency::{is_orderable, keeps_order};
use crate::logging;
use cuda::{Device, DeviceRange, DmaBuf, Kind};
use engine::port::{Access, Registered};
use ofi::{DeviceMemory, DirectRefusal, DmaBufPart, OfiMemory, OfiRegion};

/// Registers a range of device memory with every rail. `addr` is the address that operations use,
/// the range's own unless it is mapped twice.
///
/// May take some milliseconds for each rail, and exports a dma-buf if that is useful.
///
/// # Errors
/// All obstacles; the memory may be staged then, unless the refusal is an error. No registration is
/// left.
pub fn register_direct(
    fabric: &OfiMemory,
    addr: usize,
    range: &DeviceRange,
    access: Access,
) -> Result<Registered<OfiRegion>, DirectRefusal> {
    let refuse = |reason: String| Err(fabric.refuse_direct(vec![reason]));
    if range.kind() != Kind::Device {
        // Managed memory migrates, and libfabric has no kind for memory of a NUMA node.
        return refuse(format!("it is {}", range.kind()));
    }
    if addr != range.addr() {
        return refuse(format!("the fabric would reach it at {:#x} only", range.addr()));
    }
    let context = range.context();
    let device = context.device();
    let known = Device::new(context.driver(), device);
    let pci = known.as_ref().ok().and_then(|device| device.pci_address().ok());
    let pci = pci.and_then(|pci| pci.parse().ok());
    let attributes = known.and_then(|device| device.attributes()).ok();
    if !attributes.as_ref().is_some_and(is_orderable) {
        return refuse(String::from("nothing makes NICs' writes visible to the device in order"));
    }
    let keeps_order = attributes.as_ref().is_some_and(keeps_order);

    let exported = if fabric.takes_dma_bufs() {
        DmaBuf::export(range, addr, range.len()).map_err(|error| error.to_string())
    } else {
        Err(String::from("not with this provider and version"))
    };
    let dma_buf = match &exported {
        Ok(exported) => Ok(DmaBufPart { fd: exported.fd(), offset: exported.offset() }),
        Err(reason) => Err(reason.as_str()),
    };
    let with_context = &|run: &mut dyn FnMut()| match context.bind() {
        Ok(_bound) => run(),
        Err(error) => info!(target: logging::MEM, "registering {addr:#x}: {error}"),
    };
    let memory = DeviceMemory {
        addr,
        len: range.len(),
        ordinal: device.0,
        pci,
        keeps_order,
        is_whole: range.allocations().count() == 1,
        dma_buf,
        with_context,
    };
    let registered = fabric.register_device(&memory, access)?;
    // As late as possible, since it slows down the program's own copies to the memory.
    if let Err(error) = range.set_sync_memops() {
        // Memory of the VMM interface, which does not need it, or an old driver.
        debug!(target: logging::MEM, "{error}");
    }
    Ok(registered)
}
