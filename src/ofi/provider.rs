//! The providers that are tried, and what is particular about each.

use crate::settings::Provider;

/// A libfabric provider, by the name that `fi_getinfo` gives it, layers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// The name, matched exactly: asked for `tcp`, libfabric also answers with `tcp;ofi_rxm`.
    pub(super) name: &'static str,
    /// Every interface is a device, also those that lead nowhere useful.
    pub(super) plain_sockets: bool,
    /// Devices can be opened by an IP address that is not listed.
    pub(super) by_address: bool,
}

const EFA: Candidate = Candidate { name: "efa", plain_sockets: false, by_address: false };
const CXI: Candidate = Candidate { name: "cxi", plain_sockets: false, by_address: false };
const VERBS: Candidate =
    Candidate { name: "verbs;ofi_rxm", plain_sockets: false, by_address: true };
const TCP: Candidate = Candidate { name: "tcp", plain_sockets: true, by_address: true };
const TCP_RXM: Candidate = Candidate { name: "tcp;ofi_rxm", plain_sockets: true, by_address: true };
const SHM: Candidate = Candidate { name: "shm", plain_sockets: false, by_address: false };

/// What to try for the user's choice, in order.
pub(super) fn candidates(provider: Provider) -> &'static [Candidate] {
    match provider {
        Provider::Auto => &[EFA, CXI, VERBS, TCP, TCP_RXM],
        Provider::Efa => &[EFA],
        Provider::Cxi => &[CXI],
        Provider::Verbs => &[VERBS],
        // Libfabric 1.17 has connected endpoints only in its tcp provider.
        Provider::Tcp => &[TCP, TCP_RXM],
        Provider::TcpRxm => &[TCP_RXM],
        Provider::Shm => &[SHM],
    }
}

/// The user's word for a choice.
pub(super) fn user_name(provider: Provider) -> &'static str {
    match provider {
        Provider::Auto => "auto",
        Provider::Efa => "efa",
        Provider::Cxi => "cxi",
        Provider::Verbs => "verbs",
        Provider::Tcp => "tcp",
        Provider::TcpRxm => "tcp;ofi_rxm",
        Provider::Shm => "shm",
    }
}
