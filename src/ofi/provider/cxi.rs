//! cxi: HPE Slingshot.

use libfabric_sys::Version;

use super::fact::Fact;
use super::profile::{CAUTIOUS, Nic, Profile, Reopening};

pub(super) const CXI: Profile = Profile {
    name: "cxi",
    nic: Fact::code(
        Some(Nic { class: "cxi", domain_suffix: "" }),
        "it is a device of the kernel, and domains are called after it",
        "libfabric 2.6: prov/cxi/src/cxip_telemetry.c",
    ),
    progress_thread: Fact::manual(None, "it has no progress thread", "fi_cxi(7)"),
    hardware_atomics: Fact::manual(true, "its NIC has them all", "fi_cxi(7)"),
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
    dma_bufs: Fact::manual(Some(Version::new(1, 20)), "it registers dma-bufs", "fi_mr(3)"),
    reopening: Fact::code(
        Reopening::Never,
        "its memory is bound to endpoints",
        "libfabric 2.6: prov/cxi/src/cxip_info.c (FI_MR_ENDPOINT)",
    ),
    ..CAUTIOUS
};
