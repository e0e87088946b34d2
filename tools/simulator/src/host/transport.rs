//! The plugin's transport, reached through the layout that the host of that version has: where
//! fields are, which shape a function has, what is passed for what the version does not know. Each
//! such place matches every layout by name, so that the compiler finds it when there is a new one;
//! it does not find the guard of `Transport::fill` for layout 7.

use std::ffi::c_void;
use std::ptr::null_mut;

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Result, check, error};
use crate::host::maps::Map;
use crate::host::ops::PlannedAmo;
use crate::host::plugin::Plugin;
use crate::memory::device_memory::{MemoryKind, UserMapped};
use crate::memory::local::Mapping;
use crate::pe::job::Job;

/// Put into what a host leaves uninitialised, so that a plugin that reads it is noticed.
pub(crate) const POISON: u64 = 0xa5a5_a5a5_a5a5_a5a5;
pub(crate) const POISON_INT: i32 = POISON as u32 as i32;

const TRANSPORT_INDEX: i32 = 1;

const SUCCESS: i32 = c::NVT_STATUS_SUCCESS;
/// The status of a function that is not there.
const MISSING: i32 = c::NVT_STATUS_INTERNAL;

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
    pub(crate) layout: Layout,
    raw: *mut c::nvt_transport,
    pub(crate) max_op_len: u64,
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

/// Functions of one shape in all layouts, and the status where the plugin has none.
macro_rules! entries {
    ($($name:ident = $field:ident(
        $($before:ident: $before_type:ty),* ; raw $(, $after:ident: $after_type:ty)*
    ) else $missing:expr;)*) => {$(
        /// # Safety
        /// As the interface has it, or arguments that the plugin is to refuse.
        #[inline]
        pub(crate) unsafe fn $name(
            &self
            $(, $before: $before_type)*
            $(, $after: $after_type)*
        ) -> i32 {
            let raw = self.raw;
            // SAFETY: `raw` is a transport of this layout; the rest is the caller's promise.
            let status = unsafe {
                in_layout!(self.layout, raw, t => call!(t.$field($($before,)* raw $(, $after)*)))
            };
            status.unwrap_or($missing)
        }
    )*};
}

/// The table's functions, as they are.
#[allow(clippy::too_many_arguments, reason = "the interface's arguments")]
impl Transport {
    entries! {
        raw_reach = can_reach_peer(
            access: *mut i32, peer: *mut c::nvt_pe_info; raw) else MISSING;
        raw_release = release_mem_handle(handle: *mut c::nvt_mem_handle; raw) else SUCCESS;
        raw_rma = rma(
            ; raw, pe: i32, verb: c::nvt_rma_verb, remote: *mut c::nvt_rma_memdesc,
            local: *mut c::nvt_rma_memdesc, bytes: c::nvt_rma_bytesdesc, qp: i32) else MISSING;
        quiet = quiet(; raw, pe: i32, qp: i32) else MISSING;
        progress = progress(; raw) else SUCCESS;
        enforce_cst = enforce_cst(; raw) else SUCCESS;
        raw_show_info = show_info(; raw, style: i32) else SUCCESS;
        raw_finalize = finalize(; raw) else MISSING;
    }

    /// # Safety
    /// The transport is filled.
    unsafe fn raw_connect(&self, ids: &mut [i32], qps: &mut [i32]) -> i32 {
        fn array(of: &mut [i32]) -> (*mut i32, i32) {
            (if of.is_empty() { null_mut() } else { of.as_mut_ptr() }, of.len() as i32)
        }
        let (raw, (ids, n), (qps, n_qps)) = (self.raw, array(ids), array(qps));
        // SAFETY: by contract; the arrays outlive the call.
        let status = unsafe {
            since_4!(self, t => call!(t.connect_endpoints(raw, ids, n, qps, n_qps));
                Layout::V3a => call!(self, nvt_transport_3a.connect_endpoints(raw, ids, n)),
                Layout::V3b => call!(self, nvt_transport_3b.connect_endpoints(raw, ids, n)),
            )
        };
        status.unwrap_or(MISSING)
    }

