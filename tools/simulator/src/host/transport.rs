//! The plugin's transport, reached through the layout that the host of that version has.
//!
//! Everything that differs between the layouts is here and in `table`: where fields are, which
//! shape a function has, what is passed for what the version does not know. The rest of the crate
//! calls methods.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Error, Result, check};
use crate::host::maps::{Entry, Map};
use crate::host::plugin::Plugin;
use crate::host::table::{Amo, Connect, Fence, GetMemHandle, Hints, PutSignal, Table, missing};
use crate::pe::bootstrap::Bootstrap;

/// Put into what a host leaves uninitialised, so that a plugin that reads it is noticed.
pub(crate) const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// [`POISON`] as an `int`.
pub(crate) const POISON_INT: i32 = POISON as u32 as i32;

/// Slot of the transport in the host's table.
const TRANSPORT_INDEX: i32 = 1;

/// Evaluates `$body` with `$t` bound to the transport as a reference of its own layout's type.
///
/// The place is a raw pointer dereference: the caller states why it may be.
macro_rules! in_layout {
    ($layout:expr, $raw:expr, $t:ident => $body:expr) => {
        match $layout {
            Layout::V3a => {
                let $t = $raw.cast::<c::nvt_transport_3a>();
                $body
            }
            Layout::V3b => {
                let $t = $raw.cast::<c::nvt_transport_3b>();
                $body
            }
            Layout::V4 | Layout::V5 => {
                let $t = $raw.cast::<c::nvt_transport_4>();
                $body
            }
            Layout::V6 => {
                let $t = $raw.cast::<c::nvt_transport_6>();
                $body
            }
            Layout::V7 => {
                let $t = $raw.cast::<c::nvt_transport_7>();
                $body
            }
        }
    };
}

/// The host's number for itself where it flushes regions.
pub(crate) const ISSUER: u64 = 1;

/// What the host says of the call after an `rma` (layouts 6 and 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    /// Another follows at once, from the same thread.
    pub(crate) more: bool,
    /// The region it belongs to, from 1 on; none is 0.
    pub(crate) region: u64,
}

/// What the plugin has set in its transport.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    pub(crate) attr: i32,
    pub(crate) n_devices: i32,
    pub(crate) no_proxy: bool,
    pub(crate) initialized: bool,
    pub(crate) atomics_complete_on_quiet: bool,
    pub(crate) max_op_len: u64,
}

/// What the host sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) my_pe: u32,
    pub(crate) n_pes: u32,
    pub(crate) heap_base: *mut u8,
    pub(crate) log2_granularity: u32,
    /// Whether the heap is of the VMM interface.
    pub(crate) dynamic_heap: bool,
    pub(crate) user_mapped: Option<UserChunk>,
}

/// A user's buffer in the heap, as the plugin is told of it: addresses in this PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserChunk {
    pub(crate) heap: usize,
    pub(crate) user: usize,
    pub(crate) len: usize,
    pub(crate) is_host: bool,
}

/// An atomic operation as it is called for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AmoCall {
    pub(crate) desc: i32,
    pub(crate) is_float: bool,
    pub(crate) elembytes: i32,
    pub(crate) mem: c::nvt_amo_memdesc,
}

/// A transport between the plugin's `nvshmemt_init` and its `finalize`.
///
/// # Threads
/// The host's rule: user threads for registration and operations with queue pair 0, the proxy
/// thread for those with another, both at once. The plugin is made for it.
#[derive(Debug)]
pub(crate) struct Transport {
    layout: Layout,
    raw: *mut c::nvt_transport,
    table: Table,
    declared: Declared,
    /// `cap` of the transport: one entry per PE, never moved while the transport lives.
    cap: Box<[i32]>,
    /// `alias_va_map` and `egm_map`: the user's own address, and the length, of users' buffers in
    /// the heap, the latter where they are host memory.
    maps: [Map; 2],
    finalized: AtomicBool,
    /// Last, so that the code is still there for everything above.
    plugin: Plugin,
}

