//! The plugin's transport, reached through the layout that the host of that version has.
//!
//! Everything that differs between the layouts is here: where fields are, which shape a function
//! has, what is passed for what the version does not know. The rest of the crate calls methods.

use std::ffi::c_void;
use std::ptr::null_mut;

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Error, Result, check};
use crate::host::maps::Map;
use crate::host::plugin::Plugin;
use crate::pe::bootstrap::Bootstrap;

/// Put into what a host leaves uninitialised, so that a plugin that reads it is noticed.
pub(crate) const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// [`POISON`] as an `int`.
pub(crate) const POISON_INT: i32 = POISON as u32 as i32;

/// Slot of the transport in the host's table.
const TRANSPORT_INDEX: i32 = 1;

const SUCCESS: i32 = c::NVT_STATUS_SUCCESS;
/// The status of a function that is not there, which [`Transport::init`] has refused.
const MISSING: i32 = c::NVT_STATUS_INTERNAL;

/// The host's number for itself where it flushes regions.
const ISSUER: u64 = 1;

/// Evaluates `$body` with `$t` bound to a pointer to the transport of its own layout's type, of
/// these layouts; others get `$rest`.
///
/// The place is a raw pointer dereference: the caller states why it may be.
macro_rules! of_layouts {
    ($layout:expr, $raw:expr, $t:ident => $body:expr, $($pattern:pat => $type:ident),+ ; $($rest:tt)*) => {
        match $layout {
            $($pattern => {
                let $t = $raw.cast::<c::$type>();
                $body
            })+
            $($rest)*
        }
    };
}

/// As [`of_layouts!`], of all of them.
macro_rules! in_layout {
    ($layout:expr, $raw:expr, $t:ident => $body:expr) => {
        of_layouts!($layout, $raw, $t => $body,
            Layout::V3a => nvt_transport_3a, Layout::V3b => nvt_transport_3b,
            Layout::V4 | Layout::V5 => nvt_transport_4, Layout::V6 => nvt_transport_6,
            Layout::V7 => nvt_transport_7;)
    };
}

/// As [`of_layouts!`], of those from 4 on.
macro_rules! since_4 {
    ($self:ident, $t:ident => $body:expr; $($rest:tt)*) => {
        of_layouts!($self.layout, $self.raw, $t => $body,
            Layout::V4 | Layout::V5 => nvt_transport_4, Layout::V6 => nvt_transport_6,
            Layout::V7 => nvt_transport_7; $($rest)*)
    };
}

/// Calls a function of one layout's table; none if the plugin has not put it there.
macro_rules! call {
    ($t:ident.$name:ident($($argument:expr),*)) => {
        (*$t).host_ops.$name.map(|function| function($($argument),*))
    };
    ($self:ident, $type:ident.$name:ident($($argument:expr),*)) => {{
        let t = $self.raw.cast::<c::$type>();
        call!(t.$name($($argument),*))
    }};
}

/// What the host says of the call after an `rma` (layouts 6 and 7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    /// Another follows at once, from the same thread.
    pub(crate) more: bool,
    /// The region it belongs to, from 1 on; none is 0.
    pub(crate) region: u64,
}

/// What the plugin has set in its transport.
#[derive(Clone, Copy, Debug)]
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

