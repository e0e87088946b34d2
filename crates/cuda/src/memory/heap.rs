//! A heap in device memory, for kernels and peers, made by the VMM interface if the driver has it.

use std::fmt;
use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::{self, CUdeviceptr};
use log::info;

use crate::MEM;
use crate::driver::context::Context;
use crate::driver::device::{Attributes, Device};
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;
use crate::driver::stream::Stream;
use engine::port::registration::is_unclosed;

#[derive(Clone, Copy, Debug)]
enum Backing {
    /// Memory of its own, mapped to addresses of its own (`cuMemCreate`, `cuMemMap`). NICs may
    /// reach it if it is `for_nics` (`gpuDirectRDMACapable`).
    Mapped { for_nics: bool },
    /// `cuMemAlloc`.
    Allocated,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped { for_nics: true } => "mapped, for NICs as well",
            Self::Mapped { for_nics: false } => "mapped",
            Self::Allocated => "by cuMemAlloc",
        })
    }
}

/// A heap in device memory, zeroed at first.
///
/// Allocating and freeing it may wait for all work on the device. It is leaked if the fabric may
/// still write to it.
#[derive(Debug)]
pub struct DeviceHeap {
    context: Arc<Context>,
    addr: CUdeviceptr,
    len: usize,
    backing: Backing,
}

impl DeviceHeap {
    /// Allocates at least `len` bytes on the device of a context, whose kernels reach them.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Self, CudaError> {
        let device = Device::new(context.driver(), context.device())?;
        let mut refused = Vec::new();
        for backing in mappings(&device.attributes()?) {
            match Self::by(context, len, backing) {
                Ok(heap) => return heap.made(&refused),
                // No other kind of allocation finds more memory.
                Err(failed) if failed.code == code::OUT_OF_MEMORY => return Err(failed),
                Err(failed) => refused.push(failed.to_string()),
            }
        }
        Self::by(context, len, Backing::Allocated)?.made(&refused)
    }

    /// Allocates at least `len` bytes that no context owns, with undefined content. Does not wait.
    ///
    /// # Errors
    /// The driver's, for example if the device lacks the VMM interface.
    pub(crate) fn unzeroed(context: &Arc<Context>, len: usize) -> Result<Self, CudaError> {
        Self::by(context, len, Backing::Mapped { for_nics: false })
    }

    fn made(self, refused: &[String]) -> Result<Self, CudaError> {
        self.zero()?;
        let Self { context, addr, len, backing } = &self;
        let (otherwise, refused) =
            (if refused.is_empty() { "" } else { "; not otherwise: " }, refused.join("; "));
        info!(target: MEM, "heap of {len} bytes at {addr:#x}, {context}, {backing}{otherwise}{refused}");
        Ok(self)
    }

    fn by(context: &Arc<Context>, len: usize, backing: Backing) -> Result<Self, CudaError> {
        let _bound = context.bind()?;
        let (addr, len) = match backing {
            Backing::Mapped { for_nics } => map(context, len.max(1), for_nics)?,
            Backing::Allocated => (allocate(context, len.max(1))?, len.max(1)),
        };
        Ok(Self { context: Arc::clone(context), addr, len, backing })
    }

    pub fn addr(&self) -> usize {
        self.addr as usize
    }

    /// Returns the number of bytes, at least those requested.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    fn zero(&self) -> Result<(), CudaError> {
        const CALL: &str = "cuMemsetD8Async";
        let driver = self.context.driver();
        let subject = || format!("{} bytes of {}", self.len, self.context);
        let set = driver.api.cuMemsetD8Async.ok_or_else(|| driver.lacks(CALL, subject()))?;
        let stream = Stream::new(&self.context)?;
        {
            let _bound = self.context.bind()?;
            // SAFETY: memory of ours, of that length; the stream and the context live.
            let status = unsafe { set(self.addr, 0, self.len, stream.raw()) };
            driver.check(CALL, status, subject)?;
        }
        while !stream.is_idle()? {
            thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for DeviceHeap {
    fn drop(&mut self) {
        if is_unclosed() {
            // The fabric may still write to it.
            return;
        }
        // After an error CUDA has shut down, and has freed the memory.
        if let Ok(_bound) = self.context.bind() {
            let driver = self.context.driver();
            match self.backing {
                // SAFETY: mapped by `map` with that length, and given back once, here.
                Backing::Mapped { .. } => unsafe { unmap(driver, self.addr, self.len) },
                Backing::Allocated => {
                    // SAFETY: allocated by `allocate`, and freed once, here.
                    let _ = unsafe { (driver.api.cuMemFree_v2)(self.addr) };
                }
            }
        }
    }
}

fn mappings(device: &Attributes) -> Vec<Backing> {
    let mut mappings = Vec::new();
    if device.virtual_memory {
        if device.gpudirect_rdma_vmm {
            mappings.push(Backing::Mapped { for_nics: true });
        }
        mappings.push(Backing::Mapped { for_nics: false });
    }
    mappings
}

/// Allocates memory that the context owns. The context must be bound.
pub(crate) fn allocate(context: &Context, len: usize) -> Result<CUdeviceptr, CudaError> {
    let driver = context.driver();
    let mut addr = 0;
    // SAFETY: a pointer to the address; the context is bound, by the caller.
    let status = unsafe { (driver.api.cuMemAlloc_v2)(&raw mut addr, len) };
    driver.check("cuMemAlloc_v2", status, || format!("{len} bytes, {context}"))?;
    Ok(addr)
}

/// A function of the VMM interface, or the error that the driver lacks it.
macro_rules! function {
    ($driver:ident, $name:ident, $subject:ident) => {
        $driver.api.$name.ok_or_else(|| $driver.lacks(stringify!($name), $subject()))?
    };
}

fn on_device(context: &Context) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.device().0,
    }
}

