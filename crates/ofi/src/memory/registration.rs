//! Registration of memory with all rails of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::data_path::rail::Rail;
use crate::memory::direct_policy::{DirectPolicy, RailTraits};
use crate::objects::cuda_calls::CudaCalls;
use crate::objects::domain::Domain;
use crate::objects::memory_region::{Region, Rights, Way};
use crate::topology::PciAddress;
use engine::port::copies::Reach;
use engine::port::{Access, Addressing, Desc, MemoryPort, PortError, Registered};

/// Registers memory on every rail of both lanes. Any thread may use it, at any time.
#[derive(Debug)]
pub struct OfiMemory {
    host: Vec<Registrar>,
    proxy: Vec<Registrar>,
    addressing: Addressing,
    pub(crate) direct: DirectPolicy,
    pub(crate) has_direct: AtomicBool,
}

/// Keeps a registration alive.
///
/// The memory must stay valid as long as this value lives, and as long as an operation from or to
/// it can be in flight: until its work-request id has come back, or its port is dropped.
#[derive(Debug)]
pub struct OfiRegion {
    // Closed before the rails they are bound to, being the first field.
    regions: Vec<Region>,
    _bound_to: Vec<Arc<Rail>>,
}

/// Where memory is registered for one rail.
#[derive(Debug)]
pub(crate) struct Registrar {
    domain: Arc<Domain>,
    /// Those of its connections for bulk, where memory is registered with the same key.
    bulk: Vec<Arc<Domain>>,
    /// The rail whose endpoint the regions belong to, for providers that want that
    /// (`FI_MR_ENDPOINT`). Only there do regions keep an endpoint open. Elsewhere it closes with
    /// its port, and ends the operations in flight, whatever regions are left.
    bound_to: Option<Arc<Rail>>,
    name: String,
    /// The NIC, where it is known.
    pci: Option<PciAddress>,
    cuda_calls: CudaCalls,
}

impl Registrar {
    pub(crate) fn new(rail: &Arc<Rail>) -> Self {
        let domain = Arc::clone(rail.domain());
        let bound_to = domain.binds_regions().then(|| Arc::clone(rail));
        Self {
            domain,
            bulk: Vec::new(),
            bound_to,
            name: rail.name().to_owned(),
            pci: rail.pci(),
            cuda_calls: rail.endpoint().cuda_calls().clone(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn traits(&self) -> RailTraits<'_> {
        RailTraits {
            reaches_devices: self.domain.info().reaches_devices(),
            pci: self.pci,
            cuda_calls: &self.cuda_calls,
        }
    }

    pub(crate) fn register_as(
        &self,
        addr: usize,
        len: usize,
        rights: Rights,
        way: Way,
    ) -> Result<Region, PortError> {
        let endpoint = self.bound_to.as_deref().map(Rail::endpoint);
        Region::register(&self.domain, endpoint, addr, len, rights, way, None)
    }

    fn register_bulk(
        &self,
        addr: usize,
        len: usize,
        rights: Rights,
        key: u64,
        regions: &mut Vec<Region>,
    ) -> Result<(), PortError> {
        for domain in &self.bulk {
            let region = Region::register(domain, None, addr, len, rights, Way::Host, Some(key));
            regions.push(region.map_err(|error| self.named(error))?);
        }
        Ok(())
    }

    fn named(&self, mut error: PortError) -> PortError {
        error.text = format!("rail {}: {}", self.name, error.text);
        error
    }

    pub(crate) fn register(
        &self,
        addr: usize,
        len: usize,
        rights: Rights,
    ) -> Result<Region, PortError> {
        self.register_as(addr, len, rights, Way::Host).map_err(|error| self.named(error))
    }
}

impl OfiMemory {
    pub(crate) fn new(
        host: &[Arc<Rail>],
        proxy: &[Arc<Rail>],
        addressing: Addressing,
        direct: DirectPolicy,
    ) -> Self {
        Self {
            host: host.iter().map(Registrar::new).collect(),
            proxy: proxy.iter().map(Registrar::new).collect(),
            addressing,
            direct,
            has_direct: AtomicBool::new(false),
        }
    }

    pub(crate) fn with_bulk(mut self, bulk: Vec<Vec<Arc<Domain>>>) -> Self {
        for (registrar, domains) in self.proxy.iter_mut().zip(bulk) {
            registrar.bulk = domains;
        }
        self
    }

    pub(crate) fn registrars(&self) -> (&[Registrar], &[Registrar]) {
        (&self.proxy, &self.host)
    }

    pub(crate) fn registered(
        &self,
        mut regions: Vec<Region>,
        bulk: Vec<Region>,
    ) -> Registered<OfiRegion> {
        let (proxy, host) = regions.split_at(self.proxy.len());
        let keys = proxy.iter().map(Region::key).collect();
        let descs = |regions: &[Region]| regions.iter().map(Region::desc).collect::<Vec<Desc>>();
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
        let (mut regions, mut bulk) = (Vec::new(), Vec::new());
        // An early return closes what is registered already.
        for registrar in &self.proxy {
            let rights = Rights::of(access);
            let region = registrar.register(addr, len, rights)?;
            registrar.register_bulk(addr, len, rights, region.key(), &mut bulk)?;
            regions.push(region);
        }
        // Peers address the proxy rails only.
        for registrar in &self.host {
            regions.push(registrar.register(addr, len, Rights::None)?);
        }
        Ok(self.registered(regions, bulk))
    }

    fn close(&self, region: &mut OfiRegion) -> Result<(), PortError> {
        region.regions.iter_mut().try_for_each(Region::close)
    }

    fn reaches_devices(&self) -> bool {
        self.has_direct.load(Ordering::Acquire)
    }
}
