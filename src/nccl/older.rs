//! The functions of older versions of the interface, which wrap those of the newest.
//!
//! The safety of all of it rests on the rules that are numbered in [`crate::nccl`]'s documentation.

/// Of the versions before 15, which have no flags.
pub(super) mod before_15 {
    use std::ffi::{c_int, c_void};

    use nccl_abi::Status;

    use crate::nccl::entries;

    /// # Safety
    /// As [`entries::iput`].
    pub(in crate::nccl) unsafe extern "C" fn iput(
        contexts: *mut c_void,
        context: c_int,
        source_offset: u64,
        source: *mut c_void,
        size: usize,
        target_offset: u64,
        target: *mut c_void,
        rank: u32,
        request: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        unsafe {
            entries::iput(
                contexts,
                context,
                source_offset,
                source,
                size,
                target_offset,
                target,
                rank,
                0,
                request,
            )
        }
    }

    /// # Safety
    /// As [`entries::iput_signal`].
    pub(in crate::nccl) unsafe extern "C" fn iput_signal(
        contexts: *mut c_void,
        context: c_int,
        source_offset: u64,
        source: *mut c_void,
        size: usize,
        target_offset: u64,
        target: *mut c_void,
        rank: u32,
        signal_offset: u64,
        signal: *mut c_void,
        value: u64,
        operation: u32,
        strong: bool,
        request: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        unsafe {
            entries::iput_signal(
                contexts,
                context,
                source_offset,
                source,
                size,
                target_offset,
                target,
                rank,
                signal_offset,
                signal,
                value,
                operation,
                strong,
                0,
                request,
            )
        }
    }

    /// # Safety
    /// As [`entries::iget`].
    pub(in crate::nccl) unsafe extern "C" fn iget(
        contexts: *mut c_void,
        context: c_int,
        remote_offset: u64,
        remote: *mut c_void,
        size: usize,
        local_offset: u64,
        local: *mut c_void,
        rank: u32,
        request: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        unsafe {
            entries::iget(
                contexts,
                context,
                remote_offset,
                remote,
                size,
                local_offset,
                local,
                rank,
                0,
                request,
            )
        }
    }
}

/// Of version 13, whose signals are all strong, and which has second handles.
pub(super) mod before_14 {
    use std::ffi::{c_int, c_void};
    use std::ptr;

    use nccl_abi::{Config13, DEVICE_GIN_PROXY, DeviceHandle, Status};

    use crate::nccl::entries::{self, given, make_contexts};
    use crate::nccl::error::guard;

    /// What kernels would be given, if NCCL's proxy did not make its own.
    struct ForKernels(DeviceHandle);

    // SAFETY: nobody writes to it, and its pointer is null.
    unsafe impl Sync for ForKernels {}

    static FOR_KERNELS: ForKernels = ForKernels(DeviceHandle {
        net_device_type: DEVICE_GIN_PROXY,
        net_device_version: 0,
        handle: ptr::null_mut(),
        size: 0,
        needs_proxy_progress: 1,
    });

    /// # Safety
    /// As [`entries::create_context`]; `device` is null or valid for a write.
    pub(in crate::nccl) unsafe extern "C" fn create_context(
        group: *mut c_void,
        config: *mut Config13,
        contexts: *mut *mut c_void,
        device: *mut *mut DeviceHandle,
    ) -> Status {
        guard("createContext", || {
            // SAFETY: rule 2.
            let Config13 { contexts: count, .. } = *unsafe { given(config, "config")? };
            if !device.is_null() {
                // SAFETY: not null; this function's contract.
                unsafe { device.write((&raw const FOR_KERNELS.0).cast_mut()) };
            }
            // SAFETY: rules 1 and 2.
            unsafe { make_contexts(group, count, contexts) }
        })
    }

    /// # Safety
    /// As [`entries::reg_mr_sym`]; `for_kernels` is null or valid for a write.
    pub(in crate::nccl) unsafe extern "C" fn reg_mr_sym(
        group: *mut c_void,
        data: *mut c_void,
        size: usize,
        kind: c_int,
        flags: u64,
        handle: *mut *mut c_void,
        for_kernels: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        let status = unsafe { entries::reg_mr_sym(group, data, size, kind, flags, handle) };
        if status == Status::SUCCESS && !for_kernels.is_null() {
            // SAFETY: both are valid: the first was written to.
            unsafe { for_kernels.write(*handle) };
        }
        status
    }

    /// # Safety
    /// As [`reg_mr_sym`].
    pub(in crate::nccl) unsafe extern "C" fn reg_mr_sym_dma_buf(
        group: *mut c_void,
        data: *mut c_void,
        size: usize,
        kind: c_int,
        _offset: u64,
        _fd: c_int,
        flags: u64,
        handle: *mut *mut c_void,
        for_kernels: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        unsafe { reg_mr_sym(group, data, size, kind, flags, handle, for_kernels) }
    }

    /// # Safety
    /// As [`entries::iput_signal`].
    pub(in crate::nccl) unsafe extern "C" fn iput_signal(
        contexts: *mut c_void,
        context: c_int,
        source_offset: u64,
        source: *mut c_void,
        size: usize,
        target_offset: u64,
        target: *mut c_void,
        rank: u32,
        signal_offset: u64,
        signal: *mut c_void,
        value: u64,
        operation: u32,
        request: *mut *mut c_void,
    ) -> Status {
        // SAFETY: as for this function.
        unsafe {
            entries::iput_signal(
                contexts,
                context,
                source_offset,
                source,
                size,
                target_offset,
                target,
                rank,
                signal_offset,
                signal,
                value,
                operation,
                true,
                0,
                request,
            )
        }
    }
}
