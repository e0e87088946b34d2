//! The interface for virtual memory: addresses are reserved, memory is made, and one is mapped to
//! the other.

use std::collections::BTreeMap;
use std::ffi::{c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::state::device::{device, devices, take};
use crate::state::memory::{Location, Mapping, Physical, change, find, fresh_id, insert, remove};
use crate::state::pages::{Kind, Pages, map, reserve, unmap};
use crate::state::status::{INVALID_VALUE, NOT_SUPPORTED, Outcome, Status, answer, put};
use crate::state::table::{Table, lock};

const GRANULARITY: usize = 2 << 20;

const ON_DEVICE: u32 = 1;
const ON_HOST: u32 = 2;
const ON_NUMA_NODE: u32 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Access>() == 12);

static HANDLES: Table<Physical> = Table::new();
static RESERVED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn whole(value: usize) -> Outcome {
    if value == 0 || value % GRANULARITY != 0 { Err(INVALID_VALUE) } else { Ok(()) }
}

fn reserved(base: usize, len: usize) -> bool {
    let all = lock(&RESERVED);
    let Some((start, size)) = all.range(..=base).next_back() else { return false };
    base - start < *size && len <= size - (base - start)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    into: *mut usize,
    len: usize,
    alignment: usize,
    _wish: usize,
    flags: c_ulonglong,
) -> Status {
    answer(devices().and_then(|_| {
        if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        whole(len)?;
        let base = reserve(len, alignment.max(GRANULARITY))?;
        lock(&RESERVED).insert(base, len);
        // SAFETY: the caller's promise.
        unsafe { put(into, base) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(base: usize, len: usize) -> Status {
    answer(devices().and_then(|_| {
        let mut all = lock(&RESERVED);
        if all.get(&base) != Some(&len) {
            return Err(INVALID_VALUE);
        }
        all.remove(&base);
        // SAFETY: the program says that it has no use for the addresses.
        unsafe { unmap(base, len) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    into: *mut usize,
    properties: *const Properties,
    _option: u32,
) -> Status {
    answer(devices().and_then(|_| {
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { put(into, GRANULARITY) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    into: *mut usize,
    len: usize,
    properties: *const Properties,
    flags: c_ulonglong,
) -> Status {
    answer(devices().and_then(|_| {
        if properties.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; the caller's promise.
        let properties = unsafe { properties.read() };
        whole(len)?;
        let location = properties.location;
        let device = match location.kind {
            ON_DEVICE => device(location.id)?,
            ON_NUMA_NODE => device(0)?,
            _ => return Err(NOT_SUPPORTED),
        };
        if location.kind == ON_DEVICE && device.behaviour.vmm.load(Relaxed) == 0 {
            return Err(NOT_SUPPORTED);
        }
        take(&device.memory, &device.behaviour.memory_limit, len)?;
        let pages = Pages::new(len)?;
        pages.soil();
        let physical = Physical { pages, len, location, device };
        // SAFETY: the caller's promise.
        unsafe { put(into, HANDLES.insert(Arc::new(physical))) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: usize) -> Status {
    answer(HANDLES.remove(handle).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemRetainAllocationHandle(into: *mut usize, address: *mut c_void) -> Status {
    answer(devices().and_then(|_| {
        let mapping = find(address as usize).ok_or(INVALID_VALUE)?;
        let physical = mapping.physical.ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { put(into, HANDLES.insert(physical)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    into: *mut Properties,
    handle: usize,
) -> Status {
    answer(HANDLES.get(handle).and_then(|physical| {
        let properties = Properties {
            kind: 1,
            handle_types: 0,
            location: physical.location,
            windows: ptr::null_mut(),
            flags: [0; 8],
        };
        // SAFETY: the caller's promise.
        unsafe { put(into, properties) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    base: usize,
    len: usize,
    offset: usize,
    handle: usize,
    flags: c_ulonglong,
) -> Status {
    answer(devices().and_then(|_| {
        let physical = HANDLES.get(handle)?;
        let fits = offset == 0 && flags == 0 && len == physical.len;
        if !fits || !reserved(base, len) || find(base).is_some() || find(base + len - 1).is_some() {
            return Err(INVALID_VALUE);
        }
        let on_device = physical.location.kind == ON_DEVICE;
        physical.pages.show(base, false)?;
        insert(Mapping {
            base,
            len,
            kind: if on_device { Kind::VmmDevice } else { Kind::VmmHost },
            context: None,
            device: physical.device,
            alias: physical.pages.alias(),
            pages: Some(Arc::clone(&physical.pages)),
            opened: false,
            cpu: false,
            physical: Some(physical),
            id: fresh_id(),
        });
        Ok(())
    }))
}

fn covered(base: usize, len: usize) -> Result<Vec<Mapping>, Status> {
    let end = base.checked_add(len).ok_or(INVALID_VALUE)?;
    let mut found = Vec::new();
    let mut at = base;
    while at < end {
        let mapping = find(at).ok_or(INVALID_VALUE)?;
        if mapping.base != at || mapping.physical.is_none() {
            return Err(INVALID_VALUE);
        }
        at += mapping.len;
        found.push(mapping);
    }
    if at == end { Ok(found) } else { Err(INVALID_VALUE) }
}

fn open(mapping: &Mapping, access: Access) -> Outcome {
    let allowed = access.flags == 3;
    match access.location.kind {
        ON_DEVICE => {
            device(access.location.id)?;
            change(mapping.base, |mapping| mapping.opened = allowed)
        }
        ON_HOST | ON_NUMA_NODE if mapping.kind == Kind::VmmHost => {
            if let Some(pages) = &mapping.pages {
                pages.show(mapping.base, allowed)?;
            }
            change(mapping.base, |mapping| mapping.cpu = allowed)
        }
        _ => Err(INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    base: usize,
    len: usize,
    access: *const Access,
    count: usize,
) -> Status {
    answer(devices().and_then(|_| {
        if access.is_null() {
            return Err(INVALID_VALUE);
        }
        let mappings = covered(base, len)?;
        for index in 0..count {
            // SAFETY: an array of `count`, by the caller's promise.
            let access = unsafe { access.add(index).read() };
            mappings.iter().try_for_each(|mapping| open(mapping, access))?;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const Location,
    address: usize,
) -> Status {
    answer(devices().and_then(|_| {
        if location.is_null() {
            return Err(INVALID_VALUE);
        }
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        // SAFETY: not null; the caller's promise.
        let kind = unsafe { location.read() }.kind;
        let open = match kind {
            ON_DEVICE => mapping.opened,
            ON_HOST | ON_NUMA_NODE => mapping.cpu,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's promise.
        unsafe { put(flags, if open { 3 } else { 0 }) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(base: usize, len: usize) -> Status {
    answer(devices().and_then(|_| {
        for mapping in covered(base, len)? {
            remove(mapping.base, &[Kind::VmmDevice, Kind::VmmHost])?;
            map(mapping.base as *mut _, mapping.len, libc::PROT_NONE, None)?;
        }
        Ok(())
    }))
}
