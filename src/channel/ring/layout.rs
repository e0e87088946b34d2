//! Asserts that the shared memory's types are those of `include/nvshmem_libfabric_ring.h`.
//!
//! bindgen asserts the layout of what it generates, and the header for C and C++ compilers.

use std::mem::{align_of, offset_of, size_of};

use channel_sys as c;

use crate::channel::ring::slot::{Published, Slot};

const _: () = {
    assert!(size_of::<Slot>() == size_of::<c::nlf_slot>());
    assert!(align_of::<Slot>() == align_of::<c::nlf_slot>());
    assert!(offset_of!(Slot, words) == offset_of!(c::nlf_slot, q));

    assert!(size_of::<Published>() == size_of::<c::nlf_published>());
    assert!(align_of::<Published>() == align_of::<c::nlf_published>());
    assert!(offset_of!(Published, tail) == offset_of!(c::nlf_published, tail));
    assert!(offset_of!(Published, done) == offset_of!(c::nlf_published, done));
    assert!(offset_of!(Published, state) == offset_of!(c::nlf_published, state));
    assert!(offset_of!(Published, quiet) == offset_of!(c::nlf_published, quiet));
    assert!(offset_of!(Published, unused) == offset_of!(c::nlf_published, unused));

    // A GPU's 16-byte store needs halves that are aligned to it.
    assert!(size_of::<Slot>() % 32 == 0);
    // More than one warp with extended descriptors reserves at once.
    assert!(c::NLF_MIN_SLOTS >= 64 && c::NLF_MIN_SLOTS.is_power_of_two());
    assert!(c::NLF_MAX_SLOTS.is_power_of_two() && c::NLF_MAX_RINGS.is_power_of_two());
    // The three pieces of an inline value.
    assert!(c::NLF_VALUE_Q0_BITS + c::NLF_VALUE_Q3_BITS + c::NLF_VALUE_Q2_BITS == 47);
    assert!(c::NLF_MAX_INLINE == (1 << 47) - 1);
    assert!(c::NLF_MAX_OFFSET == c::NLF_OFFSET_MASK);
    assert!(c::NLF_MAX_BYTES == c::NLF_BYTES_MASK);
    assert!(c::NLF_MAX_PES == c::NLF_PE_MASK + 1);
    assert!(c::NLF_NO_REGION == c::NLF_REGION_MASK && c::NLF_OWN_REGION < c::NLF_NO_REGION);
    assert!(
        c::NLF_MAX_REGIONS == c::NLF_OWN_REGION && c::NLF_MAX_PES == 1 << c::NLF_BARRIER_ROUNDS
    );
    // Little endian, on both sides.
    assert!(cfg!(target_endian = "little"));
};
