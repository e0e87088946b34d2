//! Memory of a device that processes of one host share: exported by the process that has it, and
//! mapped by others, whose kernels then load and store it themselves.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use thiserror::Error;

use crate::driver::context::Context;
use crate::driver::error::CudaError;
use crate::memory::heap::{map_made, unmap};
use crate::memory::pointer::Kind;
use crate::memory::range::{DeviceRange, allocation};

/// Bytes of a handle of CUDA's interprocess interface.
pub const IPC_HANDLE_BYTES: usize = size_of::<sys::CUipcMemHandle>();

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Why memory is not shared.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerMemoryError {
    /// The driver refuses it.
    #[error("{0} (`nvidia-smi topo -p2p r` shows which devices reach one another)")]
    Cuda(#[from] CudaError),
    /// A kind that cannot be exported.
    #[error("{0} is not shared between processes")]
    Kind(Kind),
    /// More than one allocation, as expandable segments are.
    #[error("it is in {0} allocations; one alone can be shared")]
    Allocations(usize),
    /// What the other process has said of its memory is not so.
    #[error("{len} bytes at {offset} are not all in its allocation of {allocation}")]
    Bounds {
        /// The first byte.
        offset: u64,
        /// How many.
        len: usize,
        /// Bytes of the allocation.
        allocation: u64,
    },
}

/// By what another process maps an allocation.
#[derive(Debug)]
pub enum Export {
    /// Memory of `cuMemAlloc`: bytes that name it on this host.
    Handle([u8; IPC_HANDLE_BYTES]),
    /// Memory of the VMM interface, made for it: a descriptor, to be passed on.
    Descriptor(OwnedFd),
}

/// Memory for other processes, as long as it is not freed here. They let go of it before.
#[derive(Debug)]
pub struct ExportedMemory {
    /// The allocation.
    pub export: Export,
    /// Its bytes.
    pub allocation: u64,
    /// Where in it the memory starts.
    pub offset: u64,
}

impl ExportedMemory {
    /// Exports the allocation that a range is in.
    ///
    /// # Errors
    /// Memory that cannot be exported, or the driver's answer.
    pub fn of(range: &DeviceRange) -> Result<Self, PeerMemoryError> {
        let (context, addr) = (range.context(), range.addr());
        let count = range.allocations().count();
        if count != 1 {
            return Err(PeerMemoryError::Allocations(count));
        }
        let _bound = context.bind()?;
        let (base, len) = allocation(context.driver(), addr)?;
        let export = match (range.kind(), range.is_owned()) {
            (Kind::Device, true) => Export::Handle(handle_of(context, base)?),
            (Kind::Device, false) => Export::Descriptor(descriptor_of(context, base)?),
            (kind, _) => return Err(PeerMemoryError::Kind(kind)),
        };
        Ok(Self { export, allocation: len as u64, offset: (addr - base) as u64 })
    }
}

/// Needs the context bound, as the next one does.
fn handle_of(context: &Context, base: usize) -> Result<[u8; IPC_HANDLE_BYTES], CudaError> {
    const CALL: &str = "cuIpcGetMemHandle";
    let driver = context.driver();
    let subject = || format!("address {base:#x} of {context}");
    let get = driver.api.cuIpcGetMemHandle.ok_or_else(|| driver.lacks(CALL, subject()))?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
    // SAFETY: a place for the handle; any address is answered.
    let status = unsafe { get(&raw mut handle, base as CUdeviceptr) };
    driver.check(CALL, status, subject)?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

fn descriptor_of(context: &Context, base: usize) -> Result<OwnedFd, CudaError> {
    const CALL: &str = "cuMemExportToShareableHandle";
    let driver = context.driver();
    let api = &driver.api;
    let subject = || format!("address {base:#x} of {context}");
    let lacks = || driver.lacks(CALL, subject());
    let retain = api.cuMemRetainAllocationHandle.ok_or_else(lacks)?;
    let release = api.cuMemRelease.ok_or_else(lacks)?;
    let export = api.cuMemExportToShareableHandle.ok_or_else(lacks)?;
    let mut handle = 0;
    // SAFETY: a place for the handle; any address is answered.
    let status = unsafe { retain(&raw mut handle, base as *mut c_void) };
    driver.check("cuMemRetainAllocationHandle", status, subject)?;
    let mut fd: c_int = -1;
    // SAFETY: for this type of handle the place is that of an `int`.
    let status = unsafe { export((&raw mut fd).cast(), handle, DESCRIPTOR, 0) };
    // SAFETY: retained above, and not used again.
    let _ = unsafe { release(handle) };
    driver.check(CALL, status, subject)?;
    // SAFETY: the driver has opened it for us; nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Memory of another process, mapped where kernels of a context's device reach it. Making and
/// dropping it may wait for everything on the device.
#[derive(Debug)]
pub struct PeerMemory {
    context: Arc<Context>,
    mapped: CUdeviceptr,
    /// Bytes of a mapping of the VMM interface; none of one by a handle.
    len: Option<usize>,
    offset: usize,
}

impl PeerMemory {
    /// Maps `len` bytes of what another process of this host has told of, none of which is
    /// believed. Devices that do not reach one another are refused by the driver.
    ///
    /// # Errors
    /// The bytes are not in the allocation, or the driver's answer.
    pub fn open(
        context: &Arc<Context>,
        told: &ExportedMemory,
        len: usize,
    ) -> Result<Self, PeerMemoryError> {
        let _bound = context.bind()?;
        let offset = told.offset;
        let inside = |allocation: u64| {
            let fits = offset.checked_add(len as u64).is_some_and(|end| end <= allocation);
            if fits { Ok(()) } else { Err(PeerMemoryError::Bounds { offset, len, allocation }) }
        };
        let (context, offset) = (Arc::clone(context), offset as usize);
        match &told.export {
            Export::Handle(handle) => {
                let mapped = open_handle(&context, handle)?;
                let memory = Self { context, mapped, len: None, offset };
                let at = mapped as usize;
                let (base, whole) = allocation(memory.context.driver(), at)?;
                inside((base + whole - at) as u64)?;
                Ok(memory)
            }
            Export::Descriptor(fd) => {
                // The driver does not map more than there is.
                inside(told.allocation)?;
                let whole = told.allocation as usize;
                let mapped = map_descriptor(&context, fd, whole)?;
                Ok(Self { context, mapped, len: Some(whole), offset })
            }
        }
    }

    /// Where the first of the bytes is, for kernels.
    pub fn addr(&self) -> usize {
        self.mapped as usize + self.offset
    }
}

/// Needs the context bound, as the next one does.
fn open_handle(
    context: &Context,
    handle: &[u8; IPC_HANDLE_BYTES],
) -> Result<CUdeviceptr, CudaError> {
    const CALL: &str = "cuIpcOpenMemHandle_v2";
    let driver = context.driver();
    let subject = || format!("memory of another process, {context}");
    let open = driver.api.cuIpcOpenMemHandle_v2.zip(driver.api.cuIpcCloseMemHandle);
    let (open, _) = open.ok_or_else(|| driver.lacks(CALL, subject()))?;
    let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
    let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut mapped = 0;
    // SAFETY: a place for the address; the driver checks what the bytes name.
    let status = unsafe { open(&raw mut mapped, handle, flags) };
    driver.check(CALL, status, subject)?;
    Ok(mapped)
}

fn map_descriptor(context: &Context, fd: &impl AsFd, len: usize) -> Result<CUdeviceptr, CudaError> {
    const CALL: &str = "cuMemImportFromShareableHandle";
    let driver = context.driver();
    let subject = || format!("{len} bytes of another process, {context}");
    let import = driver.api.cuMemImportFromShareableHandle;
    let import = import.ok_or_else(|| driver.lacks(CALL, subject()))?;
    let mut handle = 0;
    let fd = fd.as_fd().as_raw_fd() as usize as *mut c_void;
    // SAFETY: a place for the handle, and a descriptor in the place of a pointer, as this type of
    // handle has it; the driver checks what it is.
    let status = unsafe { import(&raw mut handle, fd, DESCRIPTOR) };
    driver.check(CALL, status, subject)?;
    map_made(context, handle, len, 0)
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        let driver = self.context.driver();
        // An error means that CUDA has ended before us, and has taken the mapping along.
        let Ok(_bound) = self.context.bind() else { return };
        match (self.len, driver.api.cuIpcCloseMemHandle) {
            // SAFETY: mapped by `map_made` with that length, and given back once, here.
            (Some(len), _) => unsafe { unmap(driver, self.mapped, len) },
            (None, Some(close)) => {
                // SAFETY: opened by `open_handle`, and closed once, here.
                let _ = unsafe { close(self.mapped) };
            }
            (None, None) => {}
        }
    }
}
