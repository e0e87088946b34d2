//! Macros that bindgen cannot see, because they cast or take arguments.

/// `FI_ADDR_UNSPEC`: any peer.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// `FI_ADDR_NOTAVAIL`: what `fi_av_insert` gives for an address it refused.
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
/// `FI_KEY_NOTAVAIL`: the region has no key, or one longer than 64 bits.
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
