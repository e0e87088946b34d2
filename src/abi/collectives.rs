//! The host's collectives, for use while connecting.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use nvshmem_abi::Bootstrap;

use crate::abi::error::AbiError;
use crate::job::{Collectives, JobError, Shape};
use engine::ids::Pe;

/// The bootstrap handle of the host.
pub(crate) struct HostCollectives {
    handle: NonNull<Bootstrap>,
}

impl HostCollectives {
    /// # Safety
    /// `handle` is null or the host's bootstrap handle, valid for as long as this value is used,
    /// and no other thread is in one of its collectives meanwhile.
    pub(crate) unsafe fn new(handle: *mut Bootstrap) -> Result<Self, AbiError> {
        let handle = NonNull::new(handle).ok_or(AbiError::Null { argument: "boot_handle" })?;
        Ok(Self { handle })
    }

    fn numbers(&self) -> (c_int, c_int, c_int) {
        // SAFETY: valid by the contract of `new`.
        let handle = unsafe { self.handle.as_ref() };
        (handle.pg_size, handle.pg_rank, handle.npes_node)
    }
}

impl Collectives for HostCollectives {
    fn shape(&self) -> Result<Shape, JobError> {
        let (n_pes, me, here) = self.numbers();
        match (u32::try_from(n_pes), u32::try_from(me)) {
            (Ok(n_pes), Ok(me)) if me < n_pes => {
                // At least this PE itself is on this host.
                let here = u32::try_from(here).map_or(1, |here| here.max(1));
                Ok(Shape { n_pes, me: Pe(me), here })
            }
            _ => Err(fault(format!("says that this is PE {me} of {n_pes}"))),
        }
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError> {
        let (n_pes, _, _) = self.numbers();
        // SAFETY: valid by the contract of `new`.
        let allgather = unsafe { self.handle.as_ref() }.allgather;
        let Some(allgather) = allgather else {
            return Err(fault(String::from("has no allgather")));
        };
        let bytes = c_int::try_from(mine.len())
            .map_err(|_| fault(format!("cannot carry {} bytes", mine.len())))?;
        let mut all = vec![0; mine.len() * n_pes.max(0) as usize];
        // SAFETY: the host's function with the host's handle; `mine` has `bytes` bytes and `all` as
        // many for each PE.
        let status = unsafe {
            allgather(
                mine.as_ptr().cast::<c_void>(),
                all.as_mut_ptr().cast::<c_void>(),
                bytes,
                self.handle.as_ptr(),
            )
        };
        if status == 0 {
            Ok(all)
        } else {
            let what = format!("the bootstrap's allgather failed with status {status}");
            Err(JobError::Collectives { what })
        }
    }
}

fn fault(what: String) -> JobError {
    JobError::Collectives { what: format!("the bootstrap {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn fails(
        _mine: *const c_void,
        _all: *mut c_void,
        _bytes: c_int,
        _handle: *mut Bootstrap,
    ) -> c_int {
        7
    }

    fn host(pg_size: c_int, pg_rank: c_int, npes_node: c_int) -> Bootstrap {
        Bootstrap { pg_size, pg_rank, npes_node, ..Bootstrap::default() }
    }

    fn of(handle: &mut Bootstrap) -> HostCollectives {
        // SAFETY: it outlives what is made of it, in each test.
        unsafe { HostCollectives::new(handle) }.unwrap()
    }

    #[test]
    fn rank_outside_job_is_refused() {
        for (n_pes, me, here, expected) in [
            (2, 1, 2, Some((2, 1, 2))),
            (2, 0, 1, Some((2, 0, 1))),
            (2, 1, 0, Some((2, 1, 1))),
            (2, 1, -1, Some((2, 1, 1))),
            (2, 2, 2, None),
            (0, 0, 0, None),
            (-1, 0, 1, None),
            (2, -1, 1, None),
        ] {
            let shape = of(&mut host(n_pes, me, here)).shape();
            let found = shape.map(|Shape { n_pes, me, here }| (n_pes, me.0, here)).ok();
            assert_eq!(found, expected, "PE {me} of {n_pes}, {here} here");
        }
    }

    #[test]
    fn failed_allgather_names_its_status() {
        for (allgather, why) in [(Some(fails as _), "status 7"), (None, "has no allgather")] {
            let mut handle = Bootstrap { allgather, ..host(2, 0, 2) };
            let failed = of(&mut handle).allgather(&[1]).unwrap_err().to_string();
            assert!(failed.contains(why), "{failed}");
        }
    }
}
