//! Queries: what is asked of `fi_getinfo`.

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

use crate::endpoint_files::pid_namespace;
use crate::error::port_error;
use crate::objects::info::Info;
use crate::options::{Options, Progress, Threading};
use crate::provider::{EndpointFiles, Profile};
use engine::port::PortError;

/// One step of the ladder: a progress mode and a threading level to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) progress: Progress,
    pub(crate) threading: Threading,
}

impl Step {
    /// From what the settings prefer down to what asks least of the provider. Threading is given
    /// up after progress: automatic progress is the rarer gift, and with `FI_THREAD_SAFE` the
    /// provider locks on every call.
    pub(crate) fn ladder(options: &Options, profile: &'static Profile) -> Vec<Self> {
        let mut steps = Vec::new();
        // With FI_THREAD_DOMAIN we serialise registration as well.
        let first = match options.threading {
            Threading::Completion if !*profile.registers_beside => Threading::Safe,
            asked => asked,
        };
        if options.progress == Progress::Auto && !*profile.avoids_auto {
            steps.push(Self { progress: Progress::Auto, threading: first });
        }
        for threading in [Threading::Completion, Threading::Domain, Threading::Safe] {
            if threading as u8 >= first as u8 {
                steps.push(Self { progress: Progress::Manual, threading });
            }
        }
        steps
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = match self.progress {
            Progress::Auto => "AUTO",
            Progress::Manual => "MANUAL",
        };
        let threading = match self.threading {
            Threading::Completion => "COMPLETION",
            Threading::Domain => "DOMAIN",
            Threading::Safe => "SAFE",
        };
        write!(f, "progress {progress}, threading {threading}")
    }
}

/// How much to demand. The lesser ones only serve to explain why the full demand found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// The provider's name alone.
    Provider,
    /// Reliable datagram endpoints with messages and RMA.
    Rma,
    /// Also completions that mean delivery, with the step's progress and threading.
    Full(Step),
}

/// A provider that is asked, of any fabric or of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) library: &'static Library,
    pub(crate) profile: &'static Profile,
    pub(crate) fabric: Option<&'a str>,
}

impl Asked<'_> {
    /// Asks libfabric for the endpoints of all its devices or at one source address, which reach
    /// host memory, or memory of `devices` as well (`FI_HMEM`, with `FI_MR_HMEM` allowed).
    ///
    /// # Errors
    /// What `fi_getinfo` answered. An answer that names other providers only is an empty list.
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
                let name = format!("{prefix}{}-{}", process::id(), pid_namespace());
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
            if let Demand::Full(step) = demand {
                // quiet promises data that is visible at the target. Without this flag a write
                // completes when its buffer is free again.
                (*(*info).tx_attr).op_flags = FI_DELIVERY_COMPLETE;
                let progress = match step.progress {
                    Progress::Auto => FI_PROGRESS_AUTO,
                    Progress::Manual => FI_PROGRESS_MANUAL,
                };
                (*domain).control_progress = progress;
                (*domain).data_progress = progress;
                (*domain).threading = match step.threading {
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
    use crate::provider::{Provider, candidates};

    #[test]
    fn hints_follow_the_demand() {
        const MODES: i32 =
            FI_MR_ENDPOINT | FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        let library = Library::load(&crate::options::tests::options().library).expect("libfabric");
        let hints = |provider, demand, devices| {
            let (profile, fabric) = (candidates(provider)[0], Some("efa-direct"));
            Asked { library, profile, fabric }.hints(demand, devices).expect("memory")
        };
        let name = hints(Provider::Tcp, Demand::Provider, true);
        assert_eq!((name.provider().as_str(), name.fabric_name().as_str()), ("tcp", "efa-direct"));
        assert_eq!((name.raw().caps, name.raw().mode, name.mr_mode()), (0, 0, 0));

        let rma = hints(Provider::Tcp, Demand::Rma, false);
        assert_eq!((rma.raw().caps, rma.raw().mode), (FI_MSG | FI_RMA, FI_CONTEXT | FI_CONTEXT2));
        assert_eq!((rma.mr_mode(), rma.tx_attr().op_flags), (MODES, 0));
        let efa = hints(Provider::Efa, Demand::Rma, false);
        assert_eq!(efa.raw().mode, rma.raw().mode | FI_RX_CQ_DATA);
        let devices = hints(Provider::Tcp, Demand::Rma, true);
        assert_eq!(devices.raw().caps, rma.raw().caps | FI_HMEM);
        assert_eq!(devices.mr_mode(), MODES | FI_MR_HMEM);

        for (progress, asked, threading, level) in [
            (Progress::Auto, FI_PROGRESS_AUTO, Threading::Completion, FI_THREAD_COMPLETION),
            (Progress::Manual, FI_PROGRESS_MANUAL, Threading::Domain, FI_THREAD_DOMAIN),
            (Progress::Manual, FI_PROGRESS_MANUAL, Threading::Safe, FI_THREAD_SAFE),
        ] {
            let full = hints(Provider::Tcp, Demand::Full(Step { progress, threading }), false);
            let domain = full.domain_attr();
            assert_eq!((domain.data_progress, domain.threading), (asked, level));
            assert_eq!(domain.control_progress, asked);
            assert_eq!(full.tx_attr().op_flags, FI_DELIVERY_COMPLETE);
            assert_eq!(full.raw().caps, rma.raw().caps);
        }
    }

    #[test]
    fn ladder_starts_at_the_settings() {
        use Progress::{Auto, Manual};
        use Threading::{Completion, Domain, Safe};
        for (provider, progress, threading, steps) in [
            (
                Provider::Tcp,
                Auto,
                Completion,
                "AUTO COMPLETION, MANUAL COMPLETION, MANUAL DOMAIN, MANUAL SAFE",
            ),
            (Provider::Tcp, Manual, Domain, "MANUAL DOMAIN, MANUAL SAFE"),
            (Provider::Tcp, Auto, Safe, "AUTO SAFE, MANUAL SAFE"),
            // ofi_rxm's thread is not asked for.
            (Provider::TcpRxm, Auto, Safe, "MANUAL SAFE"),
            // Its endpoints have no lock else; with DOMAIN the lock is ours.
            (Provider::Cxi, Manual, Completion, "MANUAL SAFE"),
            (Provider::Cxi, Manual, Domain, "MANUAL DOMAIN, MANUAL SAFE"),
        ] {
            let options = Options { progress, threading, ..crate::options::tests::options() };
            let ladder = Step::ladder(&options, candidates(provider)[0]);
            let told = ladder
                .iter()
                .map(|step| step.to_string().replace("progress ", "").replace(", threading", ""));
            assert_eq!(told.collect::<Vec<_>>().join(", "), steps, "{provider}");
        }
    }
}
