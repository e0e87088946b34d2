//! efa: AWS Elastic Fabric Adapter.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{CAUTIOUS, GPU_DIRECT, Nic, Profile, SoftwareWrites};

/// `FI_OPT_EFA_EMULATED_WRITE`, a bool, since libfabric 1.18.
const EMULATED_WRITE: i32 = -(0xefa << 16) + 2;

pub(super) const EFA: Profile = Profile {
    name: "efa",
    nic: Fact::code(
        Some(Nic { class: "infiniband", domain_suffix: "-rdm", driver: Some("efa") }),
        "it is an RDMA device of the kernel, and domains are called after it and the type of endpoint",
        "libfabric 2.6: prov/efa/src/efa_domain.h",
    ),
    missing: Fact::seen(
        "one NIC that cannot be opened hides all, as does a container without /dev/infiniband; FI_LOG_LEVEL=warn FI_LOG_PROV=efa \
         tells of it, and `fi_info -p efa` whether this libfabric has the provider",
        "it gives up its list of devices at the first that it cannot open",
        "libfabric 2.5.1 in the laboratory (`make labs`)",
    ),
    fabrics: Fact::code(
        &["efa-direct", "efa"],
        "efa-direct is the NIC itself, for NICs that read and write memory; efa does in software what others cannot, and \
         a write of the NIC is no more complete there",
        "libfabric 2.5: prov/efa/src/efa_prov_info.c, prov/efa/src/rdm/efa_rdm_rma.c",
    ),
    data_takes_receives: Fact::code(
        true,
        "else efa-direct does no RMA where the NIC, or the build, does not know unsolicited receives",
        "libfabric 2.5: prov/efa/src/efa_user_info.c",
    ),
    addresses_refused: Fact::seen(
        "a NIC has address handles for so many others (ibv_devinfo -v: max_ah), and each process on it, and each of its \
         lanes, takes one for every NIC of a peer: fewer PEs that share a NIC help, or fewer NICs a PE \
         (NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE)",
        "it makes a handle for each address, and the device has a limit",
        "libfabric 2.5.1 in the laboratory (`make labs`); 2.5: prov/efa/src/efa_ah.c",
    ),
    registers_beside: Fact::code(
        true,
        "registration is the kernel's, and its endpoint keeps its lock",
        "libfabric 2.6: prov/efa/src/efa_mr.c, prov/efa/src/efa_domain.c",
    ),
    events: Fact::seen(
        true,
        "fabric efa tells there of packets of its own protocol that fail, and ends the process where it cannot",
        "libfabric 2.5.1 in the laboratory (`make labs`), a NIC of a p4d that dies",
    ),
    software_writes: Fact::code(
        Some(SoftwareWrites { option: EMULATED_WRITE, variable: "FI_EFA_USE_DEVICE_RDMA" }),
        "those of p5 and later instances do",
        "libfabric 1.18 to 2.6: include/rdma/fi_ext.h, prov/efa/src/rdm/efa_rdm_ep_fiops.c",
    ),
    immediate_data: Fact::seen(
        true,
        "a write that tells takes a receive, or waits at the sender's NIC for one, so the queue has room for all",
        "libfabric 2.5.1 in the laboratory (`make labs`); 2.6: prov/efa/src/efa_cq.c, prov/efa/src/efa_base_ep.c",
    ),
    device_memory: Fact::code(
        true,
        "its NIC reads and writes device memory, and it does without CUDA's copies when told to",
        "libfabric 2.6: prov/efa/src/efa_prov_info.c, prov/efa/src/rdm/efa_rdm_ep_fiops.c",
    ),
    forbids_sharing: Fact::seen(
        true,
        "fabric efa leaves what stays on a host to provider shm, which has ended a process; with CUDA it does without",
        "libfabric 2.5.1 in the laboratory (`make labs`), a command of shm at no address; 1.21 to 2.6: \
         prov/efa/src/rdm/efa_rdm_ep_fiops.c (efa_rdm_ep_set_shared_memory_permitted, efa_rdm_ep_update_shm)",
    ),
    device_memory_takes: Fact::code(
        GPU_DIRECT,
        "it registers such memory by CUDA's help alone",
        "libfabric 2.6: prov/efa/src/efa_hmem.c",
    ),
    dma_bufs: Fact::manual(Some(Version::new(1, 20)), "it registers dma-bufs", "fi_mr(3)"),
    ..CAUTIOUS
};