/// The sides and lengths of an operation, as the interface has them.
pub(crate) type Sides<'a> =
    (&'a mut [c::nvt_rma_memdesc], &'a mut [c::nvt_rma_memdesc], &'a mut [c::nvt_rma_bytesdesc]);

/// A transport between the plugin's `nvshmemt_init` and its `finalize`.
///
/// # Threads
/// The host's rule: user threads for registration and operations with queue pair 0, the proxy
/// thread for those with another, both at once. The plugin is made for it.
#[derive(Debug)]
pub(crate) struct Transport {
    layout: Layout,
    raw: *mut c::nvt_transport,
    declared: Declared,
    /// `cap` of the transport: one entry per PE, never moved while the transport lives.
    cap: Box<[i32]>,
    /// `alias_va_map` and `egm_map`: the user's own address, and the length, of users' buffers in
    /// the heap, the latter where they are host memory.
    maps: [Map; 2],
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
        let declared = unsafe {
            in_layout!(layout, raw, t => {
                let ops = (*t).host_ops;
                // The host calls these without a look whether they are there.
                let needed = [
                    ("can_reach_peer", ops.can_reach_peer.is_some()),
                    ("connect_endpoints", ops.connect_endpoints.is_some()),
                    ("get_mem_handle", ops.get_mem_handle.is_some()),
                    ("finalize", ops.finalize.is_some()),
                    ("rma", ops.rma.is_some()),
                    ("amo", ops.amo.is_some()),
                    ("quiet", ops.quiet.is_some()),
                ];
                if let Some((name, _)) = needed.iter().find(|(_, is_there)| !is_there) {
                    let text = format!("{name} is NULL, and NVSHMEM calls it");
                    return Err(Error::Plugin(text));
                }
                Declared {
                    attr: (*t).attr,
                    n_devices: (*t).n_devices,
                    no_proxy: (*t).no_proxy != 0,
                    initialized: (*t).is_successfully_initialized != 0,
                    atomics_complete_on_quiet: (*t).atomics_complete_on_quiet != 0,
                    max_op_len: match (*t).max_op_len { 0 => u64::MAX, len => len },
                }
            })
        };
        let maps = [Map::new(None), Map::new(None)];
        Ok(Transport { layout, raw, declared, cap: Box::default(), maps, plugin })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn declared(&self) -> Declared {
        self.declared
    }

    /// Fills the host's fields, as the host does once the plugin's entry point has returned.
    pub(crate) fn fill(&mut self, given: Given, bootstrap: &Bootstrap) {
        self.cap = vec![0; given.n_pes as usize].into();
        let cap = self.cap.as_mut_ptr();
        if let Some(UserChunk { heap, user, len, is_host }) = given.user_mapped {
            self.maps = [Map::new(Some((heap, user))), Map::new(is_host.then_some((heap, len)))];
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
                Layout::V7 if !given.dynamic_heap => {}
                layout => of_layouts!(layout, self.raw, t => {
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                },
                Layout::V3b => nvt_transport_3b, Layout::V4 | Layout::V5 => nvt_transport_4,
                Layout::V6 => nvt_transport_6, Layout::V7 => nvt_transport_7; Layout::V3a => {}),
            }
        }
    }

    /// Asks whether a PE can be reached, and notes the answer for the plugin.
    pub(crate) fn can_reach_peer(&mut self, mut peer: c::nvt_pe_info) -> Result<i32> {
        let (pe, mut access) = (peer.pe, 0);
        // SAFETY: the transport is filled, and both pointers are to locals.
        let status = unsafe { self.raw_can_reach_peer(&raw mut access, &raw mut peer) };
        check(status, || format!("can_reach_peer for PE {pe}"))?;
        self.cap[pe as usize] = access;
        Ok(access)
    }

    /// # Safety
    /// The pointers are to an answer and a PE, or NULL.
    pub(crate) unsafe fn raw_can_reach_peer(
        &self,
        access: *mut i32,
        peer: *mut c::nvt_pe_info,
    ) -> i32 {
        // SAFETY: by contract; `raw` is a transport of this layout, as in all that follows.
        let status = unsafe {
            in_layout!(self.layout, self.raw, t => call!(t.can_reach_peer(access, peer, self.raw)))
        };
        status.unwrap_or(MISSING)
    }

    /// Number of NICs that the plugin offers to the host, each with its directory.
    pub(crate) fn n_devices(&self) -> Result<usize> {
        // SAFETY: `raw` is a transport of this layout.
        let paths = unsafe { in_layout!(self.layout, self.raw, t => (*t).device_pci_paths) };
        let n = self.declared.n_devices;
        // SAFETY: the plugin keeps as many paths as it has said there are.
        let named = (0..n.max(0) as usize)
            .all(|i| !paths.is_null() && unsafe { !(*paths.add(i)).is_null() });
        match usize::try_from(n) {
            Ok(n) if named => Ok(n),
            _ => Err(Error::Plugin(format!("{n} devices, and not as many device_pci_paths"))),
        }
    }

    /// Connects to all PEs. `devices` are the NICs chosen; none when the plugin manages them.
    pub(crate) fn connect(&self, devices: &[i32]) -> Result<()> {
        let mut devices = devices.to_vec();
        if devices.is_empty() && self.layout.major() != Major::V7 {
            devices.push(-1);
        }
        let (ids, n) = match devices.len() {
            0 => (null_mut(), 0),
            n => (devices.as_mut_ptr(), n as i32),
        };
        self.connect_endpoints(ids, n, &mut [])
    }

    /// Asks for more queue pairs, as `nvshmemx_qp_create` does. Returns what the plugin has put in
    /// the array of indices, which held 1 in each place.
    pub(crate) fn create_qps(&self, n: usize) -> Result<Vec<i32>> {
        let mut indices = vec![1; n];
        self.connect_endpoints(null_mut(), 0, &mut indices)?;
        Ok(indices)
    }

    fn connect_endpoints(&self, ids: *mut i32, n: i32, qps: &mut [i32]) -> Result<()> {
        let raw = self.raw;
        let (indices, n_qps) = match qps.len() {
            0 => (null_mut(), 0),
            n => (qps.as_mut_ptr(), n as i32),
        };
        // SAFETY: the transport is filled; the arrays outlive the call.
        let status = unsafe {
            since_4!(self, t => call!(t.connect_endpoints(raw, ids, n, indices, n_qps));
                Layout::V3a => call!(self, nvt_transport_3a.connect_endpoints(raw, ids, n)),
                Layout::V3b => call!(self, nvt_transport_3b.connect_endpoints(raw, ids, n)),
            )
        };
        check(status.unwrap_or(MISSING), || "connect_endpoints".to_string())
    }

    /// Registers memory.
    pub(crate) fn get_mem_handle(
        &self,
        start: *mut u8,
        len: u64,
        local_only: bool,
    ) -> Result<Box<c::nvt_mem_handle>> {
        let mut handle = Box::<c::nvt_mem_handle>::default();
        // SAFETY: the memory is mapped and stays so until the handle is released.
        let status =
            unsafe { self.raw_get_mem_handle(&raw mut *handle, start.cast(), len, local_only) };
        check(status, || format!("get_mem_handle for {len} bytes at {start:p}"))?;
        if handle.bytes.iter().all(|byte| *byte == 0) {
            return Err(Error::Plugin("a handle that is all zero means none".into()));
        }
        Ok(handle)
    }

    /// # Safety
    /// The handle may be written; the memory is mapped and stays so until the handle is released.
    pub(crate) unsafe fn raw_get_mem_handle(
        &self,
        out: *mut c::nvt_mem_handle,
        start: *mut c_void,
        len: u64,
        local_only: bool,
    ) -> i32 {
        type Three<F> = unsafe extern "C" fn(
            *mut c::nvt_mem_handle,
            *mut c::nvt_mem_handle,
            *mut c_void,
            usize,
            *mut c::nvt_transport,
            F,
        ) -> i32;
        type Short<F> = unsafe extern "C" fn(
            *mut c::nvt_mem_handle,
            *mut c_void,
            usize,
            *mut c::nvt_transport,
            F,
        ) -> i32;
        // A `bool` argument as it is in its register. C's calling conventions for x86-64 and
        // AArch64 have it there as they have an integer, and say nothing of the rest of the
        // register. In layouts 3a and 3b the function is easily taken for one that takes a word.
        let flag = POISON << 32 | u64::from(local_only);
        let (len, raw) = (len as usize, self.raw);
        // SAFETY: the caller vouches for the pointers; as above, a function that takes a bool may
        // be called with a word whose low byte is one.
        let status = unsafe {
            since_4!(self, t => call!(t.get_mem_handle(out, start, len, raw, local_only));
                Layout::V3a => {
                    let t = raw.cast::<c::nvt_transport_3a>();
                    // The host passes a handle of a CUDA allocation for its heap. No plugin for
                    // libfabric may look at it.
                    let cuda = if local_only { 0 } else { POISON as usize };
                    let cuda = std::ptr::without_provenance_mut(cuda);
                    (*t).host_ops.get_mem_handle.map(|get| {
                        let get = std::mem::transmute::<Three<bool>, Three<u64>>(get);
                        get(out, cuda, start, len, raw, flag)
                    })
                }
                Layout::V3b => {
                    let t = raw.cast::<c::nvt_transport_3b>();
                    (*t).host_ops.get_mem_handle.map(|get| {
                        let get = std::mem::transmute::<Short<bool>, Short<u64>>(get);
                        get(out, start, len, raw, flag)
                    })
                }
            )
        };
        status.unwrap_or(MISSING)
    }

    /// Ends a registration.
    pub(crate) fn release_mem_handle(&self, handle: &c::nvt_mem_handle) -> Result<()> {
        let mut copy = *handle;
        // SAFETY: the handle is what get_mem_handle returned, and is released once.
        let status = unsafe { self.raw_release_mem_handle(&raw mut copy) };
        check(status, || "release_mem_handle".to_string())
    }

    /// # Safety
    /// The handle is what get_mem_handle returned, or NULL.
    pub(crate) unsafe fn raw_release_mem_handle(&self, handle: *mut c::nvt_mem_handle) -> i32 {
        // SAFETY: by contract.
        let status = unsafe {
            in_layout!(self.layout, self.raw, t => call!(t.release_mem_handle(handle, self.raw)))
        };
        status.unwrap_or(SUCCESS)
    }

    /// One RMA call.
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
        let (raw, to) = (self.raw, pe as i32);
        let (attrs_6, attrs_7) = match region {
            0 => (c::nvt_op_attrs_6 { flags }, c::nvt_op_attrs_7 { flags, ..Default::default() }),
            region_id => {
                let hints = c::NVT_REGION_HINT_BATCH_RMA as u32;
                let attrs_7 = c::nvt_op_attrs_7 { flags, hints, issuer_id: ISSUER, region_id };
                (c::nvt_op_attrs_6 { flags }, attrs_7)
            }
        };
        let (attrs_6, attrs_7) = (&raw const attrs_6, &raw const attrs_7);
        // SAFETY: the caller vouches for the memory; the descriptors outlive the call.
        unsafe {
            let hinted = match self.layout {
                Layout::V6 => {
                    let t = raw.cast::<c::nvt_transport_6>();
                    call!(t.rma_with_hints(raw, to, verb, remote, local, bytes, qp, attrs_6))
                }
                Layout::V7 => {
                    let t = raw.cast::<c::nvt_transport_7>();
                    call!(t.rma_with_hints(raw, to, verb, remote, local, bytes, qp, attrs_7))
                }
                _ => None,
            };
            hinted.unwrap_or_else(|| self.plain_rma(to, verb, remote, local, bytes, qp))
        }
    }

    /// The call of layouts 3 to 5, which later ones have as well.
    ///
    /// # Safety
    /// As [`Transport::rma`].
    pub(crate) unsafe fn plain_rma(
        &self,
        pe: i32,
        verb: c::nvt_rma_verb,
        remote: *mut c::nvt_rma_memdesc,
        local: *mut c::nvt_rma_memdesc,
        bytes: c::nvt_rma_bytesdesc,
        qp: i32,
    ) -> i32 {
        let raw = self.raw;
        // SAFETY: by contract.
        let status = unsafe {
            in_layout!(self.layout, raw, t => call!(t.rma(raw, pe, verb, remote, local, bytes, qp)))
        };
        status.unwrap_or(MISSING)
    }

    /// One atomic operation. `mem`: a descriptor other than the call's own, such as NULL.
    ///
    /// # Safety
    /// The return location of a fetching operation is valid until it is complete.
    pub(crate) unsafe fn amo(
        &self,
        pe: u32,
        call: &AmoCall,
        qp: i32,
        mem: Option<*mut c::nvt_amo_memdesc>,
    ) -> i32 {
        let AmoCall { desc, is_float, elembytes, mem: mut own } = *call;
        let mem = mem.unwrap_or(&raw mut own);
        let bytes = c::nvt_amo_bytesdesc { name_type: POISON_INT, elembytes };
        let [is_fetch, is_val, is_cmp] = [POISON_INT; 3];
        let (raw, pe, ret) = (self.raw, pe as i32, null_mut());
        let verb_3 = c::nvt_amo_verb_3 { desc, is_fetch, is_val, is_cmp };
        let is_float = i32::from(is_float);
        let verb_6 = c::nvt_amo_verb_6 { desc, is_fetch, is_val, is_cmp, is_float };
        // SAFETY: the caller vouches for the memory; the descriptor outlives the call.
        let status = unsafe {
            of_layouts!(self.layout, raw, t => call!(t.amo(raw, pe, ret, verb_3, mem, bytes, qp)),
                Layout::V3a => nvt_transport_3a, Layout::V3b => nvt_transport_3b,
                Layout::V4 | Layout::V5 => nvt_transport_4;
                Layout::V6 => call!(self, nvt_transport_6.amo(raw, pe, ret, verb_6, mem, bytes, qp)),
                Layout::V7 => call!(self, nvt_transport_7.amo(raw, pe, ret, verb_6, mem, bytes, qp)),
            )
        };
        status.unwrap_or(MISSING)
    }

    /// Whether this layout has a put with signal of its own.
    pub(crate) fn has_put_signal(&self) -> bool {
        self.layout >= Layout::V4
    }

    /// One put with signal.
    ///
    /// # Safety
    /// What the local sides point to is valid until the operation is complete.
    pub(crate) unsafe fn put_signal(
        &self,
        pe: u32,
        (remote, local, bytes): Sides<'_>,
        signal: &AmoCall,
        qp: i32,
    ) -> i32 {
        let vectors = Vectors::of(remote, local, bytes);
        let mut mem = signal.mem;
        // SAFETY: the caller vouches for the memory; vectors and descriptor outlive the call.
        unsafe { self.raw_put_signal(pe, vectors.pointers(), signal, &raw mut mem, qp) }
    }

    /// # Safety
    /// As [`Transport::put_signal`]; pointers are NULL where the plugin is to refuse that.
    pub(crate) unsafe fn raw_put_signal(
        &self,
        pe: u32,
        (remote, local, bytes): Pointers,
        signal: &AmoCall,
        mem: *mut c::nvt_amo_memdesc,
        qp: i32,
    ) -> i32 {
        let verb = c::nvt_rma_verb { desc: c::NVT_OP_PUT, is_nbi: 1, ..Default::default() };
        let width = c::nvt_amo_bytesdesc { name_type: 0, elembytes: signal.elembytes };
        let (raw, desc, pe) = (self.raw, signal.desc, pe as i32);
        let verb_3 = c::nvt_amo_verb_3 { desc, ..Default::default() };
        let verb_6 = c::nvt_amo_verb_6 { desc, ..Default::default() };
        // SAFETY: by contract.
        let status = unsafe {
            of_layouts!(self.layout, raw, t => call!(t.put_signal(
                raw, pe, verb, remote, local, bytes, verb_6, mem, width, qp)),
                Layout::V6 => nvt_transport_6, Layout::V7 => nvt_transport_7;
                Layout::V4 | Layout::V5 => call!(self, nvt_transport_4.put_signal(
                    raw, pe, verb, remote, local, bytes, verb_3, mem, width, qp)),
                Layout::V3a | Layout::V3b => None,
            )
        };
        status.unwrap_or(MISSING)
    }

    /// Orders what is issued to a PE later behind what was issued before.
    pub(crate) fn fence(&self, pe: u32, qp: i32) -> i32 {
        // SAFETY: the transport is connected; no memory is passed.
        let (raw, pe) = (self.raw, pe as i32);
        let status = unsafe {
            since_4!(self, t => call!(t.fence(raw, pe, qp, 0));
                Layout::V3a => call!(self, nvt_transport_3a.fence(raw, pe, qp)),
                Layout::V3b => call!(self, nvt_transport_3b.fence(raw, pe, qp)),
            )
        };
        // A plugin without it orders by itself.
        status.unwrap_or(SUCCESS)
    }

    /// Waits for what was issued to a PE.
    #[inline]
    pub(crate) fn quiet(&self, pe: u32, qp: i32) -> i32 {
        let raw = self.raw;
        // SAFETY: the transport is connected; no memory is passed.
        let status =
            unsafe { in_layout!(self.layout, raw, t => call!(t.quiet(raw, pe as i32, qp))) };
        status.unwrap_or(MISSING)
    }

    /// Lets the plugin work; none if it has no such function.
    #[inline]
    pub(crate) fn progress(&self) -> Option<i32> {
        // SAFETY: the transport is connected; no memory is passed.
        unsafe { in_layout!(self.layout, self.raw, t => call!(t.progress(self.raw))) }
    }

    /// Makes what has landed visible to the GPU.
    pub(crate) fn enforce_cst(&self) -> i32 {
        // SAFETY: the transport is connected; no memory is passed.
        let status =
            unsafe { in_layout!(self.layout, self.raw, t => call!(t.enforce_cst(self.raw))) };
        status.unwrap_or(SUCCESS)
    }

    /// Lets the plugin describe itself on its output.
    pub(crate) fn show_info(&self) -> Result<()> {
        // SAFETY: the transport is initialised; no memory is passed.
        let status =
            unsafe { in_layout!(self.layout, self.raw, t => call!(t.show_info(self.raw, 0))) };
        check(status.unwrap_or(SUCCESS), || "show_info".to_string())
    }

    /// Flushes a region of operations (layout 7); nothing where there are none.
    pub(crate) fn region_flush(&self, role: i32, region: u64) -> Result<()> {
        if self.layout != Layout::V7 {
            return Ok(());
        }
        // SAFETY: the transport is connected; no memory is passed.
        let status =
            unsafe { call!(self, nvt_transport_7.region_flush(self.raw, role, ISSUER, region)) };
        check(status.unwrap_or(SUCCESS), || "region_flush".to_string())
    }

    /// Ends the transport. The plugin frees it.
    pub(crate) fn finalize(self) -> Result<()> {
        if !self.declared.initialized {
            return Ok(());
        }
        let raw = self.raw;
        // SAFETY: `raw` is not used afterwards: the caller owns the transport.
        let status = unsafe { in_layout!(self.layout, raw, t => call!(t.finalize(raw))) };
        self.plugin.set_idle(true);
        check(status.unwrap_or(MISSING), || "finalize".to_string())
    }
}

