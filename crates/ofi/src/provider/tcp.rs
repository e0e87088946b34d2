//! tcp, and tcp;ofi_rxm for libfabrics whose tcp has connections only.

use super::fact::Fact;
use super::profile::{CAUTIOUS, Profile, Striping};
use super::rxm;
use engine::port::packet::MAX_LONG_MESSAGE;

const INTERFACES: Fact<bool> =
    Fact::manual(true, "it goes over the sockets of any interface", "fi_tcp(7)");
const BY_ADDRESS: Fact<bool> =
    Fact::seen(true, "any address of the host will do", "tests/ofi, libfabric 1.17 and 2.5.1");
const REGISTERS_BESIDE: Fact<bool> = Fact::seen(
    true,
    "heaps grow while the proxy thread polls",
    "tests/plugin, libfabric 1.17 and 2.5.1",
);
const IMMEDIATE_DATA: Fact<bool> = Fact::seen(
    true,
    "the data was seen to be there before what is told of it",
    "tests/ofi/immediate_data.rs, libfabric 1.17 and 2.5.1",
);
const OUTLIVES_RECEIVES: Fact<bool> = Fact::seen(
    true,
    "what is too long or breaks off ends its own connection at most, and receives are of all connections",
    "tests/plugin/strangers.rs, libfabric 1.17 and 2.5.1; 2.5.1: xnet_ep_flush_all_queues, rxm_handle_comp_error",
);
const LONGEST_MESSAGE: Fact<usize> = Fact::seen(
    MAX_LONG_MESSAGE,
    "what precedes a message on its connection costs as much as another message",
    "docs/performance.md, libfabric 2.5.1",
);
const CRASHES_WITHOUT_DESCRIPTORS: Fact<bool> = Fact::seen(
    true,
    "fi_endpoint calls a null pointer when it finds none for its socket",
    "tests/ofi/lifetime.rs, libfabric 2.5.1; 2.6: prov/tcp/src/xnet_rdm.c, xnet_init_rdm",
);
const RANDOM_KEYS: Fact<bool> =
    Fact::seen(true, "it takes any 64 bits for a key", "tests/ofi, libfabric 1.17 and 2.5.1");
const DEVICE_MEMORY: Fact<bool> =
    Fact::code(false, "sockets copy, and it offers no FI_HMEM", "libfabric 2.6: prov/tcp/src");
const STRIPING: Fact<Striping> = Fact::seen(
    Striping::SOFTWARE,
    "the processor moves the bytes",
    "docs/performance.md, libfabric 2.5.1",
);

const BULK_CONNECTIONS: Fact<bool> = Fact::seen(
    true,
    "progress is a domain's own: four domains with a thread each moved 4.5 times the bytes of one",
    "two processes over loopback, 32 cores, libfabric 2.5.1; 1.17 and 2.6: prov/tcp/src",
);

pub(super) const TCP: Profile = Profile {
    name: "tcp",
    interfaces: INTERFACES,
    by_address: BY_ADDRESS,
    progress_thread: Fact::seen(
        None,
        "answers FI_PROGRESS_AUTO but has no progress thread",
        "targets that do not poll, libfabric 2.5.1; 2.6: prov/tcp/src/xnet_progress.c",
    ),
    registers_beside: REGISTERS_BESIDE,
    immediate_data: IMMEDIATE_DATA,
    outlives_receives: OUTLIVES_RECEIVES,
    crashes_without_descriptors: CRASHES_WITHOUT_DESCRIPTORS,
    longest_message: LONGEST_MESSAGE,
    random_keys: RANDOM_KEYS,
    device_memory: DEVICE_MEMORY,
    striping: STRIPING,
    bulk_connections: BULK_CONNECTIONS,
    ..CAUTIOUS
};

pub(super) const TCP_RXM: Profile = Profile {
    name: "tcp;ofi_rxm",
    interfaces: INTERFACES,
    by_address: BY_ADDRESS,
    progress_thread: rxm::PROGRESS_THREAD,
    avoids_auto: rxm::AVOIDS_AUTO,
    registers_beside: REGISTERS_BESIDE,
    immediate_data: IMMEDIATE_DATA,
    outlives_receives: OUTLIVES_RECEIVES,
    crashes_without_descriptors: CRASHES_WITHOUT_DESCRIPTORS,
    longest_message: LONGEST_MESSAGE,
    random_keys: RANDOM_KEYS,
    device_memory: DEVICE_MEMORY,
    striping: STRIPING,
    bulk_connections: BULK_CONNECTIONS,
    ..CAUTIOUS
};
