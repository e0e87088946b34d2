//! Registration of memory with all rails of the process.

use std::sync::Arc;

use super::rail::Rail;
use super::region::Region;
use crate::engine::port::{Access, Addressing, Desc, MemoryPort, PortError, Registered};

/// Registers memory on every rail of both lanes. Any thread may use it, at any time.
#[derive(Debug)]
pub struct OfiMemory {
    host: Vec<Arc<Rail>>,
    proxy: Vec<Arc<Rail>>,
    addressing: Addressing,
}

/// Keeps a registration alive. It also keeps the rails open, since regions may belong to their
/// endpoints: rails close when ports, memory and the last region are gone.
#[derive(Debug)]
pub struct OfiRegion {
    // Closed before the rails, being the first field.
    _regions: Vec<Region>,
    _rails: Vec<Arc<Rail>>,
}

impl OfiMemory {
    pub(super) fn new(host: Vec<Arc<Rail>>, proxy: Vec<Arc<Rail>>, addressing: Addressing) -> Self {
        Self { host, proxy, addressing }
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
        let mut regions = Vec::with_capacity(self.proxy.len() + self.host.len());
        // An early return closes what is registered already.
        for rail in &self.proxy {
            regions.push(rail.register(addr, len, access)?);
        }
        // Peers address the proxy rails only.
        for rail in &self.host {
            regions.push(rail.register(addr, len, Access::Local)?);
        }
        let (proxy, host) = regions.split_at(self.proxy.len());
        let keys = match access {
            Access::Local => Vec::new(),
            Access::LocalAndRemote => proxy.iter().map(Region::key).collect(),
        };
        let descs = |regions: &[Region]| regions.iter().map(Region::desc).collect::<Vec<Desc>>();
        let (proxy_descs, host_descs) = (descs(proxy), descs(host));
        let rails = self.proxy.iter().chain(&self.host).cloned().collect();
        Ok(Registered {
            owner: OfiRegion { _regions: regions, _rails: rails },
            keys,
            proxy_descs,
            host_descs,
            addressing: self.addressing,
        })
    }
}
