//! The interface for virtual memory: addresses are reserved, memory is made, and one is mapped to
//! the other.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::sync::{Arc, Mutex};

use crate::state::device::{MEMORY, device, devices};
use crate::state::memory::{Location, Mapping, Physical, change, find, remove};
use crate::state::pages::{Kind, Pages, map, reserve, unmap};
use crate::state::settings::variable;
use crate::state::status::{INVALID_VALUE, In, NOT_SUPPORTED, Out, Outcome, Status};
use crate::state::table::{Table, lock};

const GRANULARITY: usize = 2 << 20;

const ON_DEVICE: u32 = 1;
const ON_HOST: u32 = 2;
const ON_NUMA_NODE: u32 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Properties {
    pub(crate) fn of(location: Location) -> Self {
        Self { kind: 1, handle_types: 0, location, windows: 0, flags: [0; 8] }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: u32,
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

calls! {
    fn cuMemAddressReserve(
        into: Out<usize>,
        len: usize,
        alignment: usize,
        _wish: usize,
        flags: c_ulonglong,
    ) {
        devices()?;
        if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        whole(len)?;
        let base = reserve(len, alignment.max(GRANULARITY))?;
        lock(&RESERVED).insert(base, len);
        into.put(base)
    }

    fn cuMemAddressFree(base: usize, len: usize) {
        devices()?;
        let mut all = lock(&RESERVED);
        if all.get(&base) != Some(&len) {
            return Err(INVALID_VALUE);
        }
        all.remove(&base);
        // SAFETY: the program says that it has no use for the addresses.
        unsafe { unmap(base, len) };
        Ok(())
    }

    fn cuMemGetAllocationGranularity(
        into: Out<usize>,
        properties: In<Properties>,
        _option: u32,
    ) {
        devices()?;
        properties.get()?;
        into.put(GRANULARITY)
    }

    fn cuMemCreate(
        into: Out<usize>,
        len: usize,
        properties: In<Properties>,
        flags: c_ulonglong,
    ) {
        devices()?;
        let location = properties.get()?.location;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        whole(len)?;
        let device = match location.kind {
            ON_DEVICE => device(location.id)?,
            ON_NUMA_NODE => device(0)?,
            _ => return Err(NOT_SUPPORTED),
        };
        if location.kind == ON_DEVICE && variable("FAKE_CUDA_VMM", 1) != 1 {
            return Err(NOT_SUPPORTED);
        }
        device.take(MEMORY, len)?;
        let pages = Pages::new(len)?;
        pages.soil();
        let physical = Physical { pages, len, location, device };
        into.put(HANDLES.insert(Arc::new(physical)))
    }

    fn cuMemRelease(handle: usize) {
        HANDLES.remove(handle).map(drop)
    }

    fn cuMemRetainAllocationHandle(into: Out<usize>, address: usize) {
        devices()?;
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        let physical = mapping.physical.ok_or(INVALID_VALUE)?;
        into.put(HANDLES.insert(physical))
    }

    fn cuMemGetAllocationPropertiesFromHandle(into: Out<Properties>, handle: usize) {
        let physical = HANDLES.get(handle)?;
        into.put(Properties::of(physical.location))
    }

    fn cuMemMap(base: usize, len: usize, offset: usize, handle: usize, flags: c_ulonglong) {
        devices()?;
        let physical = HANDLES.get(handle)?;
        let fits = offset == 0 && flags == 0 && len == physical.len;
        if !fits || !reserved(base, len) || find(base).is_some() || find(base + len - 1).is_some() {
            return Err(INVALID_VALUE);
        }
        let on_device = physical.location.kind == ON_DEVICE;
        physical.pages.show(base, false)?;
        let kind = if on_device { Kind::VmmDevice } else { Kind::VmmHost };
        let pages = Some(Arc::clone(&physical.pages));
        let made = Mapping::new((base, len), kind, physical.device, pages);
        Mapping { opened: false, physical: Some(physical), ..made }.insert();
        Ok(())
    }

    fn cuMemSetAccess(base: usize, len: usize, access: In<Access>, count: usize) {
        devices()?;
        let (mappings, access) = (covered(base, len)?, access.list(count)?);
        let mut all = access.iter().flat_map(|access| mappings.iter().map(move |of| (of, access)));
        all.try_for_each(|(mapping, access)| open(mapping, *access))
    }

    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<Location>, address: usize) {
        devices()?;
        let mapping = find(address).ok_or(INVALID_VALUE)?;
        let open = match location.get()?.kind {
            ON_DEVICE => mapping.opened,
            ON_HOST | ON_NUMA_NODE => mapping.cpu,
            _ => return Err(INVALID_VALUE),
        };
        flags.put(if open { 3 } else { 0 })
    }

    fn cuMemUnmap(base: usize, len: usize) {
        devices()?;
        for mapping in covered(base, len)? {
            remove(mapping.base, &[Kind::VmmDevice, Kind::VmmHost])?;
            map(mapping.base as *mut _, mapping.len, libc::PROT_NONE, None)?;
        }
        Ok(())
    }
}
