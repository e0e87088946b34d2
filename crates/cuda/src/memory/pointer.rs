//! Pointers: attributes of the memory at an address, as the driver reports them.

use std::ffi::c_uint;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr};

use crate::driver::context::Ordinal;
use crate::driver::error::{CudaError, code};
use crate::driver::library::Driver;

/// Kinds of memory, by the processors that can access them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Host memory that CUDA does not know.
    Host,
    /// Host memory that is page-locked: allocated by CUDA, or registered with it.
    RegisteredHost,
    /// Memory of a host's NUMA node mapped by CUDA's VMM interface (EGM among it), which the CPU
    /// may read and write at this address.
    HostNuma,
    /// Host memory mapped for devices only: the CPU faults on this address.
    HostNumaDeviceOnly,
    /// Managed memory: CPU and devices read and write it, and it moves between them.
    Managed,
    /// Memory on a device: `cuMemAlloc`, or a mapping of CUDA's VMM interface.
    Device,
    /// Memory on a device that a pool has given out (`cuMemAllocAsync`, `cudaMallocAsync`). Streams
    /// store no words in it: seen with driver 580, which answers with CUDA_ERROR_INVALID_VALUE.
    DevicePool,
}

impl Kind {
    /// Returns true if the CPU may read and write it at its address.
    pub fn cpu_accessible(self) -> bool {
        !matches!(self, Kind::HostNumaDeviceOnly | Kind::Device | Kind::DevicePool)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Host => "host memory",
            Kind::RegisteredHost => "page-locked host memory",
            Kind::HostNuma => "memory of a NUMA node",
            Kind::HostNumaDeviceOnly => "memory of a NUMA node that only devices may use",
            Kind::Managed => "managed memory",
            Kind::Device => "device memory",
            Kind::DevicePool => "device memory of a pool",
        })
    }
}

/// Attributes of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    pub kind: Kind,
    /// Device that has the memory or for which it was allocated, if the driver names one.
    pub device: Option<Ordinal>,
    /// Number of the allocation, unique in this process also after the address is reused. 0 for
    /// memory that CUDA does not know.
    pub buffer: u64,
    pub(crate) context: CUcontext,
}

impl Pointer {
    const HOST: Self = Self { kind: Kind::Host, device: None, buffer: 0, context: ptr::null_mut() };

    /// Queries the attributes of any address.
    ///
    /// A process that has not started CUDA has host memory only; this does not start it.
    pub fn of(driver: &Driver, addr: usize) -> Result<Self, CudaError> {
        use sys::CUpointer_attribute_enum as attribute;
        let mut context: CUcontext = ptr::null_mut();
        let (mut memory, mut managed): (c_uint, c_uint) = (0, 0);
        let mut ordinal: i32 = -1;
        let mut buffer: u64 = 0;
        let mut wanted = [
            attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        ];
        let mut values = [
            (&raw mut context).cast(),
            (&raw mut memory).cast(),
            // A `bool` in newer headers, an `unsigned` in older ones: both fit, and zero is false.
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut buffer).cast(),
        ];
        // SAFETY: a pointer for each attribute, of the attribute's type.
        let status = unsafe {
            (driver.api.cuPointerGetAttributes)(
                wanted.len() as c_uint,
                wanted.as_mut_ptr(),
                values.as_mut_ptr(),
                addr as CUdeviceptr,
            )
        };
        if status == code::NOT_INITIALIZED {
            return Ok(Self::HOST);
        }
        driver.check("cuPointerGetAttributes", status, || format!("address {addr:#x}"))?;
        let kind = match memory {
            0 => return Ok(Self::HOST),
            _ if managed != 0 => Kind::Managed,
            // Mappings of the VMM interface belong to no context, nor does memory from pools.
            _ if context.is_null() => mapping_kind(driver, addr, memory),
            HOST_TYPE => Kind::RegisteredHost,
            _ => Kind::Device,
        };
        let device = (ordinal >= 0).then_some(Ordinal(ordinal));
        Ok(Self { kind, device, buffer, context })
    }
}

const HOST_TYPE: c_uint = sys::CUmemorytype_enum::CU_MEMORYTYPE_HOST as c_uint;

/// Returns the kind of memory that belongs to no context. A mapping has a location; other memory is
/// a pool's, unless the driver is too old to tell: then the memory type decides.
fn mapping_kind(driver: &Driver, addr: usize, memory: c_uint) -> Kind {
    let device = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE as c_uint;
    match location(driver, addr) {
        Mapping::At(location) if location == device => Kind::Device,
        Mapping::At(_) if open_to_cpu(driver, addr) => Kind::HostNuma,
        Mapping::At(_) => Kind::HostNumaDeviceOnly,
        Mapping::None | Mapping::Unknown if memory == HOST_TYPE => Kind::RegisteredHost,
        Mapping::None => Kind::DevicePool,
        Mapping::Unknown => Kind::Device,
    }
}

enum Mapping {
    /// A mapping of memory in a location of this type.
    At(c_uint),
    /// No mapping at the address.
    None,
    /// The driver cannot tell.
    Unknown,
}

fn location(driver: &Driver, addr: usize) -> Mapping {
    let api = &driver.api;
    let (Some(retain), Some(properties), Some(release)) = (
        api.cuMemRetainAllocationHandle,
        api.cuMemGetAllocationPropertiesFromHandle,
        api.cuMemRelease,
    ) else {
        return Mapping::Unknown;
    };
    let mut handle = 0;
    // SAFETY: a pointer to the handle; any address is answered.
    let status = unsafe { retain(&raw mut handle, addr as *mut _) };
    match status {
        code::SUCCESS => {}
        code::INVALID_VALUE => return Mapping::None,
        _ => return Mapping::Unknown,
    }
    let mut found = MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
    // SAFETY: a pointer to the structure, and a handle that was just retained.
    let status = unsafe { properties(found.as_mut_ptr(), handle) };
    // SAFETY: retained above, and not used again.
    let _ = unsafe { release(handle) };
    // A newer driver may know more types than the enum has, so the field is read as a number.
    // SAFETY: the structure is initialised, with zeros at least.
    let kind = unsafe { (&raw const (*found.as_ptr()).location.type_).cast::<c_uint>().read() };
    if status == code::SUCCESS { Mapping::At(kind) } else { Mapping::Unknown }
}

/// Returns true if the driver reports that the CPU may access the mapping at an address. Copies
/// reach it in any case.
fn open_to_cpu(driver: &Driver, addr: usize) -> bool {
    use sys::CUmemLocationType_enum::{CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA};
    let Some(get) = driver.api.cuMemGetAccess else { return false };
    let mut open = false;
    for kind in [CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST] {
        let location = sys::CUmemLocation { type_: kind, id: 0 };
        let mut flags = 0;
        // SAFETY: pointers to the flags, and to a location to read; any address is answered.
        let status = unsafe { get(&raw mut flags, &raw const location, addr as CUdeviceptr) };
        let both = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u64;
        open |= status == code::SUCCESS && flags == both;
    }
    open
}
