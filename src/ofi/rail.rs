//! A rail: one domain with its endpoint, and the limits of what goes through it.

use std::sync::Arc;

use libfabric_sys::FI_EINVAL;

use super::context::Contexts;
use super::device::Device;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::fabric::Fabrics;
use super::region::Region;
use crate::engine::port::{Access, Desc, PortError, RailLimits};
use crate::settings::Settings;

/// Most operations in flight on one rail. More than any wire needs, and it bounds the memory for
/// tokens.
const MAX_DEPTH: usize = 4096;

/// Room in the completion queue beside what the rail posts itself.
const QUEUE_MARGIN: usize = 256;

/// One rail. Fields are closed in the order in which they stand here.
#[derive(Debug)]
pub(super) struct Rail {
    /// The values of inline writes, where local memory must be registered.
    values: Option<Region>,
    endpoint: Endpoint,
    /// The provider may write to these until the endpoint is closed, which the order of the fields
    /// sees to. The user's buffers are not ours to keep.
    _contexts: Arc<Contexts>,
    domain: Arc<Domain>,
    name: String,
    limits: RailLimits,
}

impl Rail {
    /// Opens a device: domain, queue, vector, endpoint. The vector is made for `peers` addresses.
    pub(super) fn open(
        fabrics: &mut Fabrics,
        device: &Device,
        settings: &Settings,
        contexts: &Arc<Contexts>,
        peers: usize,
    ) -> Result<Self, PortError> {
        let info = &device.info;
        let limits = Self::limits_of(device, settings);
        if limits.depth == 0 || limits.max_segment == 0 {
            return Err(PortError {
                call: "opening the rail",
                code: FI_EINVAL,
                text: String::from("it has no room for a single operation"),
            });
        }
        let fabric = fabrics.of(info)?;
        let domain = Arc::new(Domain::open(fabric, Arc::clone(info))?);
        let endpoint = Endpoint::open(&domain, limits.depth as usize + QUEUE_MARGIN, peers)?;
        let (addr, len) = contexts.values();
        let values = if domain.needs_desc() && len > 0 {
            let bound_to = domain.binds_regions().then_some(&endpoint);
            Some(Region::register(&domain, bound_to, addr, len, Access::Local)?)
        } else {
            None
        };
        Ok(Self {
            values,
            endpoint,
            _contexts: Arc::clone(contexts),
            domain,
            name: device.name.clone(),
            limits,
        })
    }

    /// The limits that a rail on the device has.
    pub(super) fn limits_of(device: &Device, settings: &Settings) -> RailLimits {
        let info = &device.info;
        RailLimits {
            max_segment: at_most(info.max_message(), settings.max_segment, isize::MAX as usize),
            depth: at_most(info.tx_size(), settings.queue_depth.into(), MAX_DEPTH) as u32,
            needs_desc: info.mr_mode() & libfabric_sys::FI_MR_LOCAL != 0,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn limits(&self) -> RailLimits {
        self.limits
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    #[inline]
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The descriptor of the values of inline writes.
    pub(super) fn values_desc(&self) -> Desc {
        self.values.as_ref().map_or(Desc(0), Region::desc)
    }
}

/// The least of what the provider offers, what the user allows (0: anything) and our own bound.
fn at_most(offered: usize, allowed: u64, bound: usize) -> usize {
    let allowed = match allowed {
        0 => usize::MAX,
        allowed => usize::try_from(allowed).unwrap_or(usize::MAX),
    };
    offered.min(allowed).min(bound)
}

#[cfg(test)]
mod tests {
    use super::at_most;

    #[test]
    fn the_least_limit_holds() {
        assert_eq!(at_most(256, 0, 4096), 256);
        assert_eq!(at_most(65536, 0, 4096), 4096);
        assert_eq!(at_most(256, 1, 4096), 1);
        assert_eq!(at_most(usize::MAX, u64::MAX, isize::MAX as usize), isize::MAX as usize);
    }
}