    /// # Safety
    /// The handle may be written; the memory is mapped and stays so until the handle is released.
    unsafe fn raw_register(
        &self,
        out: *mut c::nvt_mem_handle,
        start: *mut c_void,
        len: u64,
        local_only: bool,
    ) -> i32 {
        type Handle = *mut c::nvt_mem_handle;
        type T = *mut c::nvt_transport;
        type Three<F> = unsafe extern "C" fn(Handle, Handle, *mut c_void, usize, T, F) -> i32;
        type Short<F> = unsafe extern "C" fn(Handle, *mut c_void, usize, T, F) -> i32;
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
                    // The host passes a handle of a CUDA allocation for its heap. No plugin for
                    // libfabric may look at it.
                    let cuda = if local_only { 0 } else { POISON as usize };
                    let cuda = std::ptr::without_provenance_mut(cuda);
                    (*raw.cast::<c::nvt_transport_3a>()).host_ops.get_mem_handle.map(|get| {
                        let get = std::mem::transmute::<Three<bool>, Three<u64>>(get);
                        get(out, cuda, start, len, raw, flag)
                    })
                }
                Layout::V3b => {
                    (*raw.cast::<c::nvt_transport_3b>()).host_ops.get_mem_handle.map(|get| {
                        let get = std::mem::transmute::<Short<bool>, Short<u64>>(get);
                        get(out, start, len, raw, flag)
                    })
                }
            )
        };
        status.unwrap_or(MISSING)
    }

    /// # Safety
    /// What the local side points to is valid for the length, until the operation is complete.
    #[inline]
    pub(crate) unsafe fn rma(
        &self,
        pe: u32,
        verb: c::nvt_rma_verb,
        remote: *mut c::nvt_rma_memdesc,
        local: *mut c::nvt_rma_memdesc,
        bytes: c::nvt_rma_bytesdesc,
        qp: i32,
    ) -> i32 {
        // The plugin heeds no hint.
        let (attrs_6, attrs_7) = (c::nvt_op_attrs_6::default(), c::nvt_op_attrs_7::default());
        let (raw, to, attrs_6, attrs_7) =
            (self.raw, pe as i32, &raw const attrs_6, &raw const attrs_7);
        // SAFETY: the caller vouches for the memory; the descriptors outlive the call.
        unsafe {
            let hinted = match self.layout {
                Layout::V6 => call!(
                    self,
                    nvt_transport_6
                        .rma_with_hints(raw, to, verb, remote, local, bytes, qp, attrs_6)
                ),
                Layout::V7 => call!(
                    self,
                    nvt_transport_7
                        .rma_with_hints(raw, to, verb, remote, local, bytes, qp, attrs_7)
                ),
                Layout::V3a | Layout::V3b | Layout::V4 | Layout::V5 => None,
            };
            hinted.unwrap_or_else(|| self.raw_rma(to, verb, remote, local, bytes, qp))
        }
    }

    /// # Safety
    /// The return location of a fetching operation is valid until it is complete.
    pub(crate) unsafe fn amo(&self, planned: &PlannedAmo, qp: i32) -> i32 {
        let PlannedAmo { pe, desc, is_float, elembytes, mut mem } = *planned;
        let mem = &raw mut mem;
        let bytes = c::nvt_amo_bytesdesc { name_type: POISON_INT, elembytes };
        let [is_fetch, is_val, is_cmp] = [POISON_INT; 3];
        let (raw, pe, ret, is_float) = (self.raw, pe as i32, null_mut(), i32::from(is_float));
        let verb_3 = c::nvt_amo_verb_3 { desc, is_fetch, is_val, is_cmp };
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

    pub(crate) fn fence(&self, pe: u32, qp: i32) -> i32 {
        let (raw, pe) = (self.raw, pe as i32);
        // SAFETY: the transport is connected; no memory is passed.
        let status = unsafe {
            since_4!(self, t => call!(t.fence(raw, pe, qp, 0));
                Layout::V3a => call!(self, nvt_transport_3a.fence(raw, pe, qp)),
                Layout::V3b => call!(self, nvt_transport_3b.fence(raw, pe, qp)),
            )
        };
        // A plugin without it orders by itself.
        status.unwrap_or(SUCCESS)
    }
}

