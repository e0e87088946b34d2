//! The exported function, called as no sound host calls it, and transports that are never
//! connected.

use std::ffi::{c_int, c_void};

use libloading::{Library, Symbol};
use libtest_mimic::Trial;
use nvshmem_abi::{INIT_SYMBOL, Layout, Major, Transport, Transport3b, Transport7, c};
use nvshmem_sim::{BoxError, Job};
use test_support::built::plugin_dir;

use crate::fabric::{job, says, trial};

type Init = unsafe extern "C" fn(*mut *mut Transport, *mut c_void, c_int) -> c_int;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("entry".to_owned(), None, || {
        // Warnings and errors show without NVSHMEM_DEBUG.
        let report = job("entry", 1, Layout::V7)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")
            .env("NVSHMEM_DEBUG", "")
            .run()?
            .check()?;
        let text = report.pes[0].text();
        says(&text, "20000")?;
        says(&text, "80000 is newer than 70000")
    })]
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let file = plugin_dir().join(job.settings.layout.soname());
    // SAFETY: the plugin runs no code of consequence when it is loaded.
    let library = unsafe { Library::new(file)? };
    // SAFETY: the plugin's one function has this type.
    let init: Symbol<'_, Init> = unsafe { library.get(INIT_SYMBOL.as_bytes())? };
    let start = |api: c_int| {
        let mut transport: *mut Transport = std::ptr::null_mut();
        // SAFETY: the place to write to is valid; the table is not used.
        let status = unsafe { init(&raw mut transport, std::ptr::null_mut(), api) };
        (status, transport)
    };
    for api in [0, -1, 20_000, 80_000, c_int::MAX] {
        let (status, transport) = start(api);
        if status != c::NVT_STATUS_INVALID_VALUE || !transport.is_null() {
            return Err(format!("api_version {api}: status {status}, {transport:?}").into());
        }
    }
    // SAFETY: null is what this is about.
    let status = unsafe { init(std::ptr::null_mut(), std::ptr::null_mut(), 70_000) };
    expect("init without a place for the transport", status, c::NVT_STATUS_INVALID_VALUE)?;

    // A minor version newer than what is known, and every known major.
    for api in [70_100].into_iter().chain(Major::ALL.map(|major| major.number() * 10_000)) {
        let (status, transport) = start(api);
        expect("init", status, c::NVT_STATUS_SUCCESS)?;
        if api >= 40_000 {
            // SAFETY: init has just given it out.
            unsafe { unconnected(transport, api)? };
            continue;
        }
        // SAFETY: likewise, of layout 3. No argument is followed: neither is the transport, so
        // neither form of the layout can be meant.
        let status = unsafe {
            let ops = (*transport.cast::<Transport3b>()).host_ops;
            let get_mem_handle = ops.get_mem_handle.ok_or("no get_mem_handle")?;
            let (mut handle, no) = (std::mem::zeroed(), std::ptr::null_mut());
            get_mem_handle(&raw mut handle, no, 8, std::ptr::null_mut(), false)
        };
        expect("get_mem_handle without a transport", status, c::NVT_STATUS_INVALID_VALUE)?;
    }
    Ok(())
}

/// # Safety
/// `transport` is a living one of layouts 4 to 7. The operations used are at the same place in all
/// of them.
unsafe fn unconnected(transport: *mut Transport, api: c_int) -> Result<(), BoxError> {
    // SAFETY: by contract. Only fields that layout 4 has too are read, by their address: an older
    // layout is shorter, but the plugin always makes the longest.
    unsafe {
        let view = transport.cast::<Transport7>();
        expect("api_version", (*view).api_version, api)?;
        let ops = (*view).host_ops;
        if ops.enforce_cst.is_some() || ops.enforce_cst_at_target.is_some() {
            return Err("it wants to be asked for consistency".into());
        }
        let progress = ops.progress.ok_or("no progress")?;
        expect("progress before connecting", progress(transport), c::NVT_STATUS_INTERNAL)?;
        let connect = ops.connect_endpoints.ok_or("no connect_endpoints")?;
        let no = std::ptr::null_mut();
        let status = connect(transport, no, 0, no, 0);
        expect("connect without a bootstrap", status, c::NVT_STATUS_INVALID_VALUE)?;
        let finalize = ops.finalize.ok_or("no finalize")?;
        expect("finalize before connecting", finalize(transport), c::NVT_STATUS_SUCCESS)?;
        expect("finalize again", finalize(transport), c::NVT_STATUS_INVALID_VALUE)
    }
}

fn expect(what: &str, found: c_int, expected: c_int) -> Result<(), BoxError> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found} instead of {expected}").into())
    }
}
