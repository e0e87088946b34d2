//! What libfabric has got since 1.17 and this crate's users need with any headers. Where the headers
//! have it too, these take the place of bindgen's.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use crate::{FI_OPT_FI_HMEM_P2P, fi_mr_attr};

/// `FI_MR_DMABUF`, since 1.20: a flag of `fi_mr_regattr`. `fi_mr_attr` then points to a
/// [`fi_mr_dmabuf`] instead of to vectors. An older library takes it for vectors all the same.
pub const FI_MR_DMABUF: u64 = 1 << 40;

/// `FI_OPT_CUDA_API_PERMITTED`, since 1.18: an option of endpoints, a `bool`.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;

// The options are counted through: the last that 1.17 has, one that is reserved, and this.
const _: () = assert!(FI_OPT_FI_HMEM_P2P as c_int + 2 == FI_OPT_CUDA_API_PERMITTED);

/// A part of a dma-buf, for registration with [`FI_MR_DMABUF`].
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    /// The file descriptor. Needed during the call only.
    pub fd: c_int,
    /// Where the memory starts in it, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// The virtual address of the dma-buf's first byte.
    pub base_addr: *mut c_void,
}

const _: () = assert!(
    size_of::<fi_mr_dmabuf>() == 32
        && offset_of!(fi_mr_dmabuf, fd) == 0
        && offset_of!(fi_mr_dmabuf, offset) == 8
        && offset_of!(fi_mr_dmabuf, len) == 16
        && offset_of!(fi_mr_dmabuf, base_addr) == 24
);

// The pointer shares its place with `mr_iov`, the first field.
const _: () = assert!(offset_of!(fi_mr_attr, iov_count) == 8);
const _: () = assert!(offset_of!(fi_mr_attr, iface) == 64);
const _: () = assert!(offset_of!(fi_mr_attr, device) == 72);

/// Sets `dmabuf`, which takes the place of `mr_iov`, and `iov_count` to one.
pub fn mr_attr_set_dmabuf(attr: &mut fi_mr_attr, dmabuf: *const fi_mr_dmabuf) {
    // SAFETY: the pointer before `iov_count`, at offset 0, as asserted above.
    unsafe { *(attr as *mut fi_mr_attr).cast::<*const fi_mr_dmabuf>() = dmabuf };
    attr.iov_count = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Padded;

    #[test]
    fn a_dma_buf_takes_the_place_of_the_vectors() {
        let part = fi_mr_dmabuf {
            fd: 3,
            offset: 5,
            len: 7,
            base_addr: std::ptr::without_provenance_mut(9),
        };
        let mut attr = Padded::<fi_mr_attr>::new();
        attr.access = 0xabcd;
        mr_attr_set_dmabuf(&mut attr, &part);
        assert_eq!((attr.iov_count, attr.access), (1, 0xabcd));
        // SAFETY: the first field is a pointer, which was just written.
        let found = unsafe { attr.as_mut_ptr().cast::<*const fi_mr_dmabuf>().read() };
        assert_eq!(found, &raw const part);
    }
}