/// Allocates at least `len` bytes, and maps them for kernels of the device. Returns address and
/// length. The context must be bound.
fn map(context: &Context, len: usize, for_nics: bool) -> Result<(CUdeviceptr, usize), CudaError> {
    let driver = context.driver();
    let subject = || format!("{len} bytes, {context}");
    let granularity_of = function!(driver, cuMemGetAllocationGranularity, subject);
    let create = function!(driver, cuMemCreate, subject);

    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE,
        location: on_device(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: for_nics.into(),
            usage: 0,
            reserved: [0; 4],
        },
    };
    let mut granularity = 0;
    let recommended =
        sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: pointers to the number, and to properties to read.
    let status =
        unsafe { granularity_of(&raw mut granularity, &raw const properties, recommended) };
    driver.check("cuMemGetAllocationGranularity", status, subject)?;
    let whole = len.checked_next_multiple_of(granularity.max(1));
    let whole = whole.ok_or_else(|| driver.error("cuMemCreate", code::OUT_OF_MEMORY, subject()))?;

    let mut handle = 0;
    // SAFETY: pointers to the handle, and to properties to read.
    let status = unsafe { create(&raw mut handle, whole, &raw const properties, 0) };
    driver.check("cuMemCreate", status, subject)?;
    Ok((map_made(context, handle, whole, granularity)?, whole))
}

/// Maps the memory of a handle for kernels of the device, at a multiple of `granularity`, and
/// releases the handle. The context must be bound.
fn map_made(
    context: &Context,
    handle: sys::CUmemGenericAllocationHandle,
    whole: usize,
    granularity: usize,
) -> Result<CUdeviceptr, CudaError> {
    let driver = context.driver();
    let subject = || format!("{whole} bytes, {context}");
    let release = function!(driver, cuMemRelease, subject);
    let set_access = function!(driver, cuMemSetAccess, subject);
    let reserve_and_map = || {
        let reserve = function!(driver, cuMemAddressReserve, subject);
        let map = function!(driver, cuMemMap, subject);
        function!(driver, cuMemUnmap, subject);
        let unreserve = function!(driver, cuMemAddressFree, subject);
        let mut addr = 0;
        // SAFETY: a pointer to the address.
        let status = unsafe { reserve(&raw mut addr, whole, granularity, 0, 0) };
        driver.check("cuMemAddressReserve", status, subject)?;
        // SAFETY: addresses that were just reserved; the driver checks that there is as much
        // memory.
        let status = unsafe { map(addr, whole, 0, handle, 0) };
        driver.check("cuMemMap", status, subject).inspect_err(|_| {
            // SAFETY: reserved above; nothing is mapped there.
            let _ = unsafe { unreserve(addr, whole) };
        })?;
        Ok(addr)
    };
    let mapped: Result<CUdeviceptr, CudaError> = reserve_and_map();
    // The mapping keeps the memory, or nothing does.
    // SAFETY: the caller does not use the handle again.
    let _ = unsafe { release(handle) };
    let addr = mapped?;
    let access = sys::CUmemAccessDesc {
        location: on_device(context),
        flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: mapped just now with that length; one description to read.
    let status = unsafe { set_access(addr, whole, &raw const access, 1) };
    driver.check("cuMemSetAccess", status, subject).inspect_err(|_| {
        // SAFETY: mapped above with that length, and nobody knows it.
        unsafe { unmap(driver, addr, whole) };
    })?;
    Ok(addr)
}

/// # Safety
/// Address and length are [`map_made`]'s; nobody uses the memory any more.
unsafe fn unmap(driver: &Driver, addr: CUdeviceptr, len: usize) {
    let api = &driver.api;
    if let (Some(unmap), Some(unreserve)) = (api.cuMemUnmap, api.cuMemAddressFree) {
        // SAFETY: the caller's promise.
        unsafe {
            // Addresses that are still mapped must not be reused.
            if unmap(addr, len) == code::SUCCESS {
                let _ = unreserve(addr, len);
            }
        }
    }
}
