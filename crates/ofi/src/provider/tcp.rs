//! tcp, and tcp;ofi_rxm for libfabric versions whose tcp has only connections.

use super::fact::Fact;
use super::profile::{Profile, SOFTWARE};
use super::rxm;
use engine::port::packet::MAX_LONG_MESSAGE;

const SOCKETS: Profile = Profile {
    interfaces: Fact::manual(true, "it goes over the sockets of any interface", "fi_tcp(7)"),
    by_address: Fact::seen(
        true,
        "any address of the host will do",
        "tests/ofi, libfabric 1.17 and 2.5.1",
    ),
    crashes_without_descriptors: Fact::seen(
        true,
        "fi_endpoint calls a null pointer when it finds none for its socket",
        "tests/ofi/lifetime.rs, libfabric 2.5.1; 2.6: prov/tcp/src/xnet_rdm.c, xnet_init_rdm",
    ),
    outlives_receives: Fact::seen(
        true,
        "what is too long or breaks off ends its own connection at most, and receives are of all connections",
        "tests/plugin/strangers, libfabric 1.17 and 2.5.1; 2.5.1: xnet_ep_flush_all_queues, rxm_handle_comp_error",
    ),
    longest_message: Fact::seen(
        [MAX_LONG_MESSAGE; 2],
        "what precedes a message on its connection costs as much as another message",
        "docs/performance.md, libfabric 2.5.1",
    ),
    device_memory: Fact::code(
        false,
        "sockets copy, and it offers no FI_HMEM",
        "libfabric 2.6: prov/tcp/src",
    ),
    bulk_connections: Fact::seen(
        true,
        "progress is a domain's own: four domains with a thread each moved 4.5 times the bytes of one",
        "two processes over loopback, 32 cores, libfabric 2.5.1; 1.17 and 2.6: prov/tcp/src",
    ),
    ..SOFTWARE
};

pub(super) const TCP: Profile = Profile { name: "tcp", ..SOCKETS };

pub(super) const TCP_RXM: Profile =
    Profile { name: "tcp;ofi_rxm", avoids_auto: rxm::AVOIDS_AUTO, ..SOCKETS };