impl Transport {
    pub(crate) fn init(plugin: Plugin, layout: Layout) -> Result<Transport> {
        let raw = plugin.init(layout.api_version())?;
        // SAFETY: nvshmemt_init has succeeded, so `raw` is a transport of the layout that belongs
        // to the api_version it was given.
        let (needed, max_op_len) = unsafe {
            in_layout!(layout, raw, t => {
                let wants_proxy = (*t).is_successfully_initialized != 0 && (*t).no_proxy == 0;
                let needed = [
                    ("that it is initialised and wants a proxy", wants_proxy),
                    ("endpoints in attr", (*t).attr & c::NVT_ATTR_CONNECTED != 0),
                    ("that it stores flags", (*t).atomics_complete_on_quiet == 0),
                ];
                (needed, (*t).max_op_len)
            })
        };
        if let Some((what, _)) = needed.iter().find(|(_, is_there)| !is_there) {
            return Err(error!("plugin: the transport does not say {what}"));
        }
        let max_op_len = if max_op_len == 0 { u64::MAX } else { max_op_len };
        let maps = [Map::new(None), Map::new(None)];
        Ok(Transport { layout, raw, max_op_len, cap: Box::default(), maps, plugin })
    }

    /// Fills the host's fields, as the host does once the plugin's entry point has returned.
    /// `again` is the heap's last chunk by its user's own address.
    pub(crate) fn fill(&mut self, job: &Job, heap: &Mapping, again: Option<&Mapping>) {
        self.cap = vec![0; job.n_pes() as usize].into();
        if let Some(again) = again {
            let chunk = heap.start as usize + (heap.len() - again.len()) as usize;
            let is_host = job.settings.user_mapped == Some(UserMapped::HostNuma);
            let host = is_host.then_some((chunk, again.len() as usize));
            self.maps = [Map::new(Some((chunk, again.start as usize))), Map::new(host)];
        }
        let cap = self.cap.as_mut_ptr();
        let [alias, egm] = self.maps.each_mut().map(Map::as_ptr);
        // SAFETY: `raw` is a transport of this layout, and no other thread knows it yet. In a
        // layout without the maps, nothing beyond its last field is written.
        unsafe {
            in_layout!(self.layout, self.raw, t => {
                (*t).boot_handle = job.bootstrap.handle;
                (*t).heap_base = heap.start.cast();
                (*t).log2_cumem_granularity = job.settings.chunk_bytes.trailing_zeros().into();
                (*t).cap = cap;
                (*t).index = TRANSPORT_INDEX;
                (*t).my_pe = job.pe as i32;
                (*t).n_pes = job.n_pes() as i32;
                (*t).cache_handle = std::ptr::without_provenance_mut(POISON as usize);
                (*t).max_op_len = self.max_op_len;
            });
            match self.layout {
                // 3.8 leaves the maps NULL unless the heap is its dynamic one; 3a has none.
                Layout::V7 if job.settings.memory != MemoryKind::DeviceVmm => {}
                layout => of_layouts!(layout, self.raw, t => {
                    ((*t).alias_va_map, (*t).egm_map) = (alias, egm);
                },
                Layout::V3b => nvt_transport_3b, Layout::V4 | Layout::V5 => nvt_transport_4,
                Layout::V6 => nvt_transport_6, Layout::V7 => nvt_transport_7; Layout::V3a => {}),
            }
        }
    }

    pub(crate) fn can_reach_peer(&mut self, mut peer: c::nvt_pe_info) -> Result<i32> {
        let (pe, mut access) = (peer.pe, 0);
        // SAFETY: the transport is filled, and both pointers are to locals.
        let status = unsafe { self.raw_reach(&raw mut access, &raw mut peer) };
        check(status, || format!("can_reach_peer for PE {pe}"))?;
        self.cap[pe as usize] = access;
        Ok(access)
    }

    pub(crate) fn n_devices(&self) -> Result<usize> {
        // SAFETY: `raw` is a transport of this layout.
        let (n, paths) = unsafe {
            in_layout!(self.layout, self.raw, t => ((*t).n_devices, (*t).device_pci_paths))
        };
        let n = usize::try_from(n).map_err(|_| error!("plugin: n_devices is {n}"))?;
        // SAFETY: the plugin keeps as many paths as it has said there are.
        if (0..n).any(|i| paths.is_null() || unsafe { (*paths.add(i)).is_null() }) {
            return Err(error!("plugin: {n} devices, and not as many device_pci_paths"));
        }
        Ok(n)
    }

