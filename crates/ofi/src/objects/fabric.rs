//! An open fabric: what the NICs of one network share.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{Library, fi_close, fid, fid_fabric};
use log::warn;

use crate::error::check;
use crate::objects::info::Info;
use engine::port::PortError;

/// Owner of a `fid_fabric`.
#[derive(Debug)]
pub(crate) struct Fabric {
    raw: NonNull<fid_fabric>,
    name: String,
    library: &'static Library,
}

// SAFETY: a fabric is used only to open domains, which libfabric allows from any thread.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Fabric {
    fn open(info: &Info) -> Result<Self, PortError> {
        let library = info.library();
        let mut raw = ptr::null_mut();
        // SAFETY: the attributes belong to a live info; the fabric is written on success.
        let code = unsafe { library.fabric(info.fabric_attr(), &mut raw, ptr::null_mut()) };
        check(library, "fi_fabric", code)?;
        Ok(Self { raw: opened(raw, "fi_fabric")?, name: info.fabric_name(), library })
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) fn as_ptr(&self) -> *mut fid_fabric {
        self.raw.as_ptr()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: open, and its domains are closed: each holds this fabric in an Arc.
        unsafe { close(self.library, "fabric", self.raw.as_ptr().cast()) };
    }
}

/// The fabrics of one provider that are open, by name.
#[derive(Debug, Default)]
pub(crate) struct Fabrics(Vec<Arc<Fabric>>);

impl Fabrics {
    pub(crate) fn of(&mut self, info: &Info) -> Result<Arc<Fabric>, PortError> {
        let name = info.fabric_name();
        if let Some(fabric) = self.0.iter().find(|fabric| fabric.name == name) {
            return Ok(Arc::clone(fabric));
        }
        let fabric = Arc::new(Fabric::open(info)?);
        self.0.push(Arc::clone(&fabric));
        Ok(fabric)
    }
}

/// What a call that succeeded has opened. A provider that opens nothing breaks its contract, and
/// gets an error for it instead of a null pointer in every later call.
pub(crate) fn opened<T>(raw: *mut T, call: &'static str) -> Result<NonNull<T>, PortError> {
    NonNull::new(raw)
        .ok_or_else(|| crate::error::refused(call, String::from("success without an object")))
}

/// Closes an object, and tells the log of a failure: it stays open then, with what it is made from.
///
/// # Safety
/// `object` is open, is not used afterwards unless that has failed, and everything made from it is
/// closed.
pub(crate) unsafe fn close(library: &Library, what: &str, object: *mut fid) -> bool {
    // SAFETY: the caller's promise.
    unsafe { try_close(library, object) }
        .inspect_err(|error| warn!("a libfabric {what} stays open: {error}"))
        .is_ok()
}

/// As [`close`], without a word to the log.
///
/// # Safety
/// As there.
pub(crate) unsafe fn try_close(library: &Library, object: *mut fid) -> Result<(), PortError> {
    // SAFETY: the caller's promise.
    check(library, "fi_close", unsafe { fi_close(object) })
}
