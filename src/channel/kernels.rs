//! The kernels of `cuda/kernels`, compiled when the crate was, where there was a compiler for them.
//!
//! They check and measure the channel. A user's kernels are the user's, compiled with the header
//! `cuda/nvshmem_libfabric_device.cuh`; nothing of these is needed for them.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_were_compiled_where_they_have_to_be() {
        if std::env::var_os("NVSHMEM_TEST_KERNELS").is_none() {
            println!("skipped: kernels (NVSHMEM_TEST_KERNELS is not set; {})", super::BUILT);
            return;
        }
        let image = super::IMAGE.expect(super::BUILT);
        // What a fatbin begins with.
        assert_eq!(image[..4], [0x50, 0xed, 0x55, 0xba], "{}", super::BUILT);
    }
}
