//! Providers: a profile of each, every fact with its source.
//!
//! A profile starts from [`profile::CAUTIOUS`], which relies on nothing that a provider need not
//! do, and states facts found out about this one, the faults of its code among them. No
//! profile is derived from another (those of shm and tcp are derived from common facts of software
//! providers). No product code outside this module compares a provider's name: it reads a fact.
//! `docs/adding-a-provider.md` describes how to add a provider.

mod cxi;
mod efa;
#[macro_use]
mod fact;
mod profile;
mod rxm;
mod shm;
mod tcp;
mod variable;
mod verbs;

use std::fmt;

pub(crate) use fact::Fact;
pub use profile::Striping;
pub(crate) use profile::{EndpointFiles, LogPattern, Nic, Profile, SoftwareWrites};
pub(crate) use variable::{Variable, Wanted};

/// A libfabric provider, by the user's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    /// The first of efa, cxi, verbs and tcp that works.
    Auto,
    /// AWS Elastic Fabric Adapter (`efa`).
    Efa,
    /// HPE Slingshot (`cxi`).
    Cxi,
    /// InfiniBand and RoCE (`verbs;ofi_rxm`).
    Verbs,
    /// TCP sockets: the native `tcp` provider if it has reliable datagram endpoints (libfabric 1.18
    /// and newer), else `tcp;ofi_rxm`.
    Tcp,
    /// `tcp;ofi_rxm` whatever the version.
    TcpRxm,
    /// Shared memory, for PEs on one host (`shm`).
    Shm,
}

impl Provider {
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("efa", Self::Efa),
        ("cxi", Self::Cxi),
        ("verbs", Self::Verbs),
        ("tcp", Self::Tcp),
        ("tcp;ofi_rxm", Self::TcpRxm),
        ("shm", Self::Shm),
    ];

    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|&(_, provider)| provider)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, provider)| provider == self);
        f.write_str(name.map_or("", |(name, _)| *name))
    }
}

pub(crate) fn candidates(provider: Provider) -> &'static [&'static Profile] {
    use {cxi::CXI, efa::EFA, shm::SHM, tcp::TCP, tcp::TCP_RXM, verbs::VERBS};
    match provider {
        Provider::Auto => &[&EFA, &CXI, &VERBS, &TCP, &TCP_RXM],
        Provider::Efa => &[&EFA],
        Provider::Cxi => &[&CXI],
        Provider::Verbs => &[&VERBS],
        // Libfabric 1.17 has connected endpoints only in its tcp provider.
        Provider::Tcp => &[&TCP, &TCP_RXM],
        Provider::TcpRxm => &[&TCP_RXM],
        Provider::Shm => &[&SHM],
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys::Version;

    use super::*;
    use crate::provider::fact::Source;
    use crate::provider::profile::CAUTIOUS;

    #[test]
    fn differing_facts_have_a_source() {
        for profile in Provider::all().flat_map(candidates) {
            assert_ne!(profile.name, CAUTIOUS.name, "it is nobody's");
            let facts = profile.facts().into_iter().zip(CAUTIOUS.facts());
            for ((name, fact), (_, cautious)) in facts {
                let told = format!("{}: {name} is {}: {}", profile.name, fact.value, fact.why);
                assert!(!fact.why.is_empty(), "{told}: and why?");
                match fact.source {
                    Source::NotExamined => {
                        assert_eq!(fact.value, cautious.value, "{told}: who says so?");
                    }
                    Source::Manual(of) | Source::Code(of) | Source::Seen(of) => {
                        assert!(of.len() > 4, "{told}: who says so?");
                    }
                }
            }
        }
    }

    /// verbs of libfabric 1.17 to 2.6 looks for the kernel's names of NVIDIA's NICs, from 2.3 on
    /// for Broadcom's as well; rdma-core's persistent names have neither.
    #[test]
    fn names_barring_device_memory_are_told() {
        let names = candidates(Provider::Verbs)[0].device_memory_by_name.unwrap();
        let nics = ["rocep65s0f0", "mlx5_1", "bnxt_re0"].map(String::from);
        for (minor, others) in
            [(2, Some("rocep65s0f0, bnxt_re0")), (3, Some("rocep65s0f0")), (7, None)]
        {
            let version = Version::new(2, minor);
            let help = names.help(version, &nics);
            assert_eq!(help.is_some(), others.is_some(), "{version}");
            for (help, others) in help.iter().zip(others) {
                assert!(help.contains(&format!("which {others} lack")), "{help}");
                assert!(help.contains("rdma dev set rocep65s0f0 name mlx5_0"), "{help}");
            }
            assert_eq!(names.help(version, &nics[1..2]), None, "{version}");
        }
    }

    #[test]
    fn queues_grow_with_the_peers() {
        for (peers, entries) in [(256, 16 << 10), (1024, 64 << 10), (1 << 20, 128 << 10)] {
            assert_eq!(candidates(Provider::Cxi)[0].completions.of(peers), entries);
        }
        assert_eq!(candidates(Provider::Tcp)[0].completions.of(1 << 20), 0);
    }

    #[test]
    fn endpoint_files_grow_with_peers() {
        let files = candidates(Provider::Shm)[0].endpoint_files.expect("they are in /dev/shm");
        for (here, by_kernel, mib) in [(1, true, 3), (3, true, 7), (3, false, 19), (9, false, 91)] {
            assert_eq!(files.opened_with(Version::new(2, 0), here, by_kernel), mib << 20, "{here}");
        }
        for (version, each) in [(Version::new(1, 22), 16 << 20), (Version::new(2, 0), 13 << 20)] {
            let offered = files.offered_with(version);
            assert!(offered >= each && offered % each == 0, "for each core: {offered}");
        }
    }

    #[test]
    fn provider_page_lists_every_fact() {
        let page = include_str!("../../../../docs/adding-a-provider.md");
        for (name, _) in CAUTIOUS.facts() {
            assert!(page.contains(&format!("`{name}`")), "say what a wrong {name} costs");
        }
    }
}
