//! Device memory: the provider's calls of CUDA and GDRCopy, both of which are the stand-ins of
//! `fake-cuda` here, and the addresses under which the NIC finds that memory.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::mem;
use std::sync::OnceLock;

use crate::persona::{broken, flag};

const DEVICES: c_int = 64;
const KERNELS: u32 = 12;
const GPU_PAGE: usize = 64 << 10;

type Window = extern "C" fn(usize, usize) -> usize;
type Count = extern "C" fn(c_int, u32) -> u64;
type AddressRange = unsafe extern "C" fn(*mut usize, *mut usize, usize) -> c_int;
type Open = extern "C" fn() -> *mut c_void;
type Pin = unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut c_ulong) -> c_int;

#[derive(Debug)]
pub(crate) struct Cuda {
    window: Window,
    count: Count,
    address_range: AddressRange,
    gdrcopy: Option<GdrCopy>,
}

#[derive(Debug)]
struct GdrCopy {
    library: usize,
    pin: Pin,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

impl Cuda {
    pub(crate) fn get() -> Option<&'static Self> {
        static CUDA: OnceLock<Option<Cuda>> = OnceLock::new();
        CUDA.get_or_init(|| {
            let driver = open(c"libcuda.so.1")?;
            // SAFETY: functions of the stand-in, of these types.
            unsafe {
                Some(Self {
                    window: find(driver, c"fake_cuda_window")?,
                    count: find(driver, c"fake_cuda_count")?,
                    address_range: find(driver, c"cuMemGetAddressRange_v2")?,
                    gdrcopy: GdrCopy::open(),
                })
            }
        })
        .as_ref()
    }

    pub(crate) fn has_gdrcopy(&self) -> bool {
        self.gdrcopy.is_some()
    }

    pub(crate) fn window(&self, addr: usize, len: usize) -> Option<usize> {
        let window = (self.window)(addr, len);
        (window != 0).then_some(window)
    }

    pub(crate) fn allocation(&self, addr: usize) -> Option<Allocation> {
        let (mut base, mut len) = (0, 0);
        // SAFETY: places for both answers.
        let status = unsafe { (self.address_range)(&mut base, &mut len, addr) };
        (status == 0).then_some(Allocation { base, len })
    }

    /// Pins and maps a whole allocation by GDRCopy, if there is one, for as long as the process
    /// lives (`cuda_dev_register`): whether it is mapped, or the code of its refusal, which the
    /// provider hands on as it is.
    pub(crate) fn pin(&self, allocation: Allocation) -> Result<bool, c_int> {
        let Some(GdrCopy { library, pin }) = &self.gdrcopy else { return Ok(false) };
        let start = allocation.base - allocation.base % GPU_PAGE;
        let len = (allocation.base + allocation.len - start).next_multiple_of(GPU_PAGE);
        let mut handle = 0;
        // SAFETY: the library is open, the place is there; the range is looked at by GDRCopy.
        match unsafe { pin(*library as *mut c_void, start as c_ulong, len, 0, 0, &mut handle) } {
            0 => Ok(true),
            code => Err(code),
        }
    }

    pub(crate) fn register_host(&self, what: &str) {
        if (0..DEVICES).any(|device| (self.count)(device, KERNELS) > 0) {
            broken(&format!(
                "{what} is registered with CUDA while a kernel runs, for which it may wait \
                 (FI_CXI_DISABLE_HOST_REGISTER=1 prevents it)"
            ));
        }
    }
}

impl GdrCopy {
    /// The provider opens it when libfabric starts, unless told otherwise, under the name without
    /// a number.
    fn open() -> Option<Self> {
        if !flag("FI_HMEM_CUDA_USE_GDRCOPY", true) {
            return None;
        }
        let library = open(c"libgdrapi.so.2")?;
        // SAFETY: functions of GDRCopy, of these types.
        unsafe {
            let open: Open = find(library, c"gdr_open")?;
            let pin = find(library, c"gdr_pin_buffer")?;
            let opened = open();
            (!opened.is_null()).then_some(Self { library: opened as usize, pin })
        }
    }
}

fn open(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name; a library that is not there is null.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    (!library.is_null()).then_some(library)
}

/// Returns a function of a library.
///
/// # Safety
/// It is an `F`, which is a pointer to a function.
unsafe fn find<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a library that is open, and a name; what is found is an `F`, by contract.
    unsafe {
        let found = libc::dlsym(library, name.as_ptr());
        (!found.is_null()).then(|| mem::transmute_copy(&found))
    }
}
