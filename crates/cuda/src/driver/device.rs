//! Devices and their attributes, which decide how memory is reached.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute_enum as attribute};

use crate::driver::api::Status;
use crate::driver::context::{Context, Ordinal, device_number};
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED`, of CUDA 13.3 and newer.
const DMA_BUF_MMAP_SUPPORTED: u32 = 152;

/// Scope in which a NIC's writes are visible before the flag that follows them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WritesOrdering {
    /// None: the writes have to be flushed before they are read.
    None,
    /// Work on the device that owns the memory.
    Owner,
    /// Work on all devices.
    AllDevices,
}

impl WritesOrdering {
    fn from_attribute(value: c_int) -> Self {
        match value {
            200.. => WritesOrdering::AllDevices,
            100.. => WritesOrdering::Owner,
            _ => WritesOrdering::None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Whether a NIC can read and write its memory.
    pub gpudirect_rdma: bool,
    /// Whether a NIC can read and write mappings of the VMM interface.
    pub gpudirect_rdma_vmm: bool,
    pub writes_ordering: WritesOrdering,
    /// Whether [`flush_writes`] works on the host.
    pub flush_on_host: bool,
    pub dma_buf: bool,
    /// Whether `mmap` maps dma-bufs of its memory for the CPU.
    pub dma_buf_mmap: bool,
    pub virtual_memory: bool,
    /// Whether it has 64-bit stream memory operations. 32-bit ones need only the driver's function.
    pub stream_write_64: bool,
    /// Nearest NUMA node of the host; -1 before CUDA 12.2.
    pub host_numa_node: i32,
}

#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: &'static Driver,
    ordinal: Ordinal,
    number: CUdevice,
}

type TextOfDevice = unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> Status;

impl Device {
    /// Returns the number of devices that the process sees. CUDA must have been started.
    pub fn count(driver: &Driver) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: a pointer to the number.
        let status = unsafe { (driver.api.cuDeviceGetCount)(&raw mut count) };
        driver.check("cuDeviceGetCount", status, || String::from("this process"))?;
        Ok(count)
    }

    pub fn new(driver: &'static Driver, ordinal: Ordinal) -> Result<Self, CudaError> {
        Ok(Self { driver, ordinal, number: device_number(driver, ordinal)? })
    }

    /// Returns the device of the context that is bound on this thread, if any.
    pub fn current(driver: &'static Driver) -> Option<Self> {
        let mut number = 0;
        // SAFETY: a pointer to the number. Without a context the call fails.
        let status = unsafe { (driver.api.cuCtxGetDevice)(&raw mut number) };
        (status == code::SUCCESS).then_some(Self { driver, ordinal: Ordinal(number), number })
    }

    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub fn ordinal(&self) -> Ordinal {
        self.ordinal
    }

    pub fn name(&self) -> Result<String, CudaError> {
        self.text("cuDeviceGetName", self.driver.api.cuDeviceGetName)
    }

    /// Returns its PCI address in the form that Linux uses: `0000:3b:00.0`.
    pub fn pci_address(&self) -> Result<String, CudaError> {
        let text = self.text("cuDeviceGetPCIBusId", self.driver.api.cuDeviceGetPCIBusId)?;
        Ok(text.to_ascii_lowercase())
    }

    /// Returns the device's capabilities; those that the driver does not know are absent.
    pub fn attributes(&self) -> Result<Attributes, CudaError> {
        let number = |which| Ok(self.attribute(which as u32)?.unwrap_or(0));
        let yes = |which| Ok(number(which)? != 0);
        let flush = number(attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        let ordering = number(attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        let numa = self.attribute(attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID as u32)?;
        Ok(Attributes {
            compute: (
                number(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?.unsigned_abs(),
                number(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?.unsigned_abs(),
            ),
            gpudirect_rdma: yes(attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
            gpudirect_rdma_vmm: yes(
                attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
            )?,
            writes_ordering: WritesOrdering::from_attribute(ordering),
            flush_on_host: flush & 1 != 0,
            dma_buf: yes(attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            dma_buf_mmap: self.attribute(DMA_BUF_MMAP_SUPPORTED)?.unwrap_or(0) != 0,
            virtual_memory: yes(
                attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            )?,
            stream_write_64: yes(attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?,
            host_numa_node: numa.unwrap_or(-1),
        })
    }

    fn attribute(&self, which: u32) -> Result<Option<c_int>, CudaError> {
        let mut value = 0;
        // SAFETY: a pointer to the number; any attribute is answered.
        let status =
            unsafe { (self.driver.api.cuDeviceGetAttribute)(&raw mut value, which, self.number) };
        if status == code::INVALID_VALUE {
            return Ok(None);
        }
        let subject = || format!("attribute {which} of device {}", self.ordinal);
        self.driver.check("cuDeviceGetAttribute", status, subject)?;
        Ok(Some(value))
    }

    /// Returns what a function of the driver writes into a buffer of the length it is given.
    fn text(&self, call: &'static str, get: TextOfDevice) -> Result<String, CudaError> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the buffer has the length given.
        let status = unsafe { get(text.as_mut_ptr(), text.len() as c_int, self.number) };
        self.driver.check(call, status, || format!("device {}", self.ordinal))?;
        let last = text.len() - 1;
        text[last] = 0;
        // SAFETY: terminated inside the buffer, by the line above at the latest.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.ordinal)?;
        if let (Ok(name), Ok(pci)) = (self.name(), self.pci_address()) {
            write!(f, " ({name}, {pci})")?;
        }
        Ok(())
    }
}

/// Makes NICs' earlier writes visible to the context's device (`cuFlushGPUDirectRDMAWrites`).
///
/// # Errors
/// The driver's, also if it lacks the function.
pub fn flush_writes(context: &Context) -> Result<(), CudaError> {
    use cudarc::driver::sys::CUflushGPUDirectRDMAWritesScope_enum as scope;
    use cudarc::driver::sys::CUflushGPUDirectRDMAWritesTarget_enum as target;
    const CALL: &str = "cuFlushGPUDirectRDMAWrites";
    let driver = context.driver();
    let flush = driver.api.cuFlushGPUDirectRDMAWrites;
    let flush = flush.ok_or_else(|| driver.lacks(CALL, context.to_string()))?;
    let target = target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
    let scope = scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
    let _bound = context.bind()?;
    // SAFETY: the context is bound on this thread.
    driver.check(CALL, unsafe { flush(target, scope) }, || context.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_ordering_promises_least() {
        use WritesOrdering::{AllDevices, None, Owner};
        let of = [-1, 0, 99, 100, 199, 200, 201].map(WritesOrdering::from_attribute);
        assert_eq!(of, [None, None, None, Owner, Owner, AllDevices, AllDevices]);
    }
}
