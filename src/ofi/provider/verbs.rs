//! verbs;ofi_rxm: InfiniBand and RoCE.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{CAUTIOUS, Nic, Profile};
use super::rxm;

pub(super) const VERBS: Profile = Profile {
    name: "verbs;ofi_rxm",
    by_address: Fact::manual(
        true,
        "its connections are made by IP address",
        "fi_verbs(7), fi_getinfo(3)",
    ),
    nic: Fact::code(
        Some(Nic { class: "infiniband", domain_suffix: "" }),
        "it is an RDMA device of the kernel, and domains are called after it",
        "libfabric 2.6: prov/verbs/src/verbs_info.c",
    ),
    progress_thread: rxm::PROGRESS_THREAD,
    avoids_auto: rxm::AVOIDS_AUTO,
    device_memory: Fact::code(
        true,
        "its NIC reads and writes device memory",
        "libfabric 2.6: prov/rxm/src/rxm_attr.c, prov/verbs/src/verbs_ep.c",
    ),
    dma_bufs: Fact::manual(Some(Version::new(1, 20)), "it registers dma-bufs", "fi_mr(3)"),
    reopening: rxm::REOPENING,
    ..CAUTIOUS
};