// SAFETY: the plugin's functions may be called from any thread under the host's rule above; `cap`
// and `maps` are only handed to the plugin.
unsafe impl Send for Transport {}
// SAFETY: as above.
unsafe impl Sync for Transport {}

impl Transport {
    /// Calls the plugin's entry point and reads what it has set.
    pub(crate) fn init(plugin: Plugin, layout: Layout) -> Result<Transport> {
        let raw = plugin.init(layout.api_version())?;
        plugin.set_idle(false);
        // SAFETY: nvshmemt_init has succeeded, so `raw` is a transport of the layout that belongs
        // to the api_version it was given.
        let (table, declared) = unsafe {
            let declared = in_layout!(layout, raw, t => Declared {
                attr: (*t).attr,
                n_devices: (*t).n_devices,
                no_proxy: (*t).no_proxy != 0,
                initialized: (*t).is_successfully_initialized != 0,
                atomics_complete_on_quiet: (*t).atomics_complete_on_quiet != 0,
                max_op_len: match (*t).max_op_len { 0 => u64::MAX, len => len },
            });
            (Table::read(layout, raw), declared)
        };
        table.check()?;
        Ok(Transport {
            layout,
            raw,
            table,
            declared,
            cap: Box::default(),
            maps: [Map::new(&[]), Map::new(&[])],
            finalized: AtomicBool::new(false),
            plugin,
        })
    }

    /// What the plugin knows it by.
    pub(crate) fn raw(&self) -> *mut c::nvt_transport {
        self.raw
    }

