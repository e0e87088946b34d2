//! An endpoint's event queue, for errors that belong to none of its operations.
//!
//! Providers with such errors end the process if there is no queue.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys::{
    FI_EAVAIL, FI_WAIT_NONE, Padded, fi_eq_attr, fi_eq_err_entry, fi_eq_open, fi_eq_read,
    fi_eq_readerr, fid_eq,
};

use crate::error::port_error;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::object::{Gate, Object};
use engine::port::PortError;

const ENTRIES: usize = 64;

/// Opens a queue. Any thread may use it: providers lock it themselves.
pub(super) fn open(domain: &Domain) -> Result<Object<fid_eq>, PortError> {
    let mut attr = Padded::<fi_eq_attr>::zeroed();
    attr.size = ENTRIES;
    attr.wait_obj = FI_WAIT_NONE;
    // SAFETY: the fabric is open; the attributes are padded for newer libraries. The endpoint that
    // owns the queue holds its domain, which holds the fabric.
    unsafe {
        Object::open(("event queue", "fi_eq_open"), domain.library(), &Gate(None), |queue| {
            fi_eq_open(domain.fabric.as_ptr(), attr.as_mut_ptr(), queue, ptr::null_mut())
        })
    }
}

impl Endpoint {
    /// Takes an error that belongs to no operation, if there is one. Drops other events, at most as
    /// many in a call as the queue can hold.
    pub(crate) fn endpoint_error(&self) -> Option<PortError> {
        let queue = self.events.as_ref()?.as_ptr();
        // The longest event that is no error ends with an address, which is not needed.
        let mut event = [0_u64; 16];
        for _ in 0..ENTRIES {
            let mut kind = 0;
            // SAFETY: open; the memory has the length given, and is aligned for every event.
            let code = unsafe {
                let into = event.as_mut_ptr().cast::<c_void>();
                fi_eq_read(queue, &mut kind, into, size_of_val(&event), 0)
            };
            if code == -(FI_EAVAIL as isize) {
                break;
            }
            if code < 0 {
                // The queue is empty, or fails.
                return None;
            }
        }
        let mut entry = Padded::<fi_eq_err_entry>::zeroed();
        // SAFETY: open; the entry is padded. A zero `err_data_size` requests no details.
        if unsafe { fi_eq_readerr(queue, entry.as_mut_ptr(), 0) } < 0 {
            return None;
        }
        let mut error = port_error(self.domain.library(), "the endpoint", entry.err.into());
        // Only a completion queue has the provider's text for its code; here it is a `fi_errno`.
        error.text = format!("{}; the provider's code: {}", error.text, entry.prov_errno);
        Some(error)
    }
}
