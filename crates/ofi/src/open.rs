//! Opens both lanes of a process on the devices found.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::{env, thread};

use libfabric_sys::{FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY};
use log::{info, warn};

use crate::bulk_plan::connections;
use crate::data_path::bulk::BulkConfig;
use crate::data_path::port::OfiPort;
use crate::data_path::rail::{Rail, Receives};
use crate::discovery::device::Device;
use crate::discovery::immediate_data::ImmediateData;
use crate::discovery::search::Discovery;
use crate::endpoint_files::{common, kernel_copies, reserve};
use crate::error::{OfiError, refused};
use crate::memory::direct_policy::DirectPolicy;
use crate::memory::registration::OfiMemory;
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use crate::objects::fabric::Fabrics;
use crate::options::{Devices, GpuDirect};
use crate::provider::{Fact, LogPattern, SoftwareWrites};
use crate::report::{RailReport, Report};
use crate::topology::Topology;
use engine::lane::segments_for;
use engine::port::{DataPath, PortError, RailLimits};

/// Maximum number of rails of a lane, as of [`Port::limits`](engine::port::Port::limits).
const MAX_RAILS: usize = 32;

/// An open fabric: the ports of both lanes, and memory registration.
#[derive(Debug)]
pub struct Opened {
    /// The host lane: one rail, on the device of the first proxy rail, in a domain of its own.
    pub host: OfiPort,
    pub proxy: OfiPort,
    /// Registration with all rails of both lanes.
    pub memory: OfiMemory,
    pub report: Report,
}

impl Discovery {
    /// Opens the devices with these indices into [`Self::devices`], in this order, as the rails of
    /// the proxy lane, and the host lane on the first of them. Each rail will get the addresses of
    /// about `peers` rails, `here` of them on this host.
    ///
    /// Devices that cannot be opened are logged and left out, unless the user has named them; so
    /// are devices beyond the maximum number of rails.
    ///
    /// # Errors
    /// No device could be opened, or not all that the user has named. Nothing stays open then.
    ///
    /// # Safety
    /// The ports access memory at the given addresses, and let the fabric do so: whoever registers
    /// memory, or submits operations to a lane, keeps it valid until they have ended. The engine
    /// checks peers' accesses against the registered regions.
    pub unsafe fn open(
        &self,
        rails: &[usize],
        peers: usize,
        here: usize,
    ) -> Result<Opened, OfiError> {
        let mut fabrics = Fabrics::default();
        let mut failures = Vec::new();
        let each = self.profile.endpoint_files.as_ref().map(|files| {
            let by_kernel = !self.reaches_devices() && kernel_copies();
            files.opened_with(self.library.version(), here, by_kernel)
        });
        // One for each rail, and the host lane's.
        let space = each.map(|bytes| reserve(bytes * (rails.len() as u64 + 1)));
        let _space = space.transpose().map_err(|why| OfiError::NoRail { failures: vec![why] })?;
        let contexts = Arc::new(Contexts::new(self.segments(rails)));
        let mut found =
            self.open_rails(&mut fabrics, rails, &contexts, (MAX_RAILS, peers), &mut failures);
        let host = self.open_host(&mut fabrics, &mut found, peers, &mut failures);
        let Some((host, host_contexts)) = host else {
            return Err(OfiError::NoRail { failures });
        };
        if !failures.is_empty() && matches!(self.options.devices, Devices::Include(_)) {
            return Err(OfiError::NamedDevice { failures });
        }
        for failure in &failures {
            warn!("rail left out: {failure}");
        }
        let (devices, proxy): (Vec<&Device>, Vec<Arc<Rail>>) = found.into_iter().unzip();
        let first = devices[0];
        let failed = |object: String| move |error| OfiError::Call { object, error };
        let mut proxy_port =
            OfiPort::new(&proxy, contexts).map_err(failed(String::from("proxy lane")))?;
        let mut host_port = OfiPort::new(&host, host_contexts)
            .map_err(failed(format!("host lane on {}", first.name)))?;
        let mut bulk = vec![Vec::new(); proxy.len()];
        if *self.profile.bulk_connections {
            // Peers may have bulk connections even if this process has none.
            host_port = host_port.with_joined_addresses();
            proxy_port = proxy_port.with_joined_addresses();
            bulk = self.open_bulk(&mut fabrics, &mut proxy_port, &devices, peers, here);
        }
        self.tell_software_writes(&proxy);
        let report = self.report(&devices, &proxy, &bulk);
        let direct = self.direct(proxy.iter().chain(&host));
        let memory = OfiMemory::new(&host, &proxy, bulk, report.addressing, direct);
        Ok(Opened { host: host_port, proxy: proxy_port, memory, report })
    }

