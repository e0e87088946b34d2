//! A memory region on one domain.

use std::fmt;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{
    FI_HMEM_CUDA, FI_KEY_NOTAVAIL, FI_MR_DMABUF, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_SEND, FI_WRITE, Padded, fi_mr_attr, fi_mr_bind, fi_mr_desc, fi_mr_dmabuf, fi_mr_enable,
    fi_mr_key, fi_mr_regattr, fid_mr, iovec, mr_attr_set_dmabuf,
};
use log::warn;

use crate::error::{check, refused};
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::fabric::{opened, try_close};
use engine::port::registration::note_unclosed;
use engine::port::{Access, Desc, PortError};

/// How the provider is told of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By its address, as host memory.
    Host,
    /// By its address, as memory of the CUDA device of this number.
    Cuda {
        /// The device.
        device: i32,
    },
    /// By the dma-buf that it lies in. Only for domains opened with an API that has these, of a
    /// library that has them: others take the structure for vectors.
    DmaBuf {
        /// The CUDA device that it is memory of.
        device: i32,
        /// The descriptor, open during the call.
        fd: RawFd,
        /// Where the memory starts in the dma-buf, in bytes.
        offset: usize,
    },
}

impl fmt::Display for Way {
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
    raw: NonNull<fid_mr>,
    key: u64,
    desc: Desc,
    closed: bool,
    domain: Arc<Domain>,
}

// SAFETY: only closing uses the region after it was made, inside the domain's gate.
unsafe impl Send for Region {}
// SAFETY: shared access only reads the key and the descriptor.
unsafe impl Sync for Region {}

/// What peers may do to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// Nothing.
    None,
    /// Read, which they do when they are asked to: a put to memory that the fabric does not reach
    /// there.
    Read,
    /// Read and write.
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
        FI_READ | FI_WRITE | FI_SEND | FI_RECV | self.of_peers()
    }

    fn of_peers(self) -> u64 {
        match self {
            Rights::None => 0,
            Rights::Read => FI_REMOTE_READ,
            Rights::ReadAndWrite => FI_REMOTE_READ | FI_REMOTE_WRITE,
        }
    }
}

impl Region {
    /// Registers `len` bytes at `addr`, and binds the region to an endpoint where one is given,
    /// which the caller keeps open for the life of the region. One is given where
    /// [`Domain::binds_regions`]. Where keys are the process' to choose, `key` may be one that
    /// another domain has for this memory.
    pub(crate) fn register(
        domain: &Arc<Domain>,
        bound_to: Option<&Endpoint>,
        addr: usize,
        len: usize,
        rights: Rights,
        way: Way,
        key: Option<u64>,
    ) -> Result<Self, PortError> {
        const CALL: &str = "fi_mr_regattr";
        let library = domain.library();
        if len == 0 || addr == 0 || addr.checked_add(len).is_none() {
            return Err(refused(CALL, format!("{len} bytes at {addr:#x} are no memory")));
        }
        let memory = iovec { iov_base: addr as *mut _, iov_len: len };
        // Used in one of the ways only, but it has to live until the call.
        let part;
        let mut flags = 0;
        let mut attr = Padded::<fi_mr_attr>::new();
        match way {
            Way::Host => {
                attr.mr_iov = &memory;
                attr.iov_count = 1;
            }
            Way::Cuda { device } => {
                attr.mr_iov = &memory;
                attr.iov_count = 1;
                attr.iface = FI_HMEM_CUDA;
                attr.device.cuda = device;
            }
            Way::DmaBuf { device, fd, offset } => {
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

        let mut raw = ptr::null_mut();
        let gate = domain.gate().enter();
        // SAFETY: the domain is open, the attributes are padded for newer libraries, and what they
        // point to lives in this function. Libfabric does not dereference the memory here; who
        // transfers from or to it vouches for it.
        let code = unsafe { fi_mr_regattr(domain.as_ptr(), attr.as_mut_ptr(), flags, &mut raw) };
        check(library, CALL, code)?;
        let raw = opened(raw, CALL)?;
        drop(gate);
        // From here on an early return closes the region.
        let mut region = Self {
            raw,
            key: FI_KEY_NOTAVAIL,
            desc: Desc(0),
            closed: false,
            domain: Arc::clone(domain),
        };
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
        if rights == Rights::ReadAndWrite && region.key == FI_KEY_NOTAVAIL {
            return Err(refused(CALL, String::from("the provider's keys are longer than 64 bits")));
        }
        Ok(region)
    }

    /// Ends the registration, if that was not done.
    ///
    /// # Errors
    /// It lasts: the fabric may still reach the memory.
    pub(crate) fn close(&mut self) -> Result<(), PortError> {
        if !self.closed {
            let _gate = self.domain.gate().enter();
            // SAFETY: open; nothing is made from a region.
            unsafe { try_close(self.domain.library(), self.raw.as_ptr().cast())? };
            self.closed = true;
        }
        Ok(())
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn desc(&self) -> Desc {
        self.desc
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            warn!("a libfabric memory region stays open: {error}");
            note_unclosed();
        }
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys::{FI_EBUSY, fid};

    use super::*;
    use crate::objects::domain::Keys;
    use crate::objects::fabric::Fabrics;
    use crate::options::Options;
    use crate::provider::Provider;
    use crate::{Discovery, MemoryKinds};
    use engine::port::registration::is_unclosed;

    #[test]
    fn a_region_is_for_all_of_ours_and_for_what_peers_may() {
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

    unsafe extern "C" fn busy(_: *mut fid) -> i32 {
        -FI_EBUSY
    }

    #[test]
    fn a_registration_that_does_not_end_is_known() {
        let options = Options { provider: Provider::Shm, ..Options::default() };
        let discovery = Discovery::run(&options, true, MemoryKinds::Host).unwrap();
        let info = &discovery.devices()[0].info;
        let fabric = Fabrics::default().of(info).unwrap();
        let profile = discovery.devices()[0].profile;
        let domain = Domain::open(fabric, Arc::clone(info), Keys::new(true), profile).unwrap();
        let domain = Arc::new(domain);
        let memory = [0_u64; 64];
        let addr = memory.as_ptr() as usize;
        let register = || {
            Region::register(&domain, None, addr, 512, Rights::ReadAndWrite, Way::Host, None)
                .unwrap()
        };
        for is_told in [true, false] {
            let mut region = register();
            let object = region.raw.as_ptr().cast::<fid>();
            // SAFETY: the region's own object and its table of operations, which this test alone
            // uses.
            let (table, mut clinging) = unsafe { ((*object).ops, *(*object).ops) };
            clinging.close = Some(busy);
            // SAFETY: as above; the other table is there until the first is again.
            unsafe { (*object).ops = &raw mut clinging };
            if is_told {
                assert_eq!(region.close().unwrap_err().code, FI_EBUSY);
                assert!(region.close().is_err(), "it is tried again");
                // SAFETY: as above.
                unsafe { (*object).ops = table };
                assert_eq!(region.close(), Ok(()));
                assert_eq!(region.close(), Ok(()), "it is closed");
            } else {
                drop(region);
                assert!(is_unclosed(), "memory is not freed from here on");
                // SAFETY: still open, and of no use to anybody any more.
                unsafe {
                    (*object).ops = table;
                    (*table).close.unwrap()(object);
                }
            }
        }
    }
}
