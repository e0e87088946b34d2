//! The host's collectives, for use while connecting.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use nvshmem_abi::Bootstrap;

use super::error::AbiError;

/// The bootstrap handle of the host.
pub(super) struct Collectives {
    handle: NonNull<Bootstrap>,
}

impl Collectives {
    /// # Safety
    /// `handle` is null or the host's bootstrap handle, valid for as long as this value is used,
    /// and no other thread is in one of its collectives meanwhile.
    pub(super) unsafe fn new(handle: *mut Bootstrap) -> Result<Self, AbiError> {
        let handle = NonNull::new(handle).ok_or(AbiError::Null { argument: "boot_handle" })?;
        Ok(Self { handle })
    }

    /// Number of PEs, this PE, and number of PEs on this host.
    pub(super) fn shape(&self) -> (c_int, c_int, c_int) {
        // SAFETY: valid by the contract of `new`.
        let handle = unsafe { self.handle.as_ref() };
        (handle.pg_size, handle.pg_rank, handle.npes_node)
    }

    /// Gives every PE's contribution, in PE order. All PEs contribute equally many bytes.
    pub(super) fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, AbiError> {
        let (n_pes, _, _) = self.shape();
        // SAFETY: valid by the contract of `new`.
        let allgather = unsafe { self.handle.as_ref() }.allgather;
        let Some(allgather) = allgather else {
            return Err(AbiError::BadBootstrap { what: "has no allgather".to_owned() });
        };
        let bytes = c_int::try_from(mine.len()).map_err(|_| AbiError::BadBootstrap {
            what: format!("cannot carry {} bytes", mine.len()),
        })?;
        let mut all = vec![0; mine.len() * n_pes.max(0) as usize];
        // SAFETY: the host's function with the host's handle; `mine` has `bytes` bytes and `all`
        // has room for as many from each PE.
        let status = unsafe {
            allgather(
                mine.as_ptr().cast::<c_void>(),
                all.as_mut_ptr().cast::<c_void>(),
                bytes,
                self.handle.as_ptr(),
            )
        };
        if status == 0 { Ok(all) } else { Err(AbiError::Bootstrap { call: "allgather", status }) }
    }
}
