//! NVSHMEM's C interface: one exported function, and tables of functions for the layouts.
//!
//! # What the host promises, on which the `unsafe` here rests
//! NVSHMEM 3.1 to 3.8 keep these rules; `nvshmem_transport_abi.h` has the details.
//!
//! 1. Every transport pointer passed in came from `nvshmemt_init` and was not passed to `finalize`
//!    before. It, and every pointer argument, is valid for the duration of the call. Arguments of
//!    `rma`, `amo` and `put_signal` that describe memory or bytes are not null; handles in them may
//!    be, and so may `ret`.
//! 2. `connect_endpoints` and `finalize` run while no other function runs on the transport.
//! 3. `progress`, and operations with a queue pair other than `HOST`, come from one thread at a
//!    time, the proxy thread. Other functions may come from any thread meanwhile.
//! 4. Local memory of a non-blocking operation stays valid until a quiet has returned.
//!
//! Nothing unwinds into the host: every entry goes through [`guard`], except the fast paths of the
//! proxy thread (`rma`, `amo` and `put_signal`), which cannot panic. A child of fork does not have
//! that thread, so the guard is where calls of a child are refused.

mod calls;
mod collectives;
mod entries;
mod error;
mod host_maps;
pub mod note;
mod operations;
mod state;

use std::ffi::{c_int, c_void};

use log::info;
use nvshmem_abi::{Major, Transport};

use crate::job::Job;
use crate::logging;
use crate::settings::Settings;
use error::{AbiError, guard};

/// Creates the transport for a host of the given version and stores it in `*out`.
///
/// Returns an `NVT_STATUS_*` value; errors are on stderr. The table of CUDA functions is not used:
/// the driver is looked up when it is needed.
///
/// # Safety
/// `out` is valid for writing one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvshmemt_init(
    out: *mut *mut Transport,
    _cuda_table: *mut c_void,
    api_version: c_int,
) -> c_int {
    guard("nvshmemt_init", || {
        logging::init();
        let major = Major::from_api_version(api_version)?;
        if out.is_null() {
            return Err(AbiError::Null { argument: "out" });
        }
        let job = Job::new(Settings::from_env()?)?;
        let transport = state::create(major, api_version, job);
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { out.write(transport) };
        info!(
            target: logging::INIT,
            "serving NVSHMEM's transport interface {major} (api_version {api_version})"
        );
        Ok(())
    })
}