/// Pointers to the vectors of a put with signal.
pub(crate) type Pointers =
    (*const c::nvt_memdesc_vector, *const c::nvt_memdesc_vector, *const c::nvt_bytesdesc_vector);

/// The C++ vectors of a put with signal.
pub(crate) struct Vectors {
    pub(crate) remote: c::nvt_memdesc_vector,
    pub(crate) local: c::nvt_memdesc_vector,
    pub(crate) bytes: c::nvt_bytesdesc_vector,
}

impl Vectors {
    pub(crate) fn of(
        remote: &mut [c::nvt_rma_memdesc],
        local: &mut [c::nvt_rma_memdesc],
        bytes: &mut [c::nvt_rma_bytesdesc],
    ) -> Vectors {
        /// Begin and end; an empty vector is two null pointers.
        fn bounds<T>(slice: &mut [T]) -> (*mut T, *mut T) {
            let range = slice.as_mut_ptr_range();
            if slice.is_empty() { (null_mut(), null_mut()) } else { (range.start, range.end) }
        }
        let (remote, local, bytes) = (bounds(remote), bounds(local), bounds(bytes));
        Vectors {
            remote: c::nvt_memdesc_vector { begin: remote.0, end: remote.1, cap: remote.1 },
            local: c::nvt_memdesc_vector { begin: local.0, end: local.1, cap: local.1 },
            bytes: c::nvt_bytesdesc_vector { begin: bytes.0, end: bytes.1, cap: bytes.1 },
        }
    }

    pub(crate) fn pointers(&self) -> Pointers {
        (&raw const self.remote, &raw const self.local, &raw const self.bytes)
    }
}
