//! Additions to libfabric since 1.17 that this crate's users need. A library older than that refuses
//! it, or misunderstands it where that is said: the user asks for its version first.

use std::mem::offset_of;

pub use crate::bindings::v2_1::{FI_MR_DMABUF, FI_OPT_CUDA_API_PERMITTED, fi_mr_dmabuf};
use crate::bindings::{v1_17, v2_1};

// `dmabuf` shares its place with `mr_iov`, the first field.
const _: () = assert!(offset_of!(v1_17::fi_mr_attr, mr_iov) == 0);
const _: () = assert!(offset_of!(v2_1::fi_mr_attr, __bindgen_anon_1.dmabuf) == 0);

/// Sets `dmabuf` and `iov_count`, for a registration with [`FI_MR_DMABUF`], since 1.20. An older
/// library takes it for vectors all the same.
pub fn mr_attr_set_dmabuf(attr: &mut v1_17::fi_mr_attr, dmabuf: *const fi_mr_dmabuf) {
    attr.mr_iov = dmabuf.cast();
    attr.iov_count = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Padded, fi_mr_attr};

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
        // SAFETY: the struct of 2.1 has room in the Padded, and all its bytes were set.
        let newer = unsafe { attr.as_mut_ptr().cast::<v2_1::fi_mr_attr>().read() };
        assert_eq!((newer.iov_count, newer.access), (1, 0xabcd));
        // SAFETY: both members are pointers.
        assert_eq!(unsafe { newer.__bindgen_anon_1.dmabuf }, &raw const part);
    }
}
