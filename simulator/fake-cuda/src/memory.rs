//! Memory that the driver knows: its pages, and the addresses by which programs name them.
//!
//! Pages belong to a file in memory. They are mapped for the copy engine once, and a second time
//! where the program has its address: `PROT_NONE` for what is on a device. Work that is under way
//! keeps its pages alive, so that a program which frees too early is wrong without being undefined.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::capture::allowed;
use crate::context::{Context, current};
use crate::device::{Device, take};
use crate::status::{INVALID_VALUE, OUT_OF_MEMORY, Outcome, Status, answer, put};
use crate::table::{fresh, lock};

/// Pages, with the mapping that the copy engine uses.
#[derive(Debug)]
pub(crate) struct Pages {
    file: OwnedFd,
    alias: usize,
    len: usize,
}

/// What an address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemMap` of memory on a device.
    VmmDevice,
    /// `cuMemMap` of memory on a NUMA node.
    VmmHost,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`.
    Registered,
}

/// A range of addresses of a program.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    /// The context it was made in. None for memory of the VMM interface.
    pub(crate) context: Option<&'static Context>,
    pub(crate) device: &'static Device,
    /// Where the copy engine finds it.
    pub(crate) alias: usize,
    /// None for memory that the program has brought.
    pub(crate) pages: Option<Arc<Pages>>,
    /// Whether the device may use it: memory of the VMM interface has to be opened.
    pub(crate) opened: bool,
    /// Whether the CPU may.
    pub(crate) cpu: bool,
    /// For memory of the VMM interface: the handle's object.
    pub(crate) physical: Option<Arc<crate::vmm::Physical>>,
    pub(crate) id: u64,
}

/// A piece of memory as a copy sees it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) alias: usize,
    /// None for memory that the driver does not know.
    pub(crate) kind: Option<Kind>,
    _pages: Option<Arc<Pages>>,
}

static MAPPINGS: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());

/// The pages of a device. Memory on it begins and ends with them.
const DEVICE_PAGE: usize = 64 << 10;

/// The pages of this machine.
const PAGE: usize = 4096;

impl Pages {
    /// Pages of a length, filled with zeros.
    pub(crate) fn new(len: usize) -> Result<Arc<Self>, Status> {
        // SAFETY: the name is a string; the result is looked at.
        let raw = unsafe { libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: just opened, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a file of ours.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let alias = map(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, Some(&file))?;
        Ok(Arc::new(Self { file, alias, len }))
    }

    /// Where the copy engine finds them.
    pub(crate) fn alias(&self) -> usize {
        self.alias
    }

    /// Maps them for the program, at `at` unless that is null.
    pub(crate) fn show(&self, at: usize, cpu: bool) -> Result<usize, Status> {
        let access = if cpu { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        map(at as *mut _, self.len, access, Some(&self.file))
    }

    /// The file, for who maps it himself.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Status> {
        self.file.try_clone().map_err(|_| OUT_OF_MEMORY)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing refers to it any more: who does holds an `Arc`.
        unsafe { libc::munmap(self.alias as *mut _, self.len) };
    }
}

/// Maps a file, or nothing at all: addresses that are taken and lead nowhere.
pub(crate) fn map(
    at: *mut libc::c_void,
    len: usize,
    access: i32,
    file: Option<&OwnedFd>,
) -> Result<usize, Status> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let kind = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let raw = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a fixed address comes only from a range that this driver has reserved.
    let mapped = unsafe { libc::mmap(at, len, access, kind | fixed, raw, 0) };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(mapped as usize) }
}

/// Gives addresses back.
///
/// # Safety
/// The program has no use for them any more.
pub(crate) unsafe fn unmap(base: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(base as *mut _, len) };
}

/// Takes addresses that lead nowhere.
pub(crate) fn reserve(len: usize, alignment: usize) -> Result<usize, Status> {
    let taken = len.checked_add(alignment).ok_or(INVALID_VALUE)?;
    let raw = map(ptr::null_mut(), taken, libc::PROT_NONE, None)?;
    let base = raw.next_multiple_of(alignment);
    // SAFETY: the two ends of what was just mapped; nobody has their addresses.
    unsafe {
        if base > raw {
            unmap(raw, base - raw);
        }
        unmap(base + len, raw + taken - (base + len));
    }
    Ok(base)
}

/// Whole pages of a device.
pub(crate) fn round_up(len: usize) -> Result<usize, Status> {
    match len.checked_next_multiple_of(DEVICE_PAGE) {
        Some(0) | None => Err(INVALID_VALUE),
        Some(len) => Ok(len),
    }
}

/// A number that no other allocation has.
pub(crate) fn fresh_id() -> u64 {
    fresh() as u64
}

/// Takes a range into the table.
pub(crate) fn insert(mapping: Mapping) {
    lock(&MAPPINGS).insert(mapping.base, mapping);
}

/// Takes a range out.
pub(crate) fn remove(base: usize, kinds: &[Kind]) -> Result<Mapping, Status> {
    let mut mappings = lock(&MAPPINGS);
    match mappings.get(&base) {
        Some(mapping) if kinds.contains(&mapping.kind) => {}
        _ => return Err(INVALID_VALUE),
    }
    mappings.remove(&base).ok_or(INVALID_VALUE)
}

/// Changes a range in place.
pub(crate) fn change(base: usize, how: impl FnOnce(&mut Mapping)) -> Outcome {
    lock(&MAPPINGS).get_mut(&base).map(how).ok_or(INVALID_VALUE)
}

/// The range that an address is in.
pub(crate) fn find(address: usize) -> Option<Mapping> {
    let mappings = lock(&MAPPINGS);
    let (_, mapping) = mappings.range(..=address).next_back()?;
    (address - mapping.base < mapping.len).then(|| mapping.clone())
}

/// What the device uses for `len` bytes from an address. Memory that the driver does not know is
/// the program's.
pub(crate) fn place(address: usize, len: usize) -> Result<Place, Status> {
    let Some(mapping) = find(address) else {
        return Ok(Place { alias: address, kind: None, _pages: None });
    };
    let offset = address - mapping.base;
    if len > mapping.len - offset || !mapping.opened {
        return Err(INVALID_VALUE);
    }
    let alias = mapping.alias + offset;
    Ok(Place { alias, kind: Some(mapping.kind), _pages: mapping.pages })
}

impl Place {
    /// Whether a device reaches it by this address: its own memory, and host memory that the driver
    /// has locked.
    pub(crate) fn known(&self) -> bool {
        self.kind.is_some()
    }
}

/// Allocates memory of the context that is current.
fn allocate(len: usize, kind: Kind) -> Result<usize, Status> {
    let context = current()?;
    allowed()?;
    let device = context.device;
    let whole = round_up(len)?;
    take(&device.memory, &device.behaviour.memory_limit, len)?;
    let pages = Pages::new(whole)?;
    let cpu = kind == Kind::Managed;
    let base = pages.show(reserve(whole, DEVICE_PAGE)?, cpu)?;
    insert(Mapping {
        base,
        len,
        kind,
        context: Some(context),
        device,
        alias: pages.alias(),
        pages: Some(pages),
        opened: true,
        cpu,
        physical: None,
        id: fresh_id(),
    });
    Ok(base)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(into: *mut usize, len: usize) -> Status {
    // SAFETY: the caller's promise.
    answer(allocate(len, Kind::Device).and_then(|base| unsafe { put(into, base) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocManaged(into: *mut usize, len: usize, _flags: u32) -> Status {
    // SAFETY: the caller's promise.
    answer(allocate(len, Kind::Managed).and_then(|base| unsafe { put(into, base) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(base: usize) -> Status {
    answer(current().and_then(|context| {
        if base == 0 {
            return Ok(());
        }
        allowed()?;
        context.synchronize()?;
        let mapping = remove(base, &[Kind::Device, Kind::Managed])?;
        mapping.device.memory.fetch_sub(mapping.len as u64, Relaxed);
        // SAFETY: a program that frees memory has no use for it.
        unsafe { unmap(mapping.base, round_up(mapping.len)?) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut usize,
    len: *mut usize,
    address: usize,
) -> Status {
    answer(current().and_then(|_| {
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise; each may be null.
        unsafe {
            if !base.is_null() {
                put(base, mapping.base)?;
            }
            if len.is_null() { Ok(()) } else { put(len, mapping.len) }
        }
    }))
}

/// A dma-buf is the file of the pages here, so it can be had for whole allocations only.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    into: *mut i32,
    address: usize,
    len: usize,
    handle_type: u32,
    _flags: u64,
) -> Status {
    answer(current().and_then(|context| {
        if context.device.behaviour.dma_buf.load(Relaxed) == 0 || handle_type != 1 {
            return Err(crate::status::NOT_SUPPORTED);
        }
        if address % PAGE != 0 || len % PAGE != 0 {
            return Err(INVALID_VALUE);
        }
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        let whole = round_up(mapping.len)?;
        let pages = mapping.pages.ok_or(INVALID_VALUE)?;
        if address != mapping.base || len > whole {
            return Err(INVALID_VALUE);
        }
        let file = pages.duplicate()?;
        // SAFETY: the caller's promise.
        unsafe { put(into, std::os::fd::IntoRawFd::into_raw_fd(file)) }
    }))
}