    fn open_rails<'a>(
        &'a self,
        fabrics: &mut Fabrics,
        rails: &[usize],
        contexts: &Arc<Contexts>,
        (most, peers): (usize, usize),
        failures: &mut Vec<String>,
    ) -> Vec<(&'a Device, Arc<Rail>)> {
        let mut found: Vec<(&'a Device, Arc<Rail>)> = Vec::new();
        for &index in rails {
            let Some(device) = self.devices().get(index) else {
                failures.push(format!("device {index} of {} does not exist", self.devices().len()));
                continue;
            };
            if found.len() == most {
                failures.push(format!("{}: more than {most} rails", device.name));
                continue;
            }
            let options = &self.options;
            match Rail::open(fabrics, device, options, contexts, peers, Receives::Messages) {
                Ok(rail) => {
                    // The engine has one addressing for all rails; every provider has one.
                    let addressing = rail.domain.addressing();
                    match found.first() {
                        Some((_, first)) if first.domain.addressing() != addressing => failures
                            .push(format!("{}: peers would address it in another way", rail.name)),
                        _ => found.push((device, Arc::new(rail))),
                    }
                }
                Err(error) => failures.push(format!("{}: {error}", device.name)),
            }
        }
        found
    }

    fn open_host(
        &self,
        fabrics: &mut Fabrics,
        found: &mut Vec<(&Device, Arc<Rail>)>,
        peers: usize,
        failures: &mut Vec<String>,
    ) -> Option<([Arc<Rail>; 1], Arc<Contexts>)> {
        loop {
            let (device, rail) = found.first()?;
            let contexts = Arc::new(Contexts::new(segments_for(&[rail.limits])));
            let (options, receives) = (&self.options, Receives::Nothing);
            match Rail::open(fabrics, device, options, &contexts, peers, receives) {
                Ok(host) => return Some(([Arc::new(host)], contexts)),
                Err(error) => failures.push(format!("{}: host lane: {error}", device.name)),
            }
            found.remove(0);
        }
    }

    fn report(
        &self,
        devices: &[&Device],
        proxy: &[Arc<Rail>],
        bulk: &[Vec<Arc<Domain>>],
    ) -> Report {
        let (info, version) = (&devices[0].info, self.library.version());
        // Offered only if all rails offer it.
        let of = |device: &&Device| ImmediateData::of(self.profile, &device.info);
        let refused = devices.iter().map(of).find(|immediate| !immediate.offered);
        let rails = proxy.iter().zip(devices).zip(bulk).enumerate();
        let rail = |(at, ((rail, device), bulk)): (_, ((&Arc<Rail>, &&Device), &Vec<_>))| {
            let fabric = device.fabric.clone();
            RailReport {
                name: rail.name.clone(),
                domain: device.domain.clone(),
                fabric: if *self.profile.separate_rails {
                    format!("{fabric} {at}")
                } else {
                    fabric
                },
                pci_path: device.pci_path.clone(),
                bulk: bulk.len(),
                depth: rail.limits.depth,
            }
        };
        Report {
            fabric: format!(
                "libfabric {version} ({}), provider {}; asked for {}, got threading {}; mr_mode {}",
                self.library.path(),
                info.provider(),
                self.found.model,
                info.threading_text(),
                info.mr_mode_text()
            ),
            provider: info.provider(),
            common: match *self.profile.endpoint_files {
                None => info.provider(),
                Some(_) => common(self.profile.name, version),
            },
            addressing: proxy[0].domain.addressing(),
            immediate_data: refused.unwrap_or_else(|| of(&devices[0])),
            striping: *self.profile.striping,
            over_sockets: *self.profile.interfaces,
            rails: rails.map(rail).collect(),
        }
    }

    fn tell_software_writes(&self, rails: &[Arc<Rail>]) {
        let Fact { value: Some(SoftwareWrites { option, variable }), why, .. } =
            self.profile.software_writes
        else {
            return;
        };
        let is_one = |rail: &&Arc<Rail>| rail.endpoint.option(option) == Some(true);
        let names: Vec<&str> = rails.iter().filter(is_one).map(|rail| &rail.name[..]).collect();
        if names.is_empty() {
            return;
        }
        let told = format!(
            "puts over {} take the target's processor and its proxy thread, as these NICs do not write",
            names.join(", ")
        );
        match env::var(variable) {
            Ok(value) => warn!("{told}: {variable}={value} is set; without it, NICs that can do"),
            Err(_) => info!("{told}: {why}"),
        }
    }

    /// Returns the number of bulk connections that each of these devices would have as a rail, by
    /// their indices, with `here` PEs on this host.
    pub fn bulk_connections(&self, rails: &[usize], here: usize) -> Vec<usize> {
        let devices = rails.iter().filter_map(|&index| self.devices().get(index));
        self.connections(&devices.collect::<Vec<_>>(), here)
    }

    fn connections(&self, devices: &[&Device], here: usize) -> Vec<usize> {
        if !*self.profile.bulk_connections {
            return vec![0; devices.len()];
        }
        let speeds: Vec<Option<u32>> = devices.iter().map(|device| device.link().speed).collect();
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        connections(self.options.bulk, &speeds, cores, here)
    }

    fn open_bulk(
        &self,
        fabrics: &mut Fabrics,
        port: &mut OfiPort,
        devices: &[&Device],
        peers: usize,
        here: usize,
    ) -> Vec<Vec<Arc<Domain>>> {
        let mut threads = 0;
        let mut opened = Vec::with_capacity(devices.len());
        for (at, count) in self.connections(devices, here).into_iter().enumerate() {
            let (device, numbers) = (devices[at], threads..threads + count);
            let domains = open_bulk_of(fabrics, port, at, device, numbers, peers);
            let domains = domains.unwrap_or_else(|error| {
                warn!(
                    "the proxy thread moves all that goes over {}, as it gets no connections for bulk: {error}",
                    device.name
                );
                Vec::new()
            });
            threads += domains.len();
            opened.push(domains);
        }
        if threads > 0 {
            info!(
                "{threads} thread(s) move bytes in bulk (NVSHMEM_LIBFABRIC_DEBUG=bulk_connections=0 has \
                 the proxy thread do it)"
            );
        }
        opened
    }

    fn direct<'a>(&self, rails: impl Iterator<Item = &'a Arc<Rail>>) -> DirectPolicy {
        let said = |rail: &'a Arc<Rail>| Some((&*rail.name, rail.domain.maps_wrongly.as_deref()?));
        let switched_off = self.switched_off(|name| env::var(name).ok());
        let switched_off = switched_off.or_else(|| self.mapped_wrongly(rails.filter_map(said)));
        if let Some(reason) = &switched_off {
            warn!("memory of devices is staged: {reason}");
        }
        DirectPolicy {
            choice: self.options.gpu_direct,
            level: self.options.gdr_level,
            topology: Topology::system(),
            dma_bufs: self.profile.dma_bufs.is_some_and(|since| self.library.version() >= since),
            one_allocation: *self.profile.one_allocation,
            switched_off,
            hmem_refused: self.hmem_refused(),
            takes: if self.profile.nic.is_some() { *self.profile.device_memory_takes } else { "" },
        }
    }

    fn switched_off(&self, value: impl Fn(&str) -> Option<String>) -> Option<String> {
        if !self.reaches_devices() || self.options.gpu_direct == GpuDirect::Never {
            return None;
        }
        let off = |name: &&str| {
            let value = value(name).unwrap_or_default().to_lowercase();
            ["0", "false", "no", "off"].contains(&value.as_str()).then(|| {
                let (provider, why) = (self.profile.name, self.profile.device_switches.why);
                format!(
                    "with {name}={value} {provider} reaches other bytes of it ({why}); unset it"
                )
            })
        };
        self.profile.device_switches.iter().find_map(off)
    }

    fn mapped_wrongly<'a>(
        &self,
        mut said: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<String> {
        if self.options.gpu_direct == GpuDirect::Never {
            return None;
        }
        let Fact { value: Some(LogPattern { remedy, .. }), why, .. } = self.profile.maps_wrongly
        else {
            return None;
        };
        let ((rail, said), name) = (said.next()?, self.profile.name);
        Some(format!(
            "rail {rail} says `{said}`, and {name} reaches other bytes of it then ({why}); set {remedy}"
        ))
    }

    fn segments(&self, rails: &[usize]) -> u32 {
        let devices = rails.iter().filter_map(|&index| self.devices().get(index));
        let limits: Vec<RailLimits> =
            devices.map(|device| Rail::limits_of(device, &self.options)).collect();
        segments_for(&limits)
    }
}

