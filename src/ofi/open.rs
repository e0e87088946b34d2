//! The opening of both lanes of a process on the devices found.

use std::sync::Arc;

use libfabric_sys::Version;
use log::{info, warn};

use crate::engine::ids::LaneKind;
use crate::engine::lane::segments_for;
use crate::engine::port::RailLimits;
use crate::ofi::atomic_support::AtomicSupport;
use crate::ofi::data_path::port::OfiPort;
use crate::ofi::data_path::rail::{Rail, Receives};
use crate::ofi::discovery::device::Device;
use crate::ofi::discovery::message_order::MessageOrder;
use crate::ofi::discovery::query::wants_atomics;
use crate::ofi::discovery::remote_data::RemoteData;
use crate::ofi::discovery::search::Discovery;
use crate::ofi::error::OfiError;
use crate::ofi::memory::direct_policy::DirectPolicy;
use crate::ofi::memory::registration::OfiMemory;
use crate::ofi::objects::contexts::Contexts;
use crate::ofi::objects::fabric::Fabrics;
use crate::ofi::progress_probe::Verdict;
use crate::ofi::provider::Reopening;
use crate::ofi::report::{RailReport, Report};
use crate::settings::{BatchChoice, Source};
use crate::topology::Topology;

/// Most rails of a lane, as [`Port::limits`](crate::engine::port::Port::limits) has it.
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
    /// What the proxy lane's rails have of atomics.
    pub atomics: AtomicSupport,
    /// What this is.
    pub report: Report,
}

impl Discovery {
    /// Opens the devices with these indices into [`Self::devices`], in this order, as the rails of
    /// the proxy lane, and the host lane on the first of them. Each rail will be given the addresses
    /// of about `peers` rails.
    ///
    /// A device that cannot be opened is reported and left out, as long as one can.
    ///
    /// # Errors
    /// When no device could be opened, or not the host lane. Nothing stays open then.
    ///
    /// # Safety
    /// From here on the ports touch memory at the addresses that they are told, and let the fabric do so: whoever
    /// registers memory, or has a lane carry out operations, vouches for it to be there until they are over. The engine
    /// checks what peers ask for against what is registered.
    pub unsafe fn open(&self, rails: &[usize], peers: usize) -> Result<Opened, OfiError> {
        let mut fabrics = Fabrics::default();
        let mut failures = Vec::new();
        let mut proxy: Vec<Arc<Rail>> = Vec::new();
        let mut devices = Vec::new();
        let contexts = Contexts::new(self.segments(rails));
        let atomics = wants_atomics(&self.settings, self.profile);
        let contexts = Arc::new(if atomics { contexts.with_cells() } else { contexts });
        for &index in rails {
            let Some(device) = self.devices().get(index) else {
                failures.push(format!("device {index} of {} does not exist", self.devices().len()));
                continue;
            };
            if proxy.len() == MAX_RAILS {
                failures.push(format!("{}: more than {MAX_RAILS} rails", device.name));
                continue;
            }
            let settings = &self.settings;
            match Rail::open(&mut fabrics, device, settings, &contexts, peers, Receives::Messages) {
                // The engine keeps one addressing for all rails. One provider has one anyway.
                Ok(rail) if proxy.first().is_some_and(|first| !alike(first, &rail)) => {
                    failures
                        .push(format!("{}: peers would address it in another way", rail.name()));
                }
                Ok(rail) => {
                    proxy.push(Arc::new(rail));
                    devices.push(device);
                }
                Err(error) => failures.push(format!("{}: {error}", device.name)),
            }
        }
        let (Some(&first), Some(first_rail)) = (devices.first(), proxy.first()) else {
            return Err(OfiError::NoRail { failures });
        };
        for failure in &failures {
            warn!("rail left out: {failure}");
        }

        let host_contexts =
            Arc::new(Contexts::new(segments_for(LaneKind::Host, &[first_rail.limits()])));
        let host_failed =
            |error| OfiError::Call { object: format!("host lane on {}", first.name), error };
        let receives = Receives::Nothing;
        let host = Rail::open(&mut fabrics, first, &self.settings, &host_contexts, peers, receives)
            .map_err(host_failed)?;
        let host = vec![Arc::new(host)];
        let verdict = Verdict::reach(&mut fabrics, first, &self.settings, self.library.version());

        let looked_after = proxy.len() > 1 && self.looks_after_rails();
        let control =
            if looked_after { self.open_control(&mut fabrics, &devices, peers) } else { None };

        let info = &first.info;
        let addressing = first_rail.domain().addressing();
        // What all rails keep.
        let mut orders =
            devices.iter().map(|device| MessageOrder::of(device.profile, &device.info));
        let message_order = orders
            .find(|order| !order.kept)
            .unwrap_or_else(|| MessageOrder::of(self.profile, info));
        let mut remote = devices.iter().map(|device| RemoteData::of(device.profile, &device.info));
        let remote_data = remote
            .find(|remote| !remote.offered)
            .unwrap_or_else(|| RemoteData::of(self.profile, info));
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
            message_order,
            remote_data,
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
        let proxy_failed = |error| OfiError::Call { object: String::from("proxy lane"), error };
        Ok(Opened {
            host: OfiPort::new(&host, host_contexts).map_err(host_failed)?,
            proxy: OfiPort::new(&proxy, contexts)
                .map_err(proxy_failed)?
                .with_batches(self.batches())
                .with_control(control),
            memory: OfiMemory::new(&host, &proxy, addressing, self.direct()),
            atomics: AtomicSupport::of(&proxy, &self.settings, self.profile),
            report,
        })
    }
}

impl Discovery {
    /// Whether a rail that fails is to be done without, if there are several.
    fn looks_after_rails(&self) -> bool {
        if self.settings.rail_timeout.is_none() {
            return false;
        }
        let asked = self.settings.sources.of("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT") != Source::Default;
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

    /// The endpoints for control messages, one on each device; none if one cannot be opened.
    fn open_control(
        &self,
        fabrics: &mut Fabrics,
        devices: &[&Device],
        peers: usize,
    ) -> Option<OfiPort> {
        // No segment is ever posted there.
        let contexts = Arc::new(Contexts::new(1));
        let open = |device: &&Device| {
            let receives = Receives::Messages;
            Rail::open(fabrics, device, &self.settings, &contexts, peers, receives).map(Arc::new)
        };
        let rails = devices.iter().map(open).collect::<Result<Vec<_>, _>>();
        let opened = rails.and_then(|rails| OfiPort::new(&rails, Arc::clone(&contexts)));
        opened
            .inspect_err(|error| {
                warn!(
                    "no endpoint for control messages, so a rail that fails ends the job: {error}"
                );
            })
            .ok()
    }

    /// Whether the provider is told when more writes follow.
    pub fn batches(&self) -> bool {
        match self.settings.batching() {
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
            choice: self.settings.gpu_direct,
            level: self.settings.gdr_level,
            topology: Topology::system(),
            dma_bufs: self.is_since(*self.profile.dma_bufs),
            copies_little: *self.profile.copies_little,
        }
    }

    /// Most segments that a lane over these devices has under way, should all of them open.
    fn segments(&self, rails: &[usize]) -> u32 {
        let devices = rails.iter().filter_map(|&index| self.devices().get(index));
        let limits: Vec<RailLimits> =
            devices.map(|device| Rail::limits_of(device, &self.settings)).collect();
        segments_for(LaneKind::Proxy, &limits)
    }
}

/// Whether peers address both rails in the same way.
fn alike(one: &Rail, other: &Rail) -> bool {
    one.domain().addressing() == other.domain().addressing()
}
