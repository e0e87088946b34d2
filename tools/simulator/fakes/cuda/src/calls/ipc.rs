//! Memory of a device for other processes: by handles, for `cuMemAlloc`, and by descriptors, for
//! the VMM interface. Both lead to the file of its pages, which is mapped once more where it is
//! opened.

use std::collections::HashMap;
use std::ffi::{c_ulonglong, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use super::stream::allowed;
use super::vmm::{HANDLES, ON_DEVICE};
use crate::state::context::current;
use crate::state::device::{Device, device};
use crate::state::memory::{Location, Mapping, Physical, find, forget, fresh_id, insert, remove};
use crate::state::pages::{DEVICE_PAGE, Kind, Pages, reserve};
use crate::state::status::{
    INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, Outcome, PEER_ACCESS_UNSUPPORTED, Status,
    answer, put,
};
use crate::state::table::lock;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which has to be asked for.
const LAZY_PEER_ACCESS: u32 = 1;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const DESCRIPTOR: u32 = 1;

/// `CUipcMemHandle`: where the file of the pages is, and how much of it there is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Handle {
    pid: u32,
    fd: RawFd,
    len: u64,
    id: u64,
    rest: [u64; 5],
}

const _: () = assert!(size_of::<Handle>() == 64);

/// What was opened by handles: where it is, and how often.
static OPENED: Mutex<Option<HashMap<Handle, (usize, usize)>>> = Mutex::new(None);

fn shares(device: &Device) -> Outcome {
    if device.behaviour.sharing.load(Relaxed) == 0 { Err(NOT_SUPPORTED) } else { Ok(()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(into: *mut Handle, address: usize) -> Status {
    answer(current().and_then(|_| {
        let mapping = find(address).filter(|mapping| mapping.kind == Kind::Device);
        let Mapping { device, len, id, pages, .. } = mapping.ok_or(INVALID_VALUE)?;
        shares(device)?;
        let fd = pages.ok_or(INVALID_VALUE)?.fd();
        let (pid, len) = (std::process::id(), len as u64);
        // SAFETY: the caller's promise.
        unsafe { put(into, Handle { pid, fd, len, id, rest: [0; 5] }) }
    }))
}

/// Opens what another process has. No device reaches another's memory, whoever has it.
fn open(handle: Handle) -> Result<usize, Status> {
    let context = current()?;
    allowed()?;
    shares(context.device)?;
    // The one that has it has its address.
    if handle.pid == std::process::id() {
        return Err(INVALID_CONTEXT);
    }
    let mut opened = lock(&OPENED);
    let opened = opened.get_or_insert_default();
    if let Some((base, count)) = opened.get_mut(&handle) {
        *count += 1;
        return Ok(*base);
    }
    let path = format!("/proc/{}/fd/{}", handle.pid, handle.fd);
    let target = std::fs::read_link(&path).map_err(|_| INVALID_VALUE)?;
    if !target.to_string_lossy().starts_with("/memfd:fake-cuda") {
        return Err(INVALID_VALUE);
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
    let (pages, on) = Pages::of_file(file.map_err(|_| INVALID_VALUE)?)?;
    if on != context.device.ordinal {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    let len = usize::try_from(handle.len).map_err(|_| INVALID_VALUE)?;
    if len > pages.len() {
        return Err(INVALID_VALUE);
    }
    pages.hold();
    let base = pages.show(reserve(pages.len(), DEVICE_PAGE)?, false)?;
    opened.insert(handle, (base, 1));
    insert(Mapping {
        base,
        len,
        kind: Kind::Opened,
        context: Some(context),
        device: context.device,
        alias: pages.alias(),
        pages: Some(pages),
        opened: true,
        cpu: false,
        physical: None,
        id: fresh_id(),
    });
    context.device.opened.fetch_add(1, Relaxed);
    Ok(base)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(into: *mut usize, handle: Handle, flags: u32) -> Status {
    if flags != LAZY_PEER_ACCESS {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    answer(open(handle).and_then(|base| unsafe { put(into, base) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(base: usize) -> Status {
    answer(current().and_then(|context| {
        let mut opened = lock(&OPENED);
        let opened = opened.get_or_insert_default();
        let found = opened.iter_mut().find(|(_, (at, _))| *at == base);
        let (handle, (_, count)) = found.ok_or(INVALID_VALUE)?;
        let handle = *handle;
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        opened.remove(&handle);
        context.device.opened.fetch_sub(1, Relaxed);
        forget(remove(base, &[Kind::Opened])?)
    }))
}

/// Only of memory that was made for it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    into: *mut RawFd,
    handle: usize,
    handle_type: u32,
    flags: c_ulonglong,
) -> Status {
    answer(HANDLES.get(handle).and_then(|physical| {
        shares(physical.device)?;
        if physical.handle_types & handle_type == 0 || handle_type != DESCRIPTOR || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let file = physical.pages.file().try_clone_to_owned().map_err(|_| NOT_SUPPORTED)?;
        // SAFETY: the caller's promise.
        unsafe { put(into, file.into_raw_fd()) }
    }))
}

/// A descriptor in the place of a pointer, which stays the caller's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    into: *mut usize,
    fd: *mut c_void,
    handle_type: u32,
) -> Status {
    let import = || {
        let fd = i32::try_from(fd as usize).map_err(|_| INVALID_VALUE)?;
        // SAFETY: asked about, whatever it is.
        if handle_type != DESCRIPTOR || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: open, and for the time of the call alone.
        let file: OwnedFd = unsafe { BorrowedFd::borrow_raw(fd) }
            .as_fd()
            .try_clone_to_owned()
            .map_err(|_| INVALID_VALUE)?;
        let (pages, on) = Pages::of_file(File::from(file))?;
        let device = device(on as i32)?;
        shares(device)?;
        device.opened.fetch_add(1, Relaxed);
        let (len, location) = (pages.len(), Location { kind: ON_DEVICE, id: on as i32 });
        let physical =
            Physical { pages, len, location, device, handle_types: 0, is_imported: true };
        // SAFETY: the caller's promise.
        unsafe { put(into, HANDLES.insert(Arc::new(physical))) }
    };
    answer(import())
}
