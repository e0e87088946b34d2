//! verbs;ofi_rxm: InfiniBand and RoCE.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{ByName, CAUTIOUS, GPU_DIRECT, Nic, Profile};
use super::rxm;
use super::variable::{Variable, Wanted};

pub(super) const VERBS: Profile = Profile {
    name: "verbs;ofi_rxm",
    by_address: Fact::manual(
        true,
        "its connections are made by IP address",
        "fi_verbs(7), fi_getinfo(3)",
    ),
    nic: Fact::code(
        Some(Nic { class: "infiniband", domain_suffix: "", driver: None }),
        "it is an RDMA device of the kernel, and domains are called after it",
        "libfabric 2.6: prov/verbs/src/verbs_info.c",
    ),
    environment: Fact::code(
        &[rxm::UNIVERSE, rxm::BUFFERS, SCATTER],
        "queues and buffers for our jobs, and reads that the NIC alone executes",
        "libfabric 1.17 to 2.6: prov/rxm/src/rxm_ep.c, prov/rxm/src/rxm_cq.c; rdma-core: providers/mlx5/verbs.c",
    ),
    enabling_refused: rxm::ENABLING_REFUSED,
    avoids_auto: rxm::AVOIDS_AUTO,
    registers_beside: Fact::code(
        true,
        "registration is the kernel's, and touches no queue",
        "libfabric 2.6: prov/verbs/src/verbs_mr.c, prov/rxm/src/rxm_domain.c",
    ),
    device_memory: Fact::code(
        true,
        "its NIC reads and writes device memory",
        "libfabric 2.6: prov/rxm/src/rxm_attr.c, prov/verbs/src/verbs_ep.c",
    ),
    device_memory_takes: Fact::code(
        GPU_DIRECT,
        "it looks for both in the kernel's symbols",
        "libfabric 2.6: prov/verbs/include/linux/verbs_osd.h",
    ),
    device_memory_by_name: Fact::code(
        Some(ByName {
            parts: &[("mlx", Version::new(1, 0)), ("bnxt_re", Version::new(2, 3))],
            until: Version::new(2, 7),
        }),
        "it looks for the names that the kernel gives, and rdma-core's persistent names are others",
        "libfabric 1.17 to 2.6 and 2.7.0a1: prov/verbs/src/verbs_info.c (vrb_hmem_supported)",
    ),
    dma_bufs: Fact::manual(Some(Version::new(1, 20)), "it registers dma-bufs", "fi_mr(3)"),
    ..CAUTIOUS
};

const SCATTER: Variable = Variable::code(
    "MLX5_SCATTER_TO_CQE",
    Wanted::Text("0"),
    "what a small read brings may come in the completion, and libmlx5 then copies it with the CPU, also into memory of a GPU",
    "rdma-core: providers/mlx5/verbs.c, providers/mlx5/cq.c",
)
.for_devices();
