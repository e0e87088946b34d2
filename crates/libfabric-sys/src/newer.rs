//! Additions to libfabric since 1.17 that this crate's users need, stated by hand.
//!
//! A library older than an addition refuses it, or misunderstands it where that is said: the user
//! asks for its version first. The facts are those of libfabric 2.1's headers.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::bindings::v1_17::fi_mr_attr;
use crate::version::Version;

/// The newest API that is asked for: that of the headers these facts are from
/// (`FI_MAJOR_VERSION`, `FI_MINOR_VERSION` in `rdma/fabric.h`).
pub const NEWEST_API: Version = Version::new(2, 1);

/// Flag of `fi_mr_regattr`: the memory is a dma-buf (`rdma/fi_domain.h`, since 1.20).
pub const FI_MR_DMABUF: u64 = 1 << 40;

/// Option of an endpoint, a bool: whether the provider may call CUDA (`rdma/fi_endpoint.h`, since
/// 1.18).
pub const FI_OPT_CUDA_API_PERMITTED: u32 = 10;

/// Option of an endpoint, a bool: whether the provider may pass messages through memory that the
/// processes of a host share (`rdma/fi_endpoint.h`, since 1.21).
pub const FI_OPT_SHARED_MEMORY_PERMITTED: u32 = 11;

/// Memory to register, as a part of a dma-buf (`rdma/fi_domain.h`, since 1.20).
#[allow(non_camel_case_types)] // As in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    /// Where the part begins in it.
    pub offset: u64,
    pub len: usize,
    /// Where the part is in this process, or null.
    pub base_addr: *mut c_void,
}

const _: () = {
    assert!(size_of::<fi_mr_dmabuf>() == 32);
    assert!(offset_of!(fi_mr_dmabuf, fd) == 0);
    assert!(offset_of!(fi_mr_dmabuf, offset) == 8);
    assert!(offset_of!(fi_mr_dmabuf, len) == 16);
    assert!(offset_of!(fi_mr_dmabuf, base_addr) == 24);
};

// `dmabuf` of newer headers shares its place with `mr_iov`, the first field.
const _: () = assert!(offset_of!(fi_mr_attr, mr_iov) == 0);

/// Sets `dmabuf` and `iov_count`, for a registration with [`FI_MR_DMABUF`]. An older library takes
/// it for vectors all the same.
pub fn mr_attr_set_dmabuf(attr: &mut fi_mr_attr, dmabuf: *const fi_mr_dmabuf) {
    attr.mr_iov = dmabuf.cast();
    attr.iov_count = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Padded;

    #[test]
    fn dma_buf_replaces_vectors() {
        let base_addr = std::ptr::without_provenance_mut(9);
        let part = fi_mr_dmabuf { fd: 3, offset: 5, len: 7, base_addr };
        let mut attr = Padded::<fi_mr_attr>::zeroed();
        attr.access = 0xabcd;
        mr_attr_set_dmabuf(&mut attr, &part);
        assert_eq!((attr.iov_count, attr.access), (1, 0xabcd));
        assert_eq!(attr.mr_iov.cast::<fi_mr_dmabuf>(), &raw const part);
    }
}