fn open_bulk_of(
    fabrics: &mut Fabrics,
    port: &mut OfiPort,
    rail: usize,
    device: &Device,
    numbers: Range<usize>,
    peers: usize,
) -> Result<Vec<Arc<Domain>>, PortError> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let out_of_memory = || refused("fi_dupinfo", String::from("no memory"));
    let info = Arc::new(device.info.for_any_thread().ok_or_else(out_of_memory)?);
    if info.mr_mode() & (FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_ENDPOINT) != 0 {
        let text = format!("memory would have another key there (mr_mode {})", info.mr_mode_text());
        return Err(refused("opening connections for bulk", text));
    }
    let fabric = fabrics.of(&info)?;
    let open = |at| {
        let domain = Domain::open(Arc::clone(&fabric), &info, device.profile)?;
        Ok((Arc::new(domain), format!("nvshmem-bulk-{at}")))
    };
    let threads = numbers.map(open).collect::<Result<Vec<_>, PortError>>()?;
    let (depth, link) = (port.limits()[rail].depth, device.link());
    port.open_bulk(
        rail,
        &BulkConfig { threads: &threads, depth, peers, near: link.device.as_deref() },
    )?;
    Ok(threads.into_iter().map(|(domain, _)| domain).collect())
}

#[cfg(test)]
mod tests;
