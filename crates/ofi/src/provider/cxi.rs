//! cxi: HPE Slingshot.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{CAUTIOUS, Completions, GPU_DIRECT, LogPattern, Nic, Profile};
use super::variable::{Variable, Wanted};

pub(super) const CXI: Profile = Profile {
    name: "cxi",
    nic: Fact::code(
        Some(Nic { class: "cxi", domain_suffix: "", driver: None }),
        "it is a device of the kernel, and domains are called after it",
        "libfabric 2.6: prov/cxi/src/cxip_telemetry.c",
    ),
    missing: Fact::seen(
        "distributions build libfabric without it; HPE's has it, and `fi_info -p cxi` tells whether the one in use does",
        "a job then runs over tcp, which is slower by far",
        "libfabric 1.17 of Debian 12 and Ubuntu 24.04",
    ),
    environment: Fact::code(
        &[OPTIMISED, MATCHING, CONTROL, COPIES, MAPPED, REGISTERED],
        "nothing of it waits for kernels, and many peers at once do not end the job",
        "libfabric 1.20 (HPE's) to 2.6: prov/cxi/src/cxip_info.c (cxip_env_init)",
    ),
    enabling_refused: Fact::code(
        "the NIC's service has no room for another endpoint: a process takes one of each NIC that it uses, and a second of its \
         first one; have the launcher give the job more of the NIC, or set NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE to fewer",
        "command queues, event queues and portal table entries are the service's",
        "libfabric 2.6: prov/cxi/src/cxip_cmdq.c, prov/cxi/src/cxip_pte.c, prov/cxi/src/cxip_evtq.c",
    ),
    registers_beside: Fact::code(
        false,
        "enabling a region takes events that polling takes as well, and short of FI_THREAD_SAFE no lock is between them",
        "libfabric 2.6: prov/cxi/src/cxip_ep.c (cxip_alloc_endpoint), prov/cxi/src/cxip_mr.c (cxip_mr_wait_append)",
    ),
    order_of_writes_costs: Fact::code(
        true,
        "ordered writes to optimised regions are in larger packets, and by one way through the network",
        "libfabric 2.6: prov/cxi/src/cxip_rma.c (cxip_rma_is_unrestricted)",
    ),
    // From 256 peers on more than the minimum, up to the size of cxi's own queues.
    completions: Fact::code(
        Completions { least: 16 << 10, each_peer: 64, most: 128 << 10 },
        "the NIC's event queue is as large, and a full one makes it drop what peers send",
        "libfabric 2.6: prov/cxi/src/cxip_evtq.c (cxip_evtq_get_queue_size), prov/cxi/include/cxip.h (CXIP_CQ_DEF_SZ)",
    ),
    device_memory: Fact::code(
        true,
        "its NIC reads and writes device memory",
        "libfabric 2.6: prov/cxi/src/cxip_info.c",
    ),
    // With OPTIMISED no copy is left to disable.
    forbids_cuda: Fact::code(
        false,
        "it would want every region pinned and mapped whole by GDRCopy, and refuse those that are not",
        "HPE's libfabric 1.22 to 2.6: prov/cxi/src/cxip_ep.c (cxip_ep_setopt_priv), prov/cxi/src/cxip_mr.c (cxip_mr_bind)",
    ),
    heeds_descriptors: Fact::code(
        true,
        "it asks CUDA whether it still knows the memory of each transfer that comes without",
        "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_rma.c (cxip_rma_emit_dma), prov/cxi/src/cxip_iomm.c (cxip_map), \
         prov/util/src/cuda_mem_monitor.c (cuda_mm_valid)",
    ),
    one_allocation: Fact::code(
        true,
        "it maps the allocation that the first byte is in",
        "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_iomm.c (cxip_map_get_mem_region_size)",
    ),
    device_switches: Fact::code(
        &["FI_MR_CACHE_MAX_COUNT", "FI_MR_CUDA_CACHE_MONITOR_ENABLED"],
        "what it does not keep it maps from the start of the allocation on, wherever in it the memory is",
        "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_iomm.c (cxip_map_nocache, cxip_dmabuf_hints), \
         prov/util/src/util_mr_cache.c (ofi_mr_cache_init)",
    ),
    // Memhooks needs no kernel support. Without a host monitor only the devices' starts.
    maps_wrongly: Fact::code(
        Some(LogPattern {
            words: "MR caching disabled",
            remedy: "FI_MR_CACHE_MONITOR=memhooks or disabled",
        }),
        "what it does not keep it maps from the start of the allocation on, and it keeps nothing where libfabric's monitor of \
         host memory does not start",
        "libfabric 1.21 to 2.6: prov/cxi/src/cxip_iomm.c (cxip_iomm_init), prov/util/src/util_mem_monitor.c \
         (ofi_monitors_add_cache)",
    ),
    device_memory_takes: Fact::code(
        GPU_DIRECT,
        "it registers such memory by CUDA's help alone",
        "libfabric 2.6: prov/cxi/src/cxip_ep.c, src/hmem.c",
    ),
    dma_bufs: Fact::code(
        Some(Version::new(2, 5)),
        "it takes their address, and exports them itself; before libfabric 2.5 it takes one for vectors",
        "libfabric 2.4 and 2.5: prov/cxi/src/cxip_mr.c (cxip_mr_init)",
    ),
    ..CAUTIOUS
};