    /// Its functions, for calls that no sound host makes.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn declared(&self) -> &Declared {
        &self.declared
    }

    /// Fills the host's fields, as the host does once the plugin's entry point has returned.
    pub(crate) fn fill(&mut self, given: Given, bootstrap: &Bootstrap) {
        self.cap = vec![0; given.n_pes as usize].into();
        let cap = self.cap.as_mut_ptr();
        if let Some(UserChunk { heap, user, len, is_host }) = given.user_mapped {
            self.maps[0] = Map::new(&[Entry { key: heap, value: user }]);
            if is_host {
                self.maps[1] = Map::new(&[Entry { key: heap, value: len }]);
            }
        }
        let [alias, egm] = &mut self.maps;
        let (alias, egm) = (alias.as_ptr(), egm.as_ptr());
        // SAFETY: `raw` is a transport of this layout, and no other thread knows it yet. In a
        // layout without the maps, nothing beyond its last field is written.
        unsafe {
            in_layout!(self.layout, self.raw, t => {
                (*t).boot_handle = bootstrap.handle();
                (*t).heap_base = given.heap_base.cast();
                (*t).log2_cumem_granularity = u64::from(given.log2_granularity);
                (*t).cap = cap;
                (*t).index = TRANSPORT_INDEX;
                (*t).my_pe = given.my_pe as i32;
                (*t).n_pes = given.n_pes as i32;
                (*t).cache_handle = std::ptr::without_provenance_mut(POISON as usize);
                (*t).max_op_len = self.declared.max_op_len;
            });
            // 3a has no maps; 3.8 leaves them NULL unless the heap is its dynamic one.
            match self.layout {
                Layout::V3a => {}
                Layout::V3b => {
                    let t = self.raw.cast::<c::nvt_transport_3b>();
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                }
                Layout::V4 | Layout::V5 => {
                    let t = self.raw.cast::<c::nvt_transport_4>();
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                }
                Layout::V6 => {
                    let t = self.raw.cast::<c::nvt_transport_6>();
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                }
                Layout::V7 if given.dynamic_heap => {
                    let t = self.raw.cast::<c::nvt_transport_7>();
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                }
                Layout::V7 => {}
            }
        }
    }

    /// Asks whether a PE can be reached, and notes the answer for the plugin.
    pub(crate) fn can_reach_peer(&mut self, mut peer: c::nvt_pe_info) -> Result<i32> {
        let f = self.table.can_reach_peer.ok_or_else(|| missing("can_reach_peer"))?;
        let pe = peer.pe;
        let mut access = 0;
        // SAFETY: the transport is filled, and both pointers are to locals.
        let status = unsafe { f(&raw mut access, &raw mut peer, self.raw) };
        check(status, || format!("can_reach_peer for PE {pe}"))?;
        if let Some(cap) = usize::try_from(pe).ok().and_then(|pe| self.cap.get_mut(pe)) {
            *cap = access;
        }
        Ok(access)
    }

    /// Directories of the NICs that the plugin offers to the host.
    pub(crate) fn device_paths(&self) -> Result<Vec<String>> {
        // SAFETY: `raw` is a transport of this layout.
        let paths = unsafe { in_layout!(self.layout, self.raw, t => (*t).device_pci_paths) };
        let n = usize::try_from(self.declared.n_devices)
            .map_err(|_| Error::Plugin(format!("n_devices is {}", self.declared.n_devices)))?;
        if n > 0 && paths.is_null() {
            return Err(Error::Plugin(format!("{n} devices without device_pci_paths")));
        }
        (0..n)
            .map(|i| {
                // SAFETY: the plugin keeps as many paths as it has said there are.
                let path = unsafe { *paths.add(i) };
                if path.is_null() {
                    return Err(Error::Plugin(format!("device_pci_paths[{i}] is NULL")));
                }
                // SAFETY: each is a C string of the plugin's.
                let path = unsafe { std::ffi::CStr::from_ptr(path) };
                Ok(path.to_string_lossy().into_owned())
            })
            .collect()
    }

    /// Connects to all PEs. `devices` are the NICs chosen; none when the plugin manages them.
    pub(crate) fn connect(&self, devices: &[i32]) -> Result<()> {
        let mut own = [-1];
        let mut devices = devices.to_vec();
        let devices: &mut [i32] = match (self.layout.major(), devices.is_empty()) {
            (Major::V7, true) => &mut [],
            (_, true) => &mut own,
            (_, false) => &mut devices,
        };
        let (ids, n) = match devices.len() {
            0 => (std::ptr::null_mut(), 0),
            n => (devices.as_mut_ptr(), n as i32),
        };
        let status = match self.table.connect {
            Connect::Three(f) => {
                let f = f.ok_or_else(|| missing("connect_endpoints"))?;
                // SAFETY: the transport is filled; the array outlives the call.
                unsafe { f(self.raw, ids, n) }
            }
            Connect::Five(f) => {
                let f = f.ok_or_else(|| missing("connect_endpoints"))?;
                // SAFETY: as above; the first call asks for no queue pairs.
                unsafe { f(self.raw, ids, n, std::ptr::null_mut(), 0) }
            }
        };
        check(status, || "connect_endpoints".to_string())
    }

    /// Asks for more queue pairs, as `nvshmemx_qp_create` does. Returns what the plugin has put in
    /// the array of indices, which held 1 in each place.
    pub(crate) fn create_qps(&self, n: usize) -> Result<Vec<i32>> {
        let Connect::Five(f) = self.table.connect else {
            let text = format!("layout {} has no queue pairs to create", self.layout);
            return Err(Error::Usage(text));
        };
        let f = f.ok_or_else(|| missing("connect_endpoints"))?;
        let mut out = vec![1; n];
        // SAFETY: the array outlives the call and is as long as it says.
        let status = unsafe { f(self.raw, std::ptr::null_mut(), 0, out.as_mut_ptr(), n as i32) };
        check(status, || format!("connect_endpoints for {n} queue pairs"))?;
        Ok(out)
    }

    /// Registers memory.
    pub(crate) fn get_mem_handle(
        &self,
        start: *mut u8,
        len: u64,
        local_only: bool,
    ) -> Result<Box<c::nvt_mem_handle>> {
        let mut handle = Box::<c::nvt_mem_handle>::default();
        let out = &raw mut *handle;
        let status = match self.table.get_mem_handle {
            GetMemHandle::WithHandleIn(f) => {
                let f = f.ok_or_else(|| missing("get_mem_handle"))?;
                // The host passes a handle of a CUDA allocation for its heap. No plugin for
                // libfabric may look at it.
                let cuda = if local_only { 0 } else { POISON as usize };
                let handle_in = std::ptr::without_provenance_mut(cuda);
                // SAFETY: see `flag_in_word`.
                let f = unsafe { std::mem::transmute::<WithHandleIn<bool>, WithHandleIn<u64>>(f) };
                let flag = flag_in_word(local_only);
                // SAFETY: the memory is mapped and stays so until the handle is released.
                unsafe { f(out, handle_in, start.cast(), len as usize, self.raw, flag) }
            }
            GetMemHandle::Short(f) if self.layout == Layout::V3b => {
                let f = f.ok_or_else(|| missing("get_mem_handle"))?;
                // SAFETY: see `flag_in_word`.
                let f = unsafe { std::mem::transmute::<Short<bool>, Short<u64>>(f) };
                // SAFETY: as above.
                unsafe { f(out, start.cast(), len as usize, self.raw, flag_in_word(local_only)) }
            }
            GetMemHandle::Short(f) => {
                let f = f.ok_or_else(|| missing("get_mem_handle"))?;
                // SAFETY: as above.
                unsafe { f(out, start.cast(), len as usize, self.raw, local_only) }
            }
        };
        check(status, || format!("get_mem_handle for {len} bytes at {start:p}"))?;
        if handle.bytes.iter().all(|b| *b == 0) {
            return Err(Error::Plugin("a handle that is all zero means none".into()));
        }
        Ok(handle)
    }

    /// Ends a registration.
    pub(crate) fn release_mem_handle(&self, handle: &c::nvt_mem_handle) -> Result<()> {
        let Some(f) = self.table.release_mem_handle else { return Ok(()) };
        let mut copy = *handle;
        // SAFETY: the handle is what get_mem_handle returned, and is released once.
        check(unsafe { f(&raw mut copy, self.raw) }, || "release_mem_handle".to_string())
    }

    /// One RMA call. `more`: another follows at once, which layouts 6 and 7 can tell the plugin.
    ///
    /// # Safety
    /// What the local side points to is valid for the length, until the operation is complete.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
    pub(crate) unsafe fn rma(
        &self,
        pe: u32,
        verb: c::nvt_rma_verb,
        remote: *mut c::nvt_rma_memdesc,
        local: *mut c::nvt_rma_memdesc,
        bytes: c::nvt_rma_bytesdesc,
        qp: i32,
        Hint { more, region }: Hint,
    ) -> i32 {
        let flags = if more { c::NVT_OP_FLAG_MORE_FOLLOWS } else { c::NVT_OP_FLAG_NONE } as u32;
        let pe = pe as i32;
        // SAFETY: the caller vouches for the memory; the descriptors outlive the call.
        unsafe {
            match (&self.table.hints, self.table.rma) {
                (Hints::Six(Some(f)), _) => {
                    let attrs = c::nvt_op_attrs_6 { flags };
                    f(self.raw, pe, verb, remote, local, bytes, qp, &raw const attrs)
                }
                (Hints::Seven(Some(f)), _) => {
                    let (hints, issuer_id) = match region {
                        0 => (0, 0),
                        _ => (c::NVT_REGION_HINT_BATCH_RMA as u32, ISSUER),
                    };
                    let attrs = c::nvt_op_attrs_7 { flags, hints, issuer_id, region_id: region };
                    f(self.raw, pe, verb, remote, local, bytes, qp, &raw const attrs)
                }
                (_, Some(f)) => f(self.raw, pe, verb, remote, local, bytes, qp),
                (_, None) => c::NVT_STATUS_INTERNAL,
            }
        }
    }

    /// One atomic operation.
    ///
    /// # Safety
    /// The return location of a fetching operation is valid until it is complete.
    pub(crate) unsafe fn amo(&self, pe: u32, call: &AmoCall, qp: i32) -> i32 {
        let mut mem = call.mem;
        let bytes = c::nvt_amo_bytesdesc { name_type: POISON_INT, elembytes: call.elembytes };
        let ret = std::ptr::null_mut::<c_void>();
        let pe = pe as i32;
        // SAFETY: the caller vouches for the memory; the descriptor outlives the call.
        unsafe {
            match self.table.amo {
                Amo::Three(Some(f)) => {
                    f(self.raw, pe, ret, amo_verb_3(call), &raw mut mem, bytes, qp)
                }
                Amo::Six(Some(f)) => {
                    f(self.raw, pe, ret, amo_verb_6(call), &raw mut mem, bytes, qp)
                }
                Amo::Three(None) | Amo::Six(None) => c::NVT_STATUS_INTERNAL,
            }
        }
    }

    /// Whether this layout has a put with signal of its own.
    pub(crate) fn has_put_signal(&self) -> bool {
        !matches!(self.table.put_signal, PutSignal::None)
    }

    /// One put with signal; `remote`, `local` and `bytes` are equally long.
    ///
    /// # Safety
    /// What the local sides point to is valid until the operation is complete.
    pub(crate) unsafe fn put_signal(
        &self,
        pe: u32,
        remote: &mut [c::nvt_rma_memdesc],
        local: &mut [c::nvt_rma_memdesc],
        bytes: &mut [c::nvt_rma_bytesdesc],
        signal: &AmoCall,
        qp: i32,
    ) -> i32 {
        let verb = c::nvt_rma_verb { desc: c::NVT_OP_PUT, is_nbi: 1, ..Default::default() };
        let (begin, end) = bounds(remote);
        let remote = c::nvt_memdesc_vector { begin, end, cap: end };
        let (begin, end) = bounds(local);
        let local = c::nvt_memdesc_vector { begin, end, cap: end };
        let (begin, end) = bounds(bytes);
        let bytes = c::nvt_bytesdesc_vector { begin, end, cap: end };
        let mut sig = signal.mem;
        let width = c::nvt_amo_bytesdesc { name_type: 0, elembytes: signal.elembytes };
        let (remote, local, bytes) = (&raw const remote, &raw const local, &raw const bytes);
        let pe = pe as i32;
        // SAFETY: the caller vouches for the memory; vectors and descriptor outlive the call.
        unsafe {
            match self.table.put_signal {
                PutSignal::Four(Some(f)) => {
                    let verb_3 = c::nvt_amo_verb_3 { desc: signal.desc, ..Default::default() };
                    f(self.raw, pe, verb, remote, local, bytes, verb_3, &raw mut sig, width, qp)
                }
                PutSignal::Six(Some(f)) => {
                    let verb_6 = c::nvt_amo_verb_6 { desc: signal.desc, ..Default::default() };
                    f(self.raw, pe, verb, remote, local, bytes, verb_6, &raw mut sig, width, qp)
                }
                _ => c::NVT_STATUS_INTERNAL,
            }
        }
    }

    /// Orders what is issued to a PE later behind what was issued before. None when the plugin
    /// orders by itself.
    pub(crate) fn fence(&self, pe: u32, qp: i32) -> Option<i32> {
        // SAFETY: the transport is connected; no memory is passed.
        unsafe {
            match self.table.fence {
                Fence::Three(f) => f.map(|f| f(self.raw, pe as i32, qp)),
                Fence::Four(f) => f.map(|f| f(self.raw, pe as i32, qp, 0)),
            }
        }
    }

    /// Waits for what was issued to a PE.
    #[inline]
    pub(crate) fn quiet(&self, pe: u32, qp: i32) -> i32 {
        match self.table.quiet {
            // SAFETY: the transport is connected; no memory is passed.
            Some(f) => unsafe { f(self.raw, pe as i32, qp) },
            None => c::NVT_STATUS_INTERNAL,
        }
    }

    /// Lets the plugin work. Whether it has such a function at all.
    #[inline]
    pub(crate) fn progress(&self) -> Option<i32> {
        // SAFETY: the transport is connected; no memory is passed.
        self.table.progress.map(|f| unsafe { f(self.raw) })
    }

    /// Makes what has landed visible to the GPU.
    pub(crate) fn enforce_cst(&self) -> Result<()> {
        let Some(f) = self.table.enforce_cst else { return Ok(()) };
        // SAFETY: the transport is connected; no memory is passed.
        check(unsafe { f(self.raw) }, || "enforce_cst".to_string())
    }

    /// Lets the plugin describe itself on its output.
    pub(crate) fn show_info(&self) -> Result<()> {
        let Some(f) = self.table.show_info else { return Ok(()) };
        // SAFETY: the transport is initialised; no memory is passed.
        check(unsafe { f(self.raw, 0) }, || "show_info".to_string())
    }

    /// Flushes a region of held operations (layout 7), where the plugin has it.
    pub(crate) fn region_flush(&self, role: i32, issuer: u64, region: u64) -> Result<()> {
        let Some(f) = self.table.region_flush else { return Ok(()) };
        // SAFETY: the transport is connected; no memory is passed.
        check(unsafe { f(self.raw, role, issuer, region) }, || "region_flush".to_string())
    }

    /// Ends the transport, once. The plugin frees it.
    pub(crate) fn finalize(&self) -> Result<()> {
        if self.finalized.swap(true, Ordering::AcqRel) || !self.declared.initialized {
            return Ok(());
        }
        let f = self.table.finalize.ok_or_else(|| missing("finalize"))?;
        // SAFETY: called once; `raw` is not used afterwards, since all users are gone: the caller
        // owns the transport or is its only holder.
        let status = unsafe { f(self.raw) };
        self.plugin.set_idle(true);
        check(status, || "finalize".to_string())
    }
}

