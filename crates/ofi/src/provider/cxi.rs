//! cxi: HPE Slingshot.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{CAUTIOUS, Nic, Profile, Reopening};
use super::variable::{Variable, Wanted};

pub(super) const CXI: Profile = Profile {
    name: "cxi",
    nic: Fact::code(
        Some(Nic { class: "cxi", domain_suffix: "", driver: None }),
        "it is a device of the kernel, and domains are called after it",
        "libfabric 2.6: prov/cxi/src/cxip_telemetry.c",
    ),
    environment: Fact::code(
        &[COPIES, OPTIMISED],
        "small writes from memory of devices are the NIC's as well",
        "libfabric 2.6: prov/cxi/src/cxip_rma.c (cxip_rma_is_idc)",
    ),
    progress_thread: Fact::manual(None, "it has no progress thread", "fi_cxi(7)"),
    registers_beside: Fact::code(
        false,
        "enabling a region takes events that polling takes as well, and short of FI_THREAD_SAFE no lock is between them",
        "libfabric 2.6: prov/cxi/src/cxip_ep.c (cxip_alloc_endpoint), prov/cxi/src/cxip_mr.c (cxip_mr_wait_append)",
    ),
    order_of_writes_costs: Fact::code(
        true,
        "ordered writes go by one way through the network, and in larger packets",
        "libfabric 2.6: prov/cxi/src/cxip_rma.c (cxip_rma_is_unrestricted)",
    ),
    completions: Fact::manual(
        16 << 10,
        "what peers send goes through it as well, and a full one makes the NIC drop messages",
        "fi_cxi(7)",
    ),
    batches: Fact::code(
        Some(Version::new(2, 0)),
        "it rings the doorbell for what it has taken before it refuses a post",
        "libfabric 2.0: prov/cxi/src/cxip_cmdq.c",
    ),
    device_memory: Fact::code(
        true,
        "its NIC reads and writes device memory",
        "libfabric 2.6: prov/cxi/src/cxip_info.c",
    ),
    copies_little: Fact::code(
        true,
        "it copies what goes into a command of the NIC",
        "libfabric 2.6: prov/cxi/src/cxip_rma.c, prov/cxi/src/cxip_ep.c",
    ),
    dma_bufs: Fact::code(
        Some(Version::new(2, 5)),
        "it registers dma-bufs; before libfabric 2.5 it takes one for vectors",
        "libfabric 2.4 and 2.5: prov/cxi/src/cxip_mr.c (cxip_mr_init)",
    ),
    reopening: Fact::code(
        Reopening::Never,
        "its memory is bound to endpoints",
        "libfabric 2.6: prov/cxi/src/cxip_info.c (FI_MR_ENDPOINT)",
    ),
    ..CAUTIOUS
};

/// The library in which cxi can be told to leave small writes to the NIC.
const TELLS: Version = Version::new(2, 3);

const COPIES: Variable = Variable::new(
    "FI_CXI_DISABLE_NON_INJECT_RMA_IDC",
    Fact::manual(
        Wanted::Text("1"),
        "it would copy small writes into a command, from memory of a GPU by CUDA, which may wait for running kernels",
        "fi_cxi(7)",
    ),
)
.for_devices()
.since(TELLS);

const OPTIMISED: Variable = Variable::new(
    "FI_CXI_OPTIMIZED_MRS",
    Fact::code(
        Wanted::Text("0"),
        "it would copy small writes to optimised regions into a command, from memory of a GPU by CUDA, and before libfabric \
         2.3 nothing else keeps it from that",
        "libfabric 2.2: prov/cxi/src/cxip_rma.c (cxip_rma_is_idc)",
    ),
)
.for_devices()
.before(TELLS);
