//! The driver's functions, looked up in the library at run time.
//!
//! Types are cudarc's, and the compiler checks our declarations against its. Its loader is not
//! used: it panics if the library or a function is missing, takes no path, and its functions return
//! a Rust enum, which has no variant for a newer driver's code.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;
use sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream, CUstreamCaptureMode,
};
use sys::{CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUpointer_attribute};

/// A `CUresult`, as a number: drivers return more of them than any header has.
pub(crate) type Status = u32;

/// Declares the table. Every supported driver has the `required` functions. A missing `optional`
/// one disables the features that need it. `numbered` functions are required, and take a number
/// where the header has an enum. `newer` ones are of releases that cudarc's bindings do not know;
/// that they are missing is not logged.
macro_rules! functions {
    (
        required { $($must:ident($($must_arg:ty),*);)* }
        numbered { $($raw:ident($($raw_arg:ty),*);)* }
        optional { $($may:ident($($may_arg:ty),*);)* }
        newer { $($new:ident($($new_arg:ty),*);)* }
    ) => {
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(crate) struct Api {
            $(pub(crate) $must: unsafe extern "C" fn($($must_arg),*) -> Status,)*
            $(pub(crate) $raw: unsafe extern "C" fn($($raw_arg),*) -> Status,)*
            $(pub(crate) $may: Option<unsafe extern "C" fn($($may_arg),*) -> Status>,)*
            $(pub(crate) $new: Option<unsafe extern "C" fn($($new_arg),*) -> Status>,)*
        }

        impl Api {
            /// Looks up all functions. The error is the name of the first missing one.
            ///
            /// # Safety
            /// `find` returns the function of a CUDA driver with that name, or null.
            pub(crate) unsafe fn resolve(
                find: impl Fn(&'static str) -> *mut c_void,
            ) -> Result<Self, &'static str> {
                // SAFETY: a function pointer has the size of a pointer, and `None` of it is null.
                // The types are CUDA's, checked below; else as the caller says.
                unsafe {
                    Ok(Self {
                        $($must: std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($must_arg),*) -> Status>,
                        >(find(stringify!($must))).ok_or(stringify!($must))?,)*
                        $($raw: std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($raw_arg),*) -> Status>,
                        >(find(stringify!($raw))).ok_or(stringify!($raw))?,)*
                        $($may: std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($may_arg),*) -> Status>,
                        >(find(stringify!($may))),)*
                        $($new: std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($new_arg),*) -> Status>,
                        >(find(stringify!($new))),)*
                    })
                }
            }

            pub(crate) fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$may.is_none() { missing.push(stringify!($may)); })*
                missing
            }
        }

        // Does not compile if an argument differs from cudarc's bindings.
        $(const _: unsafe fn($($must_arg),*) -> sys::CUresult = sys::$must;)*
        $(const _: unsafe fn($($may_arg),*) -> sys::CUresult = sys::$may;)*
    };
}

functions! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxGetDevice(*mut CUdevice);
        cuThreadExchangeStreamCaptureMode(*mut CUstreamCaptureMode);
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuPointerGetAttributes(
            c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr
        );
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        cuStreamDestroy_v2(CUstream);
        cuStreamQuery(CUstream);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventDestroy_v2(CUevent);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    }
    numbered {
        cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
        cuGetErrorName(Status, *mut *const c_char);
        cuGetErrorString(Status, *mut *const c_char);
    }
    optional {
        cuCtxCreate_v2(*mut CUcontext, c_uint, CUdevice);
        cuCtxSetLimit(sys::CUlimit, usize);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemcpy2DAsync_v2(*const sys::CUDA_MEMCPY2D, CUstream);
        cuPointerSetAttribute(*const c_void, CUpointer_attribute, CUdeviceptr);
        cuMemGetHandleForAddressRange(
            *mut c_void, CUdeviceptr, usize, sys::CUmemRangeHandleType, c_ulonglong
        );
        cuFlushGPUDirectRDMAWrites(
            sys::CUflushGPUDirectRDMAWritesTarget, sys::CUflushGPUDirectRDMAWritesScope
        );
        cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
        cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
        cuStreamBatchMemOp_v2(CUstream, c_uint, *mut sys::CUstreamBatchMemOpParams, c_uint);
        cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
        cuMemGetAllocationPropertiesFromHandle(
            *mut CUmemAllocationProp, CUmemGenericAllocationHandle
        );
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemGetAccess(*mut c_ulonglong, *const CUmemLocation, CUdeviceptr);
        cuMemGetAllocationGranularity(
            *mut usize, *const CUmemAllocationProp, sys::CUmemAllocationGranularity_flags
        );
        cuMemCreate(
            *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
        );
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const sys::CUmemAccessDesc, usize);
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
        cuModuleGetLoadingMode(*mut sys::CUmoduleLoadingMode);
    }
    newer {
        cuMemcpyBatchAsync(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CopyAttributes, *mut usize,
            usize, *mut usize, CUstream
        );
        cuMemcpyBatchAsync_v2(
            *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CopyAttributes, *mut usize,
            usize, CUstream
        );
    }
}

/// `CUmemcpyAttributes`, of CUDA 12.8 and later. A zero location is no hint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyAttributes {
    source_access_order: u32,
    source_location: [u32; 2],
    destination_location: [u32; 2],
    flags: u32,
}

const _: () = assert!(size_of::<CopyAttributes>() == 24);

impl CopyAttributes {
    /// Sources are read in the order of the stream (`CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`).
    pub(crate) const IN_ORDER: Self = Self {
        source_access_order: 1,
        source_location: [0; 2],
        destination_location: [0; 2],
        flags: 0,
    };
}
