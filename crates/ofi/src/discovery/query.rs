//! Queries: what is asked of `fi_getinfo`.

use std::ffi::CString;
use std::fmt;
use std::net::IpAddr;
use std::process;
use std::ptr::{self, NonNull};

use libfabric_sys::{
    FI_CONTEXT, FI_CONTEXT2, FI_DELIVERY_COMPLETE, FI_ENOMEM, FI_EP_RDM, FI_HMEM, FI_MR_ALLOCATED,
    FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG,
    FI_NUMERICHOST, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_RMA, FI_RX_CQ_DATA, FI_SOURCE,
    FI_THREAD_COMPLETION, FI_THREAD_DOMAIN, FI_THREAD_SAFE, Library, fi_info,
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

/// Which memory transfers are to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reaching {
    /// Host memory.
    Host,
    /// Memory of devices as well (`FI_HMEM`, with `FI_MR_HMEM` allowed).
    Devices,
}

/// Asks libfabric for the endpoints of one provider, of all its devices or at one source address,
/// of any fabric or of one.
///
/// # Errors
/// What `fi_getinfo` answered. An answer that names other providers only is an empty list.
pub(crate) fn query(
    library: &'static Library,
    profile: &'static Profile,
    fabric: Option<&str>,
    demand: Demand,
    reaching: Reaching,
    source: Option<IpAddr>,
) -> Result<Vec<Info>, PortError> {
    let out_of_memory = || port_error(library, "fi_dupinfo", FI_ENOMEM.into());
    let hints = Hints::new(library, profile, fabric, demand, reaching).ok_or_else(out_of_memory)?;
    let node = source.map(|ip| CString::new(ip.to_string()).unwrap_or_default());
    let source = |node: &CString| (node.as_ptr(), FI_SOURCE | FI_NUMERICHOST);
    let (node, flags) = node.as_ref().map_or((ptr::null(), 0), source);

    // SAFETY: node is a string or null, and the hints are live.
    let mut infos = unsafe { Info::list(library, node, flags, hints.raw.as_ptr()) }?;
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

struct Hints {
    library: &'static Library,
    raw: NonNull<fi_info>,
}

impl Hints {
    fn new(
        library: &'static Library,
        profile: &'static Profile,
        fabric: Option<&str>,
        demand: Demand,
        reaching: Reaching,
    ) -> Option<Self> {
        let hints = Self { library, raw: NonNull::new(library.allocinfo())? };
        let name = CString::new(profile.name).ok()?;
        let fabric = fabric.map(CString::new).transpose().ok()?;
        // SAFETY: an info from fi_dupinfo(NULL) has all its attributes allocated and zeroed. The
        // names must come from malloc, since fi_freeinfo frees them.
        unsafe {
            let info = hints.raw.as_ptr();
            (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            if let Some(fabric) = &fabric {
                (*(*info).fabric_attr).name = libc::strdup(fabric.as_ptr());
            }
            if demand == Demand::Provider {
                return Some(hints);
            }
            (*info).caps = FI_MSG | FI_RMA;
            (*info).mode = FI_CONTEXT | FI_CONTEXT2;
            if *profile.data_takes_receives {
                (*info).mode |= FI_RX_CQ_DATA;
            }
            (*(*info).ep_attr).type_ = FI_EP_RDM;
            let domain = (*info).domain_attr;
            (*domain).mr_mode =
                FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            if reaching == Reaching::Devices {
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
        }
        Some(hints)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: from fi_dupinfo of the same library, freed once.
        unsafe { self.library.freeinfo(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Provider, candidates};

    fn steps(provider: Provider, progress: Progress, threading: Threading) -> Vec<String> {
        let options = Options { progress, threading, ..crate::options::tests::options() };
        Step::ladder(&options, candidates(provider)[0]).iter().map(Step::to_string).collect()
    }

    #[test]
    fn a_demand_is_what_libfabric_is_asked_for() {
        const MODES: i32 =
            FI_MR_ENDPOINT | FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        let library = Library::load(&crate::options::tests::options().library).expect("libfabric");
        let hints = |provider, demand, reaching| {
            let profile = candidates(provider)[0];
            let hints = Hints::new(library, profile, Some("efa-direct"), demand, reaching);
            // SAFETY: a live entry.
            unsafe { Info::copy(library, hints.expect("memory").raw.as_ptr()) }.expect("memory")
        };
        let [tcp, efa] = [Provider::Tcp, Provider::Efa];
        let name = hints(tcp, Demand::Provider, Reaching::Devices);
        assert_eq!((name.provider().as_str(), name.fabric_name().as_str()), ("tcp", "efa-direct"));
        assert_eq!((name.caps(), name.mode(), name.mr_mode(), name.tx_op_flags()), (0, 0, 0, 0));

        let rma = hints(tcp, Demand::Rma, Reaching::Host);
        assert_eq!((rma.caps(), rma.mode()), (FI_MSG | FI_RMA, FI_CONTEXT | FI_CONTEXT2));
        assert_eq!((rma.mr_mode(), rma.tx_op_flags()), (MODES, 0));
        assert_eq!(hints(efa, Demand::Rma, Reaching::Host).mode(), rma.mode() | FI_RX_CQ_DATA);
        let devices = hints(tcp, Demand::Rma, Reaching::Devices);
        assert_eq!(devices.caps(), FI_MSG | FI_RMA | FI_HMEM);
        assert_eq!(devices.mr_mode(), MODES | FI_MR_HMEM);

        for (progress, asked) in
            [(Progress::Auto, FI_PROGRESS_AUTO), (Progress::Manual, FI_PROGRESS_MANUAL)]
        {
            for (threading, level) in [
                (Threading::Completion, FI_THREAD_COMPLETION),
                (Threading::Domain, FI_THREAD_DOMAIN),
                (Threading::Safe, FI_THREAD_SAFE),
            ] {
                let step = Demand::Full(Step { progress, threading });
                let full = hints(tcp, step, Reaching::Host);
                assert_eq!((full.data_progress(), full.threading()), (asked, level));
                assert_eq!(full.tx_op_flags(), FI_DELIVERY_COMPLETE);
                assert_eq!(full.caps(), rma.caps());
            }
        }
    }

    #[test]
    fn the_ladder_starts_at_the_settings() {
        assert_eq!(
            steps(Provider::Tcp, Progress::Auto, Threading::Completion),
            [
                "progress AUTO, threading COMPLETION",
                "progress MANUAL, threading COMPLETION",
                "progress MANUAL, threading DOMAIN",
                "progress MANUAL, threading SAFE",
            ]
        );
        assert_eq!(
            steps(Provider::Tcp, Progress::Manual, Threading::Domain),
            ["progress MANUAL, threading DOMAIN", "progress MANUAL, threading SAFE"]
        );
        assert_eq!(
            steps(Provider::Tcp, Progress::Auto, Threading::Safe),
            ["progress AUTO, threading SAFE", "progress MANUAL, threading SAFE"]
        );
        assert_eq!(
            steps(Provider::TcpRxm, Progress::Auto, Threading::Safe),
            ["progress MANUAL, threading SAFE"],
            "ofi_rxm's thread is not asked for"
        );
        assert_eq!(
            steps(Provider::Cxi, Progress::Manual, Threading::Completion),
            ["progress MANUAL, threading SAFE"],
            "its endpoints have no lock else"
        );
        assert_eq!(
            steps(Provider::Cxi, Progress::Manual, Threading::Domain),
            ["progress MANUAL, threading DOMAIN", "progress MANUAL, threading SAFE"],
            "the lock is ours then"
        );
    }
}
