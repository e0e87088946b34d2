//! Devices and what they say of themselves.

use std::sync::OnceLock;

use super::refuse;
use crate::config::Config;
use crate::device::{Device, Nic, Qp};
use crate::sysfs;
use crate::verbs::{
    IBV_FORK_UNNEEDED, efadv_device_attr, ibv_context, ibv_device, ibv_device_attr,
    ibv_fork_status, ibv_gid, ibv_port_attr,
};

/// The devices of this process, made once: a device that callers hold stays.
fn devices() -> &'static [usize] {
    static DEVICES: OnceLock<Vec<usize>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let Some(config) = Config::get() else { return Vec::new() };
        let root = sysfs::make(config).unwrap_or_else(|error| {
            eprintln!("efa-lab: cannot make {}/sys: {error}", config.dir.display());
            std::process::abort()
        });
        if std::env::var_os("SYSFS_PATH").is_none_or(|path| path != root.as_os_str()) {
            eprintln!("efa-lab: SYSFS_PATH has to be {}", root.display());
            std::process::abort()
        }
        // SAFETY: it allows other processes of this user, whose NICs write here, to do so.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        (0..config.nics).map(|nic| Device::new(config, nic).into_raw() as usize).collect()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut i32) -> *mut *mut ibv_device {
    let found = devices();
    let list: Box<[*mut ibv_device]> =
        found.iter().map(|&at| at as *mut ibv_device).chain([std::ptr::null_mut()]).collect();
    // SAFETY: the caller's place for the number, if it wants it.
    unsafe {
        if !count.is_null() {
            *count = found.len() as i32;
        }
    }
    Box::leak(list).as_mut_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let length = devices().len() + 1;
    // SAFETY: from the call above, which made it as long.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a device of the list.
    match unsafe { Nic::open(device, Qp::ops()) } {
        Ok(context) => context,
        Err(error) => refuse(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> i32 {
    // SAFETY: from `ibv_open_device`, and not used again.
    unsafe { Nic::close(context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const std::ffi::c_char {
    // SAFETY: a device of the list, which stays.
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> i32 {
    // SAFETY: an open device, and the caller's place for the answer.
    unsafe { *attr = Nic::of(context).attributes() };
    0
}

/// Callers of old give a shorter place: what it lacks stands behind `link_layer`, and is zero
/// already.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut u8) -> i32 {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: an open device, and the caller's place for at least the old answer.
    unsafe {
        let answer = Nic::of(context).port();
        let old = std::mem::offset_of!(ibv_port_attr, link_layer);
        std::ptr::copy_nonoverlapping((&raw const answer).cast(), attr, old);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: i32,
    gid: *mut ibv_gid,
) -> i32 {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: an open device, and the caller's place for the answer.
    unsafe { (*gid).raw = Nic::of(context).gid.0 };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(_: *mut ibv_context, _: u8, _: i32, pkey: *mut u16) -> i32 {
    // SAFETY: the caller's place for the answer. There is one key, which is all of them.
    unsafe { *pkey = 0xffff };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attr: *mut efadv_device_attr,
    bytes: u32,
) -> i32 {
    let bytes = size_of::<efadv_device_attr>().min(bytes as usize);
    // SAFETY: an open device, and the caller's place of that length.
    unsafe {
        let answer = Nic::of(context).efa_attributes();
        std::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast(), bytes);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}
