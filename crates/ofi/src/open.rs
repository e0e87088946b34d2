//! The opening of both lanes of a process on the devices found.

use std::sync::Arc;

use libfabric_sys::Version;
use log::{info, warn};

use crate::data_path::port::OfiPort;
use crate::data_path::rail::{Rail, Receives};
use crate::discovery::device::Device;
use crate::discovery::immediate_data::ImmediateData;
use crate::discovery::search::Discovery;
use crate::error::OfiError;
use crate::memory::direct_policy::DirectPolicy;
use crate::memory::registration::OfiMemory;
use crate::objects::contexts::Contexts;
use crate::objects::fabric::Fabrics;
use crate::options::{BatchChoice, Devices, RailLoss};
use crate::progress_probe::Verdict;
use crate::provider::Reopening;
use crate::report::{RailReport, Report};
use crate::topology::Topology;
use engine::ids::LaneKind;
use engine::lane::segments_for;
use engine::port::RailLimits;

/// Most rails of a lane, as [`Port::limits`](engine::port::Port::limits) has it.
const MAX_RAILS: usize = 32;

/// An open fabric: the ports of both lanes, and registration.
#[derive(Debug)]
pub struct Opened {
    /// The host lane: one rail, on the device of the first proxy rail, in a domain of its own.
    pub host: OfiPort,
    /// The proxy lane.
    pub proxy: OfiPort,
    /// Registration with all rails of both.
    pub memory: OfiMemory,
    /// What this is.
    pub report: Report,
}

impl Discovery {
    /// Opens the devices with these indices into [`Self::devices`], in this order, as the rails of
    /// the proxy lane, and the host lane on the first of them. Each rail will be given the
    /// addresses of about `peers` rails.
    ///
    /// A device on which something cannot be opened, be it one of the lanes' endpoints or the one
    /// for control messages, is reported and left out, as long as another can, unless the user has
    /// named the devices. What no device has room for is done without, if it can be.
    ///
    /// # Errors
    /// When no device could be opened, or not all that the user has named. Nothing stays open then.
    ///
    /// # Safety
    /// From here on the ports touch memory at the addresses that they are told, and let the fabric
    /// do so: whoever registers memory, or has a lane execute operations, vouches for it to be
    /// there until they are over. The engine checks what peers ask for against what is registered.
    pub unsafe fn open(&self, rails: &[usize], peers: usize) -> Result<Opened, OfiError> {
        let mut fabrics = Fabrics::default();
        let mut failures = Vec::new();
        let mut found: Vec<Found> = Vec::new();
        let contexts = Arc::new(Contexts::new(self.segments(rails)));
        for &index in rails {
            let Some(device) = self.devices().get(index) else {
                failures.push(format!("device {index} of {} does not exist", self.devices().len()));
                continue;
            };
            if found.len() == MAX_RAILS {
                failures.push(format!("{}: more than {MAX_RAILS} rails", device.name));
                continue;
            }
            let options = &self.options;
            match Rail::open(&mut fabrics, device, options, &contexts, peers, Receives::Messages) {
                // The engine keeps one addressing for all rails. One provider has one anyway.
                Ok(rail) if found.first().is_some_and(|first| !alike(&first.rail, &rail)) => {
                    failures
                        .push(format!("{}: peers would address it in another way", rail.name()));
                }
                Ok(rail) => found.push(Found { device, rail: Arc::new(rail), control: None }),
                Err(error) => failures.push(format!("{}: {error}", device.name)),
            }
        }
        if found.len() > 1 && self.looks_after_rails() {
            self.open_controls(&mut fabrics, &mut found, peers, &mut failures);
        }
        let (host, host_contexts) = loop {
            let Some(Found { device, rail, .. }) = found.first() else {
                return Err(OfiError::NoRail { failures });
            };
            let contexts = Contexts::new(segments_for(LaneKind::Host, &[rail.limits()]));
            let contexts = Arc::new(contexts);
            let (options, receives) = (&self.options, Receives::Nothing);
            match Rail::open(&mut fabrics, device, options, &contexts, peers, receives) {
                Ok(host) => break (vec![Arc::new(host)], contexts),
                Err(error) => failures.push(format!("{}: host lane: {error}", device.name)),
            }
            found.remove(0);
        };
        if !failures.is_empty() && matches!(self.options.devices, Devices::Include(_)) {
            return Err(OfiError::NamedDevice { failures });
        }
        for failure in &failures {
            warn!("rail left out: {failure}");
        }
        let control = control_port(&found);
        let (devices, proxy): (Vec<&Device>, Vec<Arc<Rail>>) =
            found.into_iter().map(|found| (found.device, found.rail)).unzip();
        let (first, first_rail) = (devices[0], &proxy[0]);
        let verdict = Verdict::reach(&mut fabrics, first, &self.options, self.library.version());

        let info = &first.info;
        let addressing = first_rail.domain().addressing();
        // What all rails keep.
        let mut remote =
            devices.iter().map(|device| ImmediateData::of(device.profile, &device.info));
        let immediate_data = remote
            .find(|remote| !remote.offered)
            .unwrap_or_else(|| ImmediateData::of(self.profile, info));
        let report = Report {
            provider: info.provider(),
            provider_version: info.provider_version(),
            library_version: self.library.version(),
            library: self.library.path().to_owned(),
            asked: self.asked.to_string(),
            progress: info.progress_text(),
            threading: info.threading_text(),
            mr_mode: info.mr_mode_text(),
            addressing,
            verdict,
            immediate_data,
            striping: *self.profile.striping,
            rails: proxy
                .iter()
                .zip(&devices)
                .enumerate()
                .map(|(at, (rail, device))| RailReport {
                    name: rail.name().to_owned(),
                    domain: device.domain.clone(),
                    fabric: if *self.profile.separate_rails {
                        format!("{} {at}", device.fabric)
                    } else {
                        device.fabric.clone()
                    },
                    pci_path: device.pci_path.clone(),
                    depth: rail.limits().depth,
                    max_segment: rail.limits().max_segment,
                })
                .collect(),
            failures,
        };
        let host_failed =
            |error| OfiError::Call { object: format!("host lane on {}", first.name), error };
        let proxy_failed = |error| OfiError::Call { object: String::from("proxy lane"), error };
        Ok(Opened {
            host: OfiPort::new(&host, host_contexts).map_err(host_failed)?,
            proxy: OfiPort::new(&proxy, contexts)
                .map_err(proxy_failed)?
                .with_batches(self.batches())
                .with_control(control),
            memory: OfiMemory::new(&host, &proxy, addressing, self.direct()),
            report,
        })
    }
}

