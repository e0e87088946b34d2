//! An open fabric: what the NICs of one network share.

use std::ptr;
use std::sync::Arc;

use libfabric_sys::fid_fabric;

use crate::objects::info::Info;
use crate::objects::object::{Gate, Object};
use engine::port::PortError;

/// Owner of a `fid_fabric`.
#[derive(Debug)]
pub(crate) struct Fabric {
    name: String,
    object: Object<fid_fabric>,
}

impl Fabric {
    pub(crate) fn as_ptr(&self) -> *mut fid_fabric {
        self.object.as_ptr()
    }
}

/// The fabrics of one provider that are open.
#[derive(Debug, Default)]
pub(crate) struct Fabrics(Vec<Arc<Fabric>>);

impl Fabrics {
    pub(crate) fn of(&mut self, info: &Info) -> Result<Arc<Fabric>, PortError> {
        let name = info.fabric_name();
        if let Some(fabric) = self.0.iter().find(|fabric| fabric.name == name) {
            return Ok(Arc::clone(fabric));
        }
        // SAFETY: the attributes belong to a live info; domains and queues hold their fabric.
        let object = unsafe {
            Object::open(("fabric", "fi_fabric"), info.library(), &Gate(None), |fabric| {
                info.library().fabric(info.fabric_attr(), fabric, ptr::null_mut())
            })
        }?;
        let fabric = Arc::new(Fabric { name, object });
        self.0.push(Arc::clone(&fabric));
        Ok(fabric)
    }
}
