//! What libfabric offers on this machine, of use to the transport or not, for people who ask.

use std::ptr;

use libfabric_sys::{Library, Version};

use crate::objects::info::Info;
use engine::port::PortError;

/// A provider, with its layers, as `fi_info` lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offered {
    /// Its name.
    pub provider: String,
    /// Its own version.
    pub version: Version,
    /// Its domains, each once.
    pub domains: Vec<String>,
}

/// All providers that have something on this machine, in libfabric's order.
///
/// # Errors
/// What `fi_getinfo` answers when there is nothing at all.
pub fn offered(library: &'static Library) -> Result<Vec<Offered>, PortError> {
    let mut offered: Vec<Offered> = Vec::new();
    // SAFETY: nothing is asked for in particular.
    for info in unsafe { Info::list(library, ptr::null(), 0, ptr::null()) }? {
        let (provider, version) =
            (info.provider(), Version::from_packed(info.fabric().prov_version));
        let known = offered.iter().position(|known| known.provider == provider);
        let at = known.unwrap_or_else(|| {
            offered.push(Offered { provider, version, domains: Vec::new() });
            offered.len() - 1
        });
        let domain = info.domain_name();
        if !offered[at].domains.contains(&domain) {
            offered[at].domains.push(domain);
        }
    }
    Ok(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_and_domains_are_listed_once() {
        let library = Library::load(&crate::options::tests::options().library).expect("libfabric");
        let all = offered(library).expect("there is some");
        let of = |name: &str| all.iter().filter(|one| one.provider == name).collect::<Vec<_>>();
        let [shm] = of("shm")[..] else { panic!("{all:?}") };
        let [rxm] = of("tcp;ofi_rxm")[..] else { panic!("{all:?}") };
        assert_eq!(shm.domains, ["shm"], "{all:?}");
        assert_eq!(rxm.domains.iter().filter(|domain| *domain == "lo").count(), 1, "{all:?}");
        assert!(shm.version > Version::new(1, 0));
    }
}
