//! CUDA calls of an endpoint: whether it may make any while it transfers.

use libfabric_sys::{
    FI_EOPNOTSUPP, FI_OPT_CUDA_API_PERMITTED, FI_OPT_ENDPOINT, Library, fi_setopt, fid_ep,
};

use crate::error::port_error;

/// What has become of the wish that an endpoint calls no CUDA.
///
/// A provider may move the bytes of a device with CUDA's copies instead of by the NIC. A copy on
/// the default stream waits for kernels that run on blocking streams, and the kernels of NVSHMEM's
/// users run until the transport has done its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CudaCalls {
    /// The endpoint was not opened for device memory, or is better off unasked.
    NotAsked,
    /// It makes none.
    None,
    /// It cannot do without for all transfers.
    Needed(String),
    /// The library is older than the option (1.18), or does without CUDA.
    Unknown(String),
}

impl CudaCalls {
    /// Asks for none (`FI_OPT_CUDA_API_PERMITTED`).
    ///
    /// # Safety
    /// The endpoint is open and not enabled yet, inside the domain's gate.
    pub(crate) unsafe fn forbid(library: &'static Library, endpoint: *mut fid_ep) -> Self {
        let permitted = false;
        let value = (&raw const permitted).cast();
        let (level, option) = (FI_OPT_ENDPOINT as i32, FI_OPT_CUDA_API_PERMITTED as i32);
        // SAFETY: the caller's promise; the option is a `bool`, read during the call.
        let code = unsafe { fi_setopt(endpoint, level, option, value, size_of::<bool>()) };
        if code == 0 {
            return Self::None;
        }
        let said = port_error(library, "fi_setopt(FI_OPT_CUDA_API_PERMITTED)", code.into());
        if code == -FI_EOPNOTSUPP {
            Self::Needed(said.to_string())
        } else {
            Self::Unknown(said.to_string())
        }
    }
}
