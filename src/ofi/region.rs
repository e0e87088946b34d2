//! A memory region on one domain.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{
    FI_KEY_NOTAVAIL, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE, Padded,
    fi_mr_attr, fi_mr_bind, fi_mr_desc, fi_mr_enable, fi_mr_key, fi_mr_regattr, fid_mr, iovec,
    mr_attr_set_iov,
};

use super::domain::Domain;
use super::endpoint::Endpoint;
use super::error::{check, refused};
use super::fabric::{close, opened};
use crate::engine::port::{Access, Desc, PortError};

/// Owner of a `fid_mr`.
#[derive(Debug)]
pub(super) struct Region {
    raw: NonNull<fid_mr>,
    key: u64,
    desc: Desc,
    domain: Arc<Domain>,
}

// SAFETY: only closing uses the region after it was made, inside the domain's gate.
unsafe impl Send for Region {}
// SAFETY: shared access only reads the key and the descriptor.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `len` bytes at `addr`, and binds the region to an endpoint where one is given,
    /// which the caller keeps open for the life of the region. One is given where
    /// [`Domain::binds_regions`].
    pub(super) fn register(
        domain: &Arc<Domain>,
        bound_to: Option<&Endpoint>,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Self, PortError> {
        const CALL: &str = "fi_mr_regattr";
        let library = domain.library();
        if len == 0 || addr == 0 || addr.checked_add(len).is_none() {
            return Err(refused(CALL, format!("{len} bytes at {addr:#x} are no memory")));
        }
        let memory = iovec { iov_base: addr as *mut _, iov_len: len };
        let mut attr = Padded::<fi_mr_attr>::new();
        mr_attr_set_iov(&mut attr, &memory, 1);
        attr.access = FI_READ | FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_READ;
        if access == Access::LocalAndRemote {
            attr.access |= FI_REMOTE_WRITE;
        }
        attr.requested_key = domain.next_key();

        let mut raw = ptr::null_mut();
        let gate = domain.gate().enter();
        // SAFETY: the domain is open, the attributes are padded for newer libraries. Libfabric
        // does not dereference the memory here; who transfers from or to it vouches for it.
        let code = unsafe { fi_mr_regattr(domain.as_ptr(), attr.as_mut_ptr(), 0, &mut raw) };
        check(library, CALL, code)?;
        let raw = opened(raw, CALL)?;
        drop(gate);
        // From here on an early return closes the region.
        let mut region =
            Self { raw, key: FI_KEY_NOTAVAIL, desc: Desc(0), domain: Arc::clone(domain) };
        let gate = domain.gate().enter();
        if let Some(endpoint) = bound_to {
            // SAFETY: region and endpoint are open and of one domain.
            unsafe {
                check(library, "fi_mr_bind", fi_mr_bind(raw.as_ptr(), endpoint.as_fid(), 0))?;
                check(library, "fi_mr_enable", fi_mr_enable(raw.as_ptr()))?;
            }
        }
        // SAFETY: open, and enabled where that is needed.
        unsafe {
            region.key = fi_mr_key(raw.as_ptr());
            region.desc = Desc(fi_mr_desc(raw.as_ptr()) as usize);
        }
        drop(gate);
        if access == Access::LocalAndRemote && region.key == FI_KEY_NOTAVAIL {
            return Err(refused(CALL, String::from("the provider's keys are longer than 64 bits")));
        }
        Ok(region)
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn desc(&self) -> Desc {
        self.desc
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _gate = self.domain.gate().enter();
        // SAFETY: open; nothing is made from a region.
        unsafe { close(self.domain.library(), "memory region", self.raw.as_ptr().cast()) };
    }
}
