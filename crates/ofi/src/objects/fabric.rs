//! Open fabrics, each shared by the NICs of one network.

use std::ptr;
use std::sync::Arc;

use libfabric_sys::fid_fabric;

use crate::objects::info::Info;
use crate::objects::object::{Gate, Object};
use engine::port::PortError;

pub(crate) type Fabric = Object<fid_fabric>;

/// Open fabrics of one provider, by name.
#[derive(Debug, Default)]
pub(crate) struct Fabrics(Vec<(String, Arc<Fabric>)>);

impl Fabrics {
    pub(crate) fn of(&mut self, info: &Info) -> Result<Arc<Fabric>, PortError> {
        let name = info.fabric_name();
        if let Some((_, fabric)) = self.0.iter().find(|(known, _)| *known == name) {
            return Ok(Arc::clone(fabric));
        }
        // SAFETY: the attributes belong to a live info; domains and queues hold their fabric.
        let fabric = Arc::new(unsafe {
            Object::open(("fabric", "fi_fabric"), info.library, &Gate(None), |fabric| {
                (info.library.fabric)(info.raw().fabric_attr, fabric, ptr::null_mut())
            })
        }?);
        self.0.push((name, Arc::clone(&fabric)));
        Ok(fabric)
    }
}