    pub(crate) fn connect(&self, devices: &[i32]) -> Result<()> {
        let mut devices = devices.to_vec();
        match self.layout.major() {
            Major::V3 | Major::V4 | Major::V5 | Major::V6 if devices.is_empty() => devices.push(-1),
            Major::V3 | Major::V4 | Major::V5 | Major::V6 | Major::V7 => {}
        }
        // SAFETY: the transport is filled.
        let status = unsafe { self.raw_connect(&mut devices, &mut []) };
        check(status, || "connect_endpoints".to_string())
    }

    pub(crate) fn create_qps(&self, n: usize) -> Result<Vec<i32>> {
        let mut indices = vec![1; n];
        // SAFETY: the transport is filled.
        let status = unsafe { self.raw_connect(&mut [], &mut indices) };
        check(status, || format!("connect_endpoints for {n} queue pairs"))?;
        Ok(indices)
    }

    pub(crate) fn get_mem_handle(
        &self,
        start: *mut u8,
        len: u64,
        local_only: bool,
    ) -> Result<Box<c::nvt_mem_handle>> {
        let mut handle = Box::<c::nvt_mem_handle>::default();
        // SAFETY: the memory is mapped and stays so until the handle is released.
        let status = unsafe { self.raw_register(&raw mut *handle, start.cast(), len, local_only) };
        check(status, || format!("get_mem_handle for {len} bytes at {start:p}"))?;
        if handle.bytes.iter().all(|byte| *byte == 0) {
            return Err(error!("plugin: a handle that is all zero means none"));
        }
        Ok(handle)
    }

    pub(crate) fn release_mem_handle(&self, handle: *mut c::nvt_mem_handle) -> Result<()> {
        // SAFETY: the handle is what get_mem_handle returned, and is released once.
        check(unsafe { self.raw_release(handle) }, || "release_mem_handle".to_string())
    }

    pub(crate) fn has_put_signal(&self) -> bool {
        match self.layout.major() {
            Major::V3 => false,
            Major::V4 | Major::V5 | Major::V6 | Major::V7 => true,
        }
    }

    /// # Safety
    /// What the local sides point to is valid until the operation is complete.
    pub(crate) unsafe fn put_signal(
        &self,
        (remote, local, bytes): Sides<'_>,
        signal: &PlannedAmo,
        qp: i32,
    ) -> i32 {
        fn bounds<T>(slice: &mut [T]) -> (*mut T, *mut T) {
            let range = slice.as_mut_ptr_range();
            if slice.is_empty() { (null_mut(), null_mut()) } else { (range.start, range.end) }
        }
        let side = |side| {
            let (begin, end) = bounds(side);
            c::nvt_memdesc_vector { begin, end, cap: end }
        };
        let (remote, local, (begin, end)) = (side(remote), side(local), bounds(bytes));
        let bytes = c::nvt_bytesdesc_vector { begin, end, cap: end };
        let (remote, local, bytes) = (&raw const remote, &raw const local, &raw const bytes);
        let PlannedAmo { pe, desc, elembytes, mut mem, .. } = *signal;
        let verb = c::nvt_rma_verb { desc: c::NVT_OP_PUT, is_nbi: 1, ..Default::default() };
        let width = c::nvt_amo_bytesdesc { name_type: 0, elembytes };
        let (raw, pe, mem) = (self.raw, pe as i32, &raw mut mem);
        let verb_3 = c::nvt_amo_verb_3 { desc, ..Default::default() };
        let verb_6 = c::nvt_amo_verb_6 { desc, ..Default::default() };
        // SAFETY: the caller vouches for the memory; vectors and descriptor outlive the call.
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

    pub(crate) fn show_info(&self) -> Result<()> {
        // SAFETY: no memory is passed.
        check(unsafe { self.raw_show_info(0) }, || "show_info".to_string())
    }

    pub(crate) fn finalize(self) -> Result<()> {
        // SAFETY: `raw` is not used afterwards: the caller owns the transport.
        let status = unsafe { self.raw_finalize() };
        self.plugin.unload();
        check(status, || "finalize".to_string())
    }
}
