use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data_path::rail::Rail;
use crate::error::on_rail;
use crate::memory::direct_policy::{DirectPolicy, RailTraits};
use crate::objects::domain::Domain;
use crate::objects::memory_region::{Method, Region, Rights};
use engine::port::copies::Reach;
use engine::port::{Access, Addressing, MemoryPort, PortError, Registered};

/// Registers memory on every rail of both lanes. Any thread may use it, at any time.
#[derive(Debug)]
pub struct OfiMemory {
    pub(crate) host: Vec<Registrar>,
    pub(crate) proxy: Vec<Registrar>,
    addressing: Addressing,
    pub(crate) direct: DirectPolicy,
    pub(crate) has_direct: AtomicBool,
}

/// A registration, until dropped.
///
/// The memory must stay valid as long as this value lives, and as long as an operation from or to
/// it can be in flight: until its work-request id has come back, or its port is dropped.
#[derive(Debug)]
pub struct OfiRegion {
    // Declared first: closed before the rails to which they are bound.
    regions: Vec<Region>,
    _bound_to: Vec<Arc<Rail>>,
}

#[derive(Debug)]
pub(crate) struct Registrar {
    domain: Arc<Domain>,
    /// Domains of its bulk connections, on which memory is registered with the same key.
    bulk: Vec<Arc<Domain>>,
    /// The rail to whose endpoint regions are bound, for providers that require it
    /// (`FI_MR_ENDPOINT`). Only then do regions keep an endpoint open; else it closes with its port
    /// and ends the operations in flight, whatever regions are left.
    bound_to: Option<Arc<Rail>>,
    pub(crate) name: String,
    pub(crate) traits: RailTraits,
}

impl Registrar {
    pub(crate) fn new(rail: &Arc<Rail>) -> Self {
        Self {
            domain: Arc::clone(&rail.domain),
            bulk: Vec::new(),
            bound_to: rail.domain.binds_regions().then(|| Arc::clone(rail)),
            name: rail.name.clone(),
            traits: RailTraits {
                reaches_devices: rail.domain.info.reaches_devices(),
                pci: rail.pci,
                needs_cuda: rail.endpoint.needs_cuda.clone(),
            },
        }
    }

    pub(crate) fn register_as(
        &self,
        addr: usize,
        len: usize,
        rights: Rights,
        method: Method,
    ) -> Result<Region, PortError> {
        let endpoint = self.bound_to.as_deref().map(|rail| &rail.endpoint);
        Region::register(&self.domain, endpoint, addr, len, rights, method, None)
    }

    /// Registers host memory, also on the domains of bulk connections, whose regions it adds to
    /// `bulk`.
    pub(crate) fn register(
        &self,
        addr: usize,
        len: usize,
        rights: Rights,
        bulk: &mut Vec<Region>,
    ) -> Result<Region, PortError> {
        let named = |error| on_rail(&self.name, error);
        let region = self.register_as(addr, len, rights, Method::Host).map_err(named)?;
        for domain in &self.bulk {
            let (method, key) = (Method::Host, Some(region.key));
            let region = Region::register(domain, None, addr, len, rights, method, key);
            bulk.push(region.map_err(named)?);
        }
        Ok(region)
    }
}

impl OfiMemory {
    /// Creates a registrar for these rails, and the domains of each proxy rail's bulk connections.
    pub(crate) fn new(
        host: &[Arc<Rail>],
        proxy: &[Arc<Rail>],
        bulk: Vec<Vec<Arc<Domain>>>,
        addressing: Addressing,
        direct: DirectPolicy,
    ) -> Self {
        let with_bulk = |(rail, bulk)| Registrar { bulk, ..Registrar::new(rail) };
        Self {
            host: host.iter().map(Registrar::new).collect(),
            proxy: proxy.iter().zip(bulk).map(with_bulk).collect(),
            addressing,
            direct,
            has_direct: AtomicBool::new(false),
        }
    }

    /// Returns true once any device memory was registered for direct access by NICs.
    pub fn reaches_devices(&self) -> bool {
        self.has_direct.load(Ordering::Acquire)
    }

    pub(crate) fn registered(
        &self,
        mut regions: Vec<Region>,
        bulk: Vec<Region>,
    ) -> Registered<OfiRegion> {
        let (proxy, host) = regions.split_at(self.proxy.len());
        let keys = proxy.iter().map(|region| region.key).collect();
        let descs = |regions: &[Region]| regions.iter().map(|region| region.desc).collect();
        let (proxy_descs, host_descs) = (descs(proxy), descs(host));
        regions.extend(bulk);
        let registrars = self.proxy.iter().chain(&self.host);
        let bound_to = registrars.filter_map(|registrar| registrar.bound_to.clone()).collect();
        Registered {
            owner: OfiRegion { regions, _bound_to: bound_to },
            keys,
            proxy_descs,
            host_descs,
            addressing: self.addressing,
            reach: Reach::Direct,
        }
    }
}

impl MemoryPort for OfiMemory {
    type Region = OfiRegion;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<OfiRegion>, PortError> {
        let mut bulk = Vec::new();
        // Peers address only the proxy rails.
        let proxy = self.proxy.iter().map(|registrar| (registrar, Rights::of(access)));
        let host = self.host.iter().map(|registrar| (registrar, Rights::None));
        // An early return closes earlier registrations.
        let regions = proxy
            .chain(host)
            .map(|(registrar, rights)| registrar.register(addr, len, rights, &mut bulk))
            .collect::<Result<_, _>>()?;
        Ok(self.registered(regions, bulk))
    }

    fn close(&self, region: &mut OfiRegion) -> Result<(), PortError> {
        region.regions.iter_mut().try_for_each(Region::close)
    }
}
