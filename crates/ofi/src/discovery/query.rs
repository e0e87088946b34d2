//! Queries to `fi_getinfo`.

use std::ffi::CString;
use std::fmt;
use std::net::IpAddr;
use std::process;
use std::ptr;

use libfabric_sys::{
    FI_CONTEXT, FI_CONTEXT2, FI_DELIVERY_COMPLETE, FI_ENOMEM, FI_EP_RDM, FI_HMEM, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG,
    FI_NUMERICHOST, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_RMA, FI_RX_CQ_DATA, FI_SOURCE,
    FI_THREAD_COMPLETION, FI_THREAD_DOMAIN, FI_THREAD_SAFE, Library,
};

use crate::endpoint_files::namespace;
use crate::error::port_error;
use crate::objects::info::Info;
use crate::options::Threading;
use crate::provider::{EndpointFiles, Profile};
use engine::port::PortError;

/// Progress and threading models requested of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndpointModel {
    /// Whether `FI_PROGRESS_AUTO` is requested. Lanes drive progress in any case: tcp offers it
    /// without a thread.
    pub(crate) is_automatic: bool,
    pub(crate) threading: Threading,
}

impl fmt::Display for EndpointModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = if self.is_automatic { "AUTO" } else { "MANUAL" };
        let threading = format!("{:?}", self.threading).to_uppercase();
        write!(f, "progress {progress}, threading {threading}")
    }
}

/// Returns the models to request, from the settings' preference to the one that every provider has:
/// with `FI_THREAD_SAFE` it locks on every call.
pub(crate) fn fallbacks(asked: Threading, profile: &'static Profile) -> Vec<EndpointModel> {
    // With FI_THREAD_DOMAIN we serialise registration as well.
    let first = match asked {
        Threading::Completion if !*profile.registers_beside => Threading::Safe,
        asked => asked,
    };
    let levels = [Threading::Completion, Threading::Domain, Threading::Safe];
    let levels = levels.into_iter().filter(|level| *level as u8 >= first as u8);
    let automatic = (!*profile.avoids_auto).then_some((true, first));
    let steps = automatic.into_iter().chain(levels.map(|level| (false, level)));
    steps.map(|(is_automatic, threading)| EndpointModel { is_automatic, threading }).collect()
}

/// Extent of a query. The lesser ones only serve to explain why the full one found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// Only the provider's name.
    Provider,
    /// Reliable datagram endpoints with messages and RMA.
    Rma,
    /// Also `FI_DELIVERY_COMPLETE`, with progress and threading models.
    Full(EndpointModel),
}

/// Query to one provider, for any fabric or for one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProviderQuery<'a> {
    pub(crate) library: &'static Library,
    pub(crate) profile: &'static Profile,
    pub(crate) fabric: Option<&'a str>,
}

