//! Fields that moved into an anonymous union after 1.17, so that bindgen gives them another path
//! for newer headers. Their offset never changed.

use std::mem::offset_of;

use crate::{fi_domain_attr, fi_mr_attr, fi_progress, iovec};

// `control_progress` and `data_progress` lie between `threading` and `resource_mgmt`.
const _: () = assert!(offset_of!(fi_domain_attr, threading) == 16);
const _: () = assert!(offset_of!(fi_domain_attr, resource_mgmt) == 28);
const _: () = assert!(offset_of!(fi_mr_attr, iov_count) == 8);

/// Sets `control_progress` and `data_progress`.
///
/// # Safety
/// `attr` is valid for writes.
pub unsafe fn set_progress(attr: *mut fi_domain_attr, control: fi_progress, data: fi_progress) {
    // SAFETY: the caller vouches for `attr`; the assertions above place two 32-bit enums behind
    // `threading`, and the pointer is made from the whole struct.
    unsafe {
        let threading = attr.cast::<u8>().add(offset_of!(fi_domain_attr, threading));
        threading.cast::<fi_progress>().add(1).write(control);
        threading.cast::<fi_progress>().add(2).write(data);
    }
}

/// Reads `data_progress`.
///
/// # Safety
/// `attr` is valid for reads.
pub unsafe fn data_progress(attr: *const fi_domain_attr) -> fi_progress {
    // SAFETY: as in `set_progress`.
    unsafe {
        let threading = attr.cast::<u8>().add(offset_of!(fi_domain_attr, threading));
        threading.cast::<fi_progress>().add(2).read()
    }
}

/// Sets `mr_iov` and `iov_count`.
pub fn mr_attr_set_iov(attr: &mut fi_mr_attr, iov: *const iovec, count: usize) {
    // SAFETY: `mr_iov` is the pointer before `iov_count`, at offset 0, as asserted above.
    unsafe { *(attr as *mut fi_mr_attr).cast::<*const iovec>() = iov };
    attr.iov_count = count;
}
