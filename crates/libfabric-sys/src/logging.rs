//! What a program takes libfabric's log by (`rdma/fi_ext.h`, `rdma/providers/fi_log.h`), stated by
//! hand: the fields and values are the same from 1.17 to 2.6.

use std::ffi::{c_char, c_int, c_void};

use crate::{FI_CLASS_LOG, fi_ops, fid};

/// Levels of the log, the gravest first (`enum fi_log_level`).
pub const FI_LOG_WARN: u32 = 0;
/// Level for interested users.
pub const FI_LOG_INFO: u32 = 2;
/// The part of libfabric that registers memory (`enum fi_log_subsys`).
pub const FI_LOG_MR: u32 = 8;

/// The head of a provider's description, which the log passes on.
#[allow(non_camel_case_types)] // As in C.
#[repr(C)]
#[derive(Debug)]
pub struct fi_provider {
    pub version: u32,
    /// The API that it was built for.
    pub fi_version: u32,
    /// Libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
}

/// Whether lines of a level and a part are wanted.
pub type LogEnabled = unsafe extern "C" fn(*const fi_provider, u32, u32, u64) -> c_int;
/// The same, of lines that come often, which are not wanted before a time.
pub type LogReady = unsafe extern "C" fn(*const fi_provider, u32, u32, u64, *mut u64) -> c_int;
/// Takes a line, with the function and the place that it comes from.
pub type LogLine =
    unsafe extern "C" fn(*const fi_provider, u32, u32, *const c_char, c_int, *const c_char);

#[allow(non_camel_case_types)] // As in C.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_log {
    /// Bytes of this table.
    pub size: usize,
    pub enabled: Option<LogEnabled>,
    pub ready: Option<LogReady>,
    pub log: Option<LogLine>,
}

/// An object that takes the log until it is closed.
#[allow(non_camel_case_types)] // As in C.
#[repr(C)]
#[derive(Debug)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}

impl fid_logging {
    /// One with this table, for libfabric to take. It sets the object's operations itself.
    pub fn new(ops: *mut fi_ops_log) -> Self {
        let (context, ops_of_object) = (std::ptr::null_mut(), std::ptr::null_mut::<fi_ops>());
        Self { fid: fid { fclass: FI_CLASS_LOG as usize, context, ops: ops_of_object }, ops }
    }
}