impl Discovery {
    /// Whether a rail that fails is to be done without, if there are several.
    fn looks_after_rails(&self) -> bool {
        let asked = match self.options.rail_loss {
            RailLoss::EndsJob => return false,
            RailLoss::SurvivedWhereShown => false,
            RailLoss::SurvivedWherePossible => true,
        };
        let name = self.profile.name;
        match *self.profile.reopening {
            Reopening::Shown => true,
            Reopening::Untried => {
                if !asked {
                    info!(
                        "a rail that fails ends the job: with {name} it has not been tried to do without \
                         one (NVSHMEM_LIBFABRIC_RAIL_TIMEOUT in the environment has it tried)"
                    );
                }
                asked
            }
            Reopening::Never => {
                let reason = self.profile.reopening.why;
                info!(
                    "a rail that fails ends the job: with {name} there is no doing without, as {reason}"
                );
                false
            }
        }
    }

    /// Opens the endpoints for control messages, one on each device. Devices that refuse it are
    /// left out, unless all do: then there are none.
    fn open_controls(
        &self,
        fabrics: &mut Fabrics,
        found: &mut Vec<Found<'_>>,
        peers: usize,
        failures: &mut Vec<String>,
    ) {
        // No segment is ever posted there.
        let contexts = Arc::new(Contexts::new(1));
        let mut refusals = Vec::new();
        for Found { device, control, .. } in found.iter_mut() {
            let (options, receives) = (&self.options, Receives::Control);
            match Rail::open(fabrics, device, options, &contexts, peers, receives) {
                Ok(rail) => *control = Some((Arc::new(rail), Arc::clone(&contexts))),
                Err(error) => {
                    refusals.push(format!("{}: control messages: {error}", device.name));
                }
            }
        }
        if refusals.len() == found.len() {
            no_control(&refusals[0]);
            return;
        }
        found.retain(|found| found.control.is_some());
        failures.extend(refusals);
    }

    /// Whether the provider is told when more writes follow.
    pub fn batches(&self) -> bool {
        match self.options.batch_rma {
            BatchChoice::Auto => self.is_since(*self.profile.batches),
            BatchChoice::Always => true,
            BatchChoice::Never => false,
        }
    }

    /// Whether the library has what it has from this version on.
    fn is_since(&self, version: Option<Version>) -> bool {
        version.is_some_and(|since| self.library.version() >= since)
    }

    /// What decides whether NICs reach device memory by themselves.
    fn direct(&self) -> DirectPolicy {
        DirectPolicy {
            choice: self.options.gpu_direct,
            level: self.options.gdr_level,
            topology: Topology::system(),
            dma_bufs: self.is_since(*self.profile.dma_bufs),
            copies_little: *self.profile.copies_little,
        }
    }

    /// Most segments that a lane over these devices has under way, should all of them open.
    fn segments(&self, rails: &[usize]) -> u32 {
        let devices = rails.iter().filter_map(|&index| self.devices().get(index));
        let limits: Vec<RailLimits> =
            devices.map(|device| Rail::limits_of(device, &self.options)).collect();
        segments_for(LaneKind::Proxy, &limits)
    }
}

/// A device with what is open on it.
struct Found<'a> {
    device: &'a Device,
    rail: Arc<Rail>,
    /// The endpoint for control messages, with the contexts that all of these share.
    control: Option<(Arc<Rail>, Arc<Contexts>)>,
}

/// The endpoints for control messages together. None where a rail has none, or no other.
fn control_port(found: &[Found<'_>]) -> Option<OfiPort> {
    let controls: Option<Vec<_>> = found.iter().map(|found| found.control.as_ref()).collect();
    let controls = controls.filter(|controls| controls.len() > 1)?;
    let contexts = Arc::clone(&controls[0].1);
    let rails: Vec<Arc<Rail>> = controls.into_iter().map(|(rail, _)| Arc::clone(rail)).collect();
    OfiPort::new(&rails, contexts).inspect_err(|error| no_control(&error.to_string())).ok()
}

fn no_control(reason: &str) {
    warn!("no endpoint for control messages, so a rail that fails ends the job: {reason}");
}

/// Whether peers address both rails in the same way.
fn alike(one: &Rail, other: &Rail) -> bool {
    one.domain().addressing() == other.domain().addressing()
}
