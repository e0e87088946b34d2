//! shm: shared memory, for PEs of one host.

use super::fact::Fact;
use super::profile::{EndpointFiles, FileSize, Profile, SOFTWARE};
use engine::port::packet::MAX_LONG_MESSAGE;

pub(super) const SHM: Profile = Profile {
    name: "shm",
    one_host: Fact::manual(true, "its peers are found in /dev/shm", "fi_shm(7)"),
    endpoint_files: Fact::seen(
        Some(EndpointFiles {
            prefix: "fi_shm://",
            sizes: [
                FileSize { nominal: 16 << 20, used: 6 << 20 },
                FileSize { nominal: 13 << 20, used: 3 << 20 },
            ],
        }),
        "they are in /dev/shm, where a lack of space is SIGBUS",
        "selftest, libfabric 1.17 and 2.5.1; 2.6: prov/shm/src/smr_init.c, smr_util.c",
    ),
    // There are no links to stripe over.
    separate_rails: Fact::seen(
        true,
        "it crashes when messages cross between endpoints of one process's domains",
        "tests/ofi, libfabric 2.5.1",
    ),
    longest_message: Fact::code(
        [MAX_LONG_MESSAGE, 4096],
        "up to 4 KiB lie in the buffers that shm has for fi_inject; before 2.5 it sends a write with \
         FI_DELIVERY_COMPLETE in segments, which the target has to answer",
        "libfabric 1.17 to 2.6: prov/shm/src/smr.h (SMR_INJECT_SIZE), smr_ep.c (smr_select_proto)",
    ),
    // It offers FI_HMEM whether or not CUDA is compiled in, gives up fi_inject for it, and copies
    // device memory with the runtime on the default stream. Such a copy waits for kernels that run
    // on blocking streams, which may wait for these very bytes.
    device_memory: Fact::code(
        false,
        "it moves device memory by CUDA copies that may wait for running kernels",
        "libfabric 2.6: prov/shm/src/smr_ep.c, prov/shm/src/smr_attr.c",
    ),
    ..SOFTWARE
};
