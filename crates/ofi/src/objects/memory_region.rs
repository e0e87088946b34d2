//! A memory region on one domain.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;

use libfabric_sys::{
    FI_HMEM_CUDA, FI_KEY_NOTAVAIL, FI_MR_DMABUF, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_SEND, FI_WRITE, Padded, fi_mr_attr, fi_mr_bind, fi_mr_dmabuf, fi_mr_enable, fi_mr_regattr,
    fid_mr, iovec, mr_attr_set_dmabuf,
};

use crate::error::{check, refused};
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::object::Object;
use engine::port::{Access, Desc, PortError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// By its address, as host memory.
    Host,
    /// By its address, as memory of the CUDA device with this number.
    Cuda { device: i32 },
    /// As a part of a dma-buf, from a byte offset on; the descriptor is open during the call. Only
    /// with an API and library that have these: others take the structure for vectors.
    DmaBuf { device: i32, fd: RawFd, offset: usize },
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "as host memory",
            Self::Cuda { .. } => "FI_HMEM_CUDA",
            Self::DmaBuf { .. } => "dma-buf",
        })
    }
}

/// Owner of a `fid_mr`.
#[derive(Debug)]
pub(crate) struct Region {
    object: Object<fid_mr>,
    pub(crate) key: u64,
    pub(crate) desc: Desc,
    _domain: Arc<Domain>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    None,
    /// Read, as requested of them for a put to their staged memory.
    Read,
    ReadAndWrite,
}

impl Rights {
    pub(crate) fn of(access: Access) -> Self {
        match access {
            Access::Local => Rights::Read,
            Access::LocalAndRemote | Access::Signals => Rights::ReadAndWrite,
        }
    }

    fn with_our_own(self) -> u64 {
        let of_peers = match self {
            Rights::None => 0,
            Rights::Read => FI_REMOTE_READ,
            Rights::ReadAndWrite => FI_REMOTE_READ | FI_REMOTE_WRITE,
        };
        FI_READ | FI_WRITE | FI_SEND | FI_RECV | of_peers
    }
}

impl Region {
    /// Registers `len` bytes at `addr`. If [`Domain::binds_regions`], `bound_to` is the endpoint to
    /// which the region is bound, which the caller keeps open for the region's life. If the process
    /// chooses keys, `key` may be that of the same memory on another domain.
    pub(crate) fn register(
        domain: &Arc<Domain>,
        bound_to: Option<&Endpoint>,
        addr: usize,
        len: usize,
        rights: Rights,
        method: Method,
        key: Option<u64>,
    ) -> Result<Self, PortError> {
        const CALL: &str = "fi_mr_regattr";
        let library = domain.library();
        if len == 0 || addr == 0 || addr.checked_add(len).is_none() {
            return Err(refused(CALL, format!("{len} bytes at {addr:#x} are no memory")));
        }
        let memory = iovec { iov_base: addr as *mut _, iov_len: len };
        // Used by one method only, but has to live until the call.
        let part;
        let mut flags = 0;
        let mut attr = Padded::<fi_mr_attr>::zeroed();
        match method {
            Method::Host => {
                attr.mr_iov = &memory;
                attr.iov_count = 1;
            }
            Method::Cuda { device } => {
                attr.mr_iov = &memory;
                attr.iov_count = 1;
                attr.iface = FI_HMEM_CUDA;
                attr.device.cuda = device;
            }
            Method::DmaBuf { device, fd, offset } => {
                let Some(base) = addr.checked_sub(offset) else {
                    let text = format!("{addr:#x} is not {offset} bytes into anything");
                    return Err(refused(CALL, text));
                };
                let base_addr = base as *mut _;
                part = fi_mr_dmabuf { fd, offset: offset as u64, len, base_addr };
                mr_attr_set_dmabuf(&mut attr, &part);
                attr.iface = FI_HMEM_CUDA;
                attr.device.cuda = device;
                flags = FI_MR_DMABUF;
            }
        }
        attr.access = rights.with_our_own();
        attr.requested_key = match key {
            Some(key) => key,
            None => domain.next_key()?,
        };

        // SAFETY: the domain is open, the attributes are padded for newer libraries, and point to
        // locals of this function. Libfabric does not dereference the memory here; callers that
        // transfer from or to it vouch for it. The region holds its domain.
        let object = unsafe {
            Object::open(("memory region", CALL), library, &domain.gate, |region| {
                fi_mr_regattr(domain.as_ptr(), attr.as_mut_ptr(), flags, region)
            })
        }?;
        let gate = domain.gate.enter();
        let raw: *mut fid_mr = object.as_ptr();
        let bind = |endpoint: &Endpoint| {
            // SAFETY: region and endpoint are open and of one domain.
            unsafe {
                check(library, "fi_mr_bind", fi_mr_bind(raw, endpoint.as_fid(), 0))?;
                check(library, "fi_mr_enable", fi_mr_enable(raw))
            }
        };
        let bound = bound_to.map_or(Ok(()), bind);
        // SAFETY: open, and enabled if that is necessary.
        let (key, desc) = unsafe { ((*raw).key, Desc((*raw).mem_desc as usize)) };
        drop(gate);
        bound?;
        if rights == Rights::ReadAndWrite && key == FI_KEY_NOTAVAIL {
            return Err(refused(CALL, String::from("the provider's keys are longer than 64 bits")));
        }
        Ok(Self { object, key, desc, _domain: Arc::clone(domain) })
    }

    /// Ends the registration, unless it has ended.
    ///
    /// # Errors
    /// The registration remains: the fabric may still reach the memory.
    pub(crate) fn close(&mut self) -> Result<(), PortError> {
        self.object.close()
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys::FI_EBUSY;

    use super::*;
    use crate::objects::domain::tests::some_domain;
    use crate::objects::tables;
    use crate::provider::Provider;
    use engine::port::registration::is_unclosed;

    #[test]
    fn peer_rights_follow_access() {
        let ours = FI_READ | FI_WRITE | FI_SEND | FI_RECV;
        for (access, peers) in [
            (Access::Local, FI_REMOTE_READ),
            (Access::LocalAndRemote, FI_REMOTE_READ | FI_REMOTE_WRITE),
            (Access::Signals, FI_REMOTE_READ | FI_REMOTE_WRITE),
        ] {
            assert_eq!(Rights::of(access).with_our_own(), ours | peers, "{access:?}");
        }
        assert_eq!(Rights::None.with_our_own(), ours);
    }

    #[test]
    fn unclosed_registration_is_known() {
        let domain = some_domain(Provider::TcpRxm, |_| {});
        let memory = [0_u64; 64];
        let region = || {
            let (addr, rights) = (memory.as_ptr() as usize, Rights::ReadAndWrite);
            let region = Region::register(&domain, None, addr, 512, rights, Method::Host, None);
            let region = region.expect("registered");
            // SAFETY: open, and of this thread.
            unsafe { tables::watch(region.object.as_fid()) };
            region
        };
        let (mut region, other) = (region(), region());
        tables::cling(true);
        for _ in 0..2 {
            assert_eq!(region.close().map_err(|error| error.code), Err(FI_EBUSY), "tried again");
        }
        drop(other);
        assert!(is_unclosed(), "memory is not freed from here on");
        tables::cling(false);
        assert_eq!((region.close(), region.close()), (Ok(()), Ok(())));
        assert_eq!(tables::closed(), [region.object.as_fid() as usize], "once");
    }
}