/// All PEs must agree.
const OPTIMISED: Variable = Variable::code(
    "FI_CXI_OPTIMIZED_MRS",
    Wanted::Text("0"),
    "NVIDIA's transport warns of hangs with optimised regions, and it would copy small writes to them into a command, from \
     memory of a GPU by CUDA",
    "NVSHMEM 3.4.5: src/modules/transport/libfabric/libfabric.cpp; libfabric 2.6: prov/cxi/src/cxip_rma.c (cxip_rma_is_idc)",
);

const MATCHING: Variable = Variable::code(
    "FI_CXI_RX_MATCH_MODE",
    Wanted::Text("hybrid"),
    "where many send to one the NIC runs out of match entries, which ends the job if it alone matches messages",
    "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_msg_hpc.c (FC_SW_ONLOAD_MSG_FATAL)",
);

const CONTROL: Variable = Variable::code(
    "FI_UNIVERSE_SIZE",
    Wanted::Connections,
    "its queue for control messages is made for so many peers",
    "libfabric 2.1 to 2.6: prov/cxi/src/cxip_ctrl.c (cxip_ep_ctrl_init)",
)
.since(Version::new(2, 1));

const COPIES: Variable = Variable::new(
    "FI_CXI_DISABLE_NON_INJECT_RMA_IDC",
    Fact::manual(
        Wanted::Text("1"),
        "it would copy small writes to optimised regions into a command, from memory of a GPU by CUDA, which may wait for \
         running kernels",
        "fi_cxi(7)",
    ),
)
.for_devices()
.since(Version::new(2, 3));

const MAPPED: Variable = Variable::code(
    "FI_CXI_DISABLE_HMEM_DEV_REGISTER",
    Wanted::Text("1"),
    "where libfabric has GDRCopy it would pin and map every region of device memory whole, on each NIC, and refuse what \
     that is refused for",
    "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_iomm.c (cxip_do_map), src/hmem_cuda.c (cuda_dev_register)",
)
.for_devices();

const REGISTERED: Variable = Variable::code(
    "FI_CXI_DISABLE_HOST_REGISTER",
    Wanted::Text("1"),
    "it would register new buffers for unexpected messages with CUDA while it polls, which may wait for running kernels",
    "HPE's libfabric 1.20 to 2.6: prov/cxi/src/cxip_ptelist_buf.c (cxip_ptelist_buf_alloc)",
)
.for_devices();