impl ProviderQuery<'_> {
    /// Queries the endpoints of all its devices, or at one source address. With `devices` they
    /// reach device memory as well (`FI_HMEM`, with `FI_MR_HMEM` allowed).
    ///
    /// # Errors
    /// Those of `fi_getinfo`. The list is empty if only other providers answered.
    pub(crate) fn query(
        &self,
        demand: Demand,
        devices: bool,
        source: Option<IpAddr>,
    ) -> Result<Vec<Info>, PortError> {
        let Self { library, profile, fabric } = *self;
        let out_of_memory = || port_error(library, "fi_dupinfo", FI_ENOMEM.into());
        let hints = self.hints(demand, devices).ok_or_else(out_of_memory)?;
        let node = source.map(|ip| CString::new(ip.to_string()).unwrap_or_default());
        let source = |node: &CString| (node.as_ptr(), FI_SOURCE | FI_NUMERICHOST);
        let (node, flags) = node.as_ref().map_or((ptr::null(), 0), source);

        // SAFETY: node is a string or null, and the hints are live.
        let mut infos = unsafe { Info::list(library, node, flags, hints.as_ptr()) }?;
        infos.retain(|info| {
            info.provider() == profile.name && fabric.is_none_or(|name| name == info.fabric_name())
        });
        for info in &mut infos {
            if *profile.order_of_writes_costs {
                info.free_writes();
            }
            if let Some(EndpointFiles { prefix, .. }) = *profile.endpoint_files {
                let name = format!("{prefix}{}-{}", process::id(), namespace("pid"));
                let name = CString::new(name).unwrap_or_default();
                if !info.name_endpoints(&name) {
                    return Err(out_of_memory());
                }
            }
        }
        Ok(infos)
    }

    fn hints(&self, demand: Demand, devices: bool) -> Option<Info> {
        let name = CString::new(self.profile.name).ok()?;
        let fabric = self.fabric.map(CString::new).transpose().ok()?;
        // SAFETY: an empty info has all its attributes allocated and zeroed. The names must come
        // from malloc, since fi_freeinfo frees them.
        unsafe {
            let hints = Info::copy(self.library, ptr::null())?;
            let info = hints.as_ptr();
            (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            if let Some(fabric) = &fabric {
                (*(*info).fabric_attr).name = libc::strdup(fabric.as_ptr());
            }
            if demand == Demand::Provider {
                return Some(hints);
            }
            (*info).caps = FI_MSG | FI_RMA;
            (*info).mode = FI_CONTEXT | FI_CONTEXT2;
            if *self.profile.data_takes_receives {
                (*info).mode |= FI_RX_CQ_DATA;
            }
            (*(*info).ep_attr).type_ = FI_EP_RDM;
            let domain = (*info).domain_attr;
            (*domain).mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            if devices {
                (*info).caps |= FI_HMEM;
                (*domain).mr_mode |= FI_MR_HMEM;
            }
            if let Demand::Full(EndpointModel { is_automatic, threading }) = demand {
                // quiet promises data that is visible at the target; without this flag a
                // provider may complete a write once the NIC has sent it.
                (*(*info).tx_attr).op_flags = FI_DELIVERY_COMPLETE;
                let progress = if is_automatic { FI_PROGRESS_AUTO } else { FI_PROGRESS_MANUAL };
                (*domain).control_progress = progress;
                (*domain).data_progress = progress;
                (*domain).threading = match threading {
                    Threading::Completion => FI_THREAD_COMPLETION,
                    Threading::Domain => FI_THREAD_DOMAIN,
                    Threading::Safe => FI_THREAD_SAFE,
                };
            }
            Some(hints)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::domain::tests::some_device;
    use crate::provider::{Provider, candidates};

    #[test]
    fn messages_and_rma_are_asked_for() {
        let of_regions =
            FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
        for (provider, devices, receives, hmem) in [
            (Provider::Tcp, false, 0, (0, 0)),
            (Provider::Efa, true, FI_RX_CQ_DATA, (FI_HMEM, FI_MR_HMEM)),
        ] {
            let hints = hints(provider, Demand::Rma, devices);
            let (caps, mode) = (hints.raw().caps, hints.raw().mode);
            assert_eq!(caps, FI_MSG | FI_RMA | hmem.0);
            assert_eq!(mode, FI_CONTEXT | FI_CONTEXT2 | receives);
            assert_eq!((hints.ep_attr().type_, hints.mr_mode()), (FI_EP_RDM, of_regions | hmem.1));
            assert_eq!(hints.tx_attr().op_flags, 0);
        }
        assert_eq!(hints(Provider::Tcp, Demand::Provider, true).raw().caps, 0);
    }

    fn hints(provider: Provider, demand: Demand, devices: bool) -> Info {
        let device = some_device(provider, |_| {});
        let (library, profile) = (device.info.library, device.profile);
        ProviderQuery { library, profile, fabric: Some("some") }.hints(demand, devices).unwrap()
    }

    #[test]
    fn full_demand_is_delivery_by_model() {
        for (is_automatic, threading, progress, level) in [
            (true, Threading::Completion, FI_PROGRESS_AUTO, FI_THREAD_COMPLETION),
            (false, Threading::Domain, FI_PROGRESS_MANUAL, FI_THREAD_DOMAIN),
            (false, Threading::Safe, FI_PROGRESS_MANUAL, FI_THREAD_SAFE),
        ] {
            let model = EndpointModel { is_automatic, threading };
            let hints = hints(Provider::Tcp, Demand::Full(model), false);
            assert_eq!(hints.tx_attr().op_flags, FI_DELIVERY_COMPLETE);
            let domain = hints.domain_attr();
            assert_eq!((domain.control_progress, domain.data_progress), (progress, progress));
            assert_eq!((domain.threading, hints.fabric_name()), (level, String::from("some")));
        }
    }

    #[test]
    fn fallbacks_start_at_the_settings() {
        use Threading::{Completion, Domain, Safe};
        for (provider, asked, automatic, levels) in [
            (Provider::Tcp, Completion, Some(Completion), &[Completion, Domain, Safe][..]),
            (Provider::Tcp, Domain, Some(Domain), &[Domain, Safe]),
            // The thread of ofi_rxm is not asked for.
            (Provider::TcpRxm, Domain, None, &[Domain, Safe]),
            // Its endpoints have no lock else; with DOMAIN the lock is ours.
            (Provider::Cxi, Completion, Some(Safe), &[Safe]),
            (Provider::Cxi, Domain, Some(Domain), &[Domain, Safe]),
        ] {
            let automatic =
                automatic.map(|threading| EndpointModel { is_automatic: true, threading });
            let manual =
                levels.iter().map(|&threading| EndpointModel { is_automatic: false, threading });
            let steps: Vec<EndpointModel> = automatic.into_iter().chain(manual).collect();
            assert_eq!(fallbacks(asked, candidates(provider)[0]), steps, "{provider}");
        }
    }
}
