//! Ranges of addresses that the driver knows, by which programs name memory.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use crate::state::context::Context;
use crate::state::device::{Device, MEMORY, PINNED};
use crate::state::pages::{Kind, Pages, Place, round_up, unmap};
use crate::state::status::{INVALID_VALUE, Outcome, Status};
use crate::state::table::{fresh, lock};

#[derive(Clone)]
pub(crate) struct Mapping {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    /// The context it was made in. None for memory of the VMM interface.
    pub(crate) context: Option<&'static Context>,
    pub(crate) device: &'static Device,
    pub(crate) alias: usize,
    /// None for memory that the program has brought.
    pub(crate) pages: Option<Arc<Pages>>,
    /// Whether the device may use it: memory of the VMM interface has to be opened.
    pub(crate) opened: bool,
    pub(crate) cpu: bool,
    /// For memory of the VMM interface: the handle's object.
    pub(crate) physical: Option<Arc<Physical>>,
    pub(crate) id: u64,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

/// Memory with no address.
pub(crate) struct Physical {
    pub(crate) pages: Arc<Pages>,
    pub(crate) len: usize,
    pub(crate) location: Location,
    pub(crate) device: &'static Device,
}

static MAPPINGS: Mutex<BTreeMap<usize, Mapping>> = Mutex::new(BTreeMap::new());

impl Drop for Physical {
    fn drop(&mut self) {
        self.device.give_back(MEMORY, self.len);
    }
}

impl Mapping {
    /// Addresses that lead to pages, or to pages of the program's own, open to the device.
    pub(crate) fn new(
        (base, len): (usize, usize),
        kind: Kind,
        device: &'static Device,
        pages: Option<Arc<Pages>>,
    ) -> Self {
        let alias = pages.as_ref().map_or(base, |pages| pages.alias);
        let cpu = matches!(kind, Kind::Managed | Kind::Pinned | Kind::Registered);
        let (context, physical, id) = (None, None, fresh() as u64);
        Self { base, len, kind, context, device, alias, pages, opened: true, cpu, physical, id }
    }

    pub(crate) fn insert(self) {
        lock(&MAPPINGS).insert(self.base, self);
    }
}

pub(crate) fn remove(base: usize, kinds: &[Kind]) -> Result<Mapping, Status> {
    let mut mappings = lock(&MAPPINGS);
    match mappings.get(&base) {
        Some(mapping) if kinds.contains(&mapping.kind) => {}
        _ => return Err(INVALID_VALUE),
    }
    mappings.remove(&base).ok_or(INVALID_VALUE)
}

pub(crate) fn forget(mapping: Mapping) -> Outcome {
    let Mapping { base, len, kind, device, .. } = mapping;
    device.give_back(if kind == Kind::Pinned { PINNED } else { MEMORY }, len);
    // SAFETY: a program that frees memory, or destroys the context that it is of, has no use for
    // it.
    unsafe { unmap(base, round_up(len)?) };
    Ok(())
}

pub(crate) fn forget_all(context: &Context) {
    let of_it = |mapping: &Mapping| mapping.context.is_some_and(|of| std::ptr::eq(of, context));
    let bases: Vec<usize> =
        lock(&MAPPINGS).values().filter(|mapping| of_it(mapping)).map(|found| found.base).collect();
    for base in bases {
        let Some(mapping) = lock(&MAPPINGS).remove(&base) else { continue };
        // What the program has brought stays its own.
        if mapping.kind == Kind::Registered {
            mapping.device.give_back(PINNED, mapping.len);
        } else {
            let _ = forget(mapping);
        }
    }
}

pub(crate) fn change(base: usize, how: impl FnOnce(&mut Mapping)) -> Outcome {
    lock(&MAPPINGS).get_mut(&base).map(how).ok_or(INVALID_VALUE)
}

pub(crate) fn find(address: usize) -> Option<Mapping> {
    let mappings = lock(&MAPPINGS);
    let (_, mapping) = mappings.range(..=address).next_back()?;
    (address - mapping.base < mapping.len).then(|| mapping.clone())
}

/// What the device uses for `len` bytes from an address. Memory that the driver does not know is
/// the program's.
pub(crate) fn place(address: usize, len: usize) -> Result<Place, Status> {
    let Some(mapping) = find(address) else {
        return Ok(Place::unknown(address));
    };
    let offset = address - mapping.base;
    if len > mapping.len - offset || !mapping.opened {
        return Err(INVALID_VALUE);
    }
    Ok(Place::within(mapping, offset))
}