/// Layout 3a's `get_mem_handle`, by the type of its last argument.
type WithHandleIn<F> = unsafe extern "C" fn(
    *mut c::nvt_mem_handle,
    *mut c::nvt_mem_handle,
    *mut c_void,
    usize,
    *mut c::nvt_transport,
    F,
) -> i32;

/// That of layouts 3b and later.
type Short<F> = unsafe extern "C" fn(
    *mut c::nvt_mem_handle,
    *mut c_void,
    usize,
    *mut c::nvt_transport,
    F,
) -> i32;

/// A `bool` argument as it is in its register. C's calling conventions for x86-64 and AArch64 have
/// it there as they have an integer, and say nothing of the rest of the register: the upper half is
/// what a host's compiler has left in it. Who takes the argument for a `bool` never looks there, so
/// a function that takes one may be called with this word. In layouts 3a and 3b it is easily taken
/// for a word.
fn flag_in_word(flag: bool) -> u64 {
    POISON << 32 | u64::from(flag)
}

/// Begin and end of a C++ vector; an empty one is two null pointers.
fn bounds<T>(slice: &mut [T]) -> (*mut T, *mut T) {
    if slice.is_empty() {
        return (std::ptr::null_mut(), std::ptr::null_mut());
    }
    let range = slice.as_mut_ptr_range();
    (range.start, range.end)
}

fn amo_verb_3(call: &AmoCall) -> c::nvt_amo_verb_3 {
    c::nvt_amo_verb_3 {
        desc: call.desc,
        is_fetch: POISON_INT,
        is_val: POISON_INT,
        is_cmp: POISON_INT,
    }
}

fn amo_verb_6(call: &AmoCall) -> c::nvt_amo_verb_6 {
    c::nvt_amo_verb_6 {
        desc: call.desc,
        is_fetch: POISON_INT,
        is_val: POISON_INT,
        is_cmp: POISON_INT,
        is_float: i32::from(call.is_float),
    }
}
