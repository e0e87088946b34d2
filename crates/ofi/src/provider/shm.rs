//! shm: shared memory, for PEs of one host.

use super::fact::Fact;
use super::profile::{CAUTIOUS, Profile, Striping};

pub(super) const SHM: Profile = Profile {
    name: "shm",
    one_host: Fact::manual(true, "its peers are found in /dev/shm", "fi_shm(7)"),
    missing: Fact::seen(
        "its files are in /dev/shm: look at what is free there (`df /dev/shm`), and at files of ended processes \
         (`nvshmem-libfabric doctor`); a container gets more by --shm-size",
        "it is not offered where its files do not fit",
        "libfabric 1.17, 16 MiB of /dev/shm",
    ),
    endpoint_names: Fact::code(
        Some("fi_shm://"),
        "endpoints are files in /dev/shm, named by the process' number in its PID namespace",
        "libfabric 2.6: prov/shm/src/smr_init.c",
    ),
    // Nor are there wires to spread over.
    separate_rails: Fact::seen(
        true,
        "it crashes when messages cross between endpoints of one process's domains",
        "tests/ofi, libfabric 2.5.1",
    ),
    progress_thread: Fact::manual(None, "it has no progress thread", "fi_shm(7)"),
    registers_beside: Fact::seen(
        true,
        "heaps grow while the proxy thread polls",
        "tests/plugin, libfabric 1.17 and 2.5.1",
    ),
    immediate_data: Fact::seen(
        true,
        "the data was seen to be there before what is told of it",
        "tests/ofi/immediate_data.rs, libfabric 1.17 and 2.5.1",
    ),
    longest_message: Fact::code(
        4096,
        "up to 4 KiB lie in the buffers that shm has for fi_inject",
        "libfabric 2.6: prov/shm/src/smr.h (SMR_INJECT_SIZE)",
    ),
    random_keys: Fact::seen(
        true,
        "it takes any 64 bits for a key",
        "tests/ofi, libfabric 1.17 and 2.5.1",
    ),
    // It offers FI_HMEM whether or not CUDA is compiled in, gives up fi_inject for it, and moves
    // the bytes of a device with the runtime's copies on the default stream. Those wait for kernels
    // that run on blocking streams, which may be waiting for these very bytes.
    device_memory: Fact::code(
        false,
        "it moves device memory by CUDA copies that may wait for running kernels",
        "libfabric 2.6: prov/shm/src/smr_ep.c, prov/shm/src/smr_attr.c",
    ),
    striping: Fact::seen(
        Striping::SOFTWARE,
        "the processor moves the bytes",
        "docs/performance.md, libfabric 2.5.1",
    ),
    ..CAUTIOUS
};
