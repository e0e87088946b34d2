//! What libfabric offers on this machine, whatever it is worth to the transport: for people who
//! ask.

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
        let (provider, version) = (info.provider(), info.provider_version());
        let known = offered.iter().position(|known| known.provider == provider);
        let at = known.unwrap_or(offered.len());
        if known.is_none() {
            offered.push(Offered { provider, version, domains: Vec::new() });
        }
        let domain = info.domain_name();
        if !offered[at].domains.contains(&domain) {
            offered[at].domains.push(domain);
        }
    }
    Ok(offered)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_there_is_is_listed_once() {
        let library = Library::load(&crate::options::tests::options().library).expect("libfabric");
        let all = offered(library).expect("there is some");
        let names: HashSet<&str> = all.iter().map(|one| one.provider.as_str()).collect();
        assert_eq!(names.len(), all.len(), "{all:?}");
        let of = |name: &str| all.iter().find(|one| one.provider == name).expect(name);
        let (shm, rxm) = (of("shm"), of("tcp;ofi_rxm"));
        assert_eq!(shm.domains, ["shm"], "{all:?}");
        assert!(rxm.domains.contains(&String::from("lo")), "{all:?}");
        let domains: HashSet<&String> = rxm.domains.iter().collect();
        assert_eq!(domains.len(), rxm.domains.len(), "{all:?}");
        assert!(shm.version > Version::new(1, 0));
    }
}
