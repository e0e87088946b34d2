//! Operations on the plugin, called as NVSHMEM's host calls them from one of its two kinds of
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Result, check, error};
use crate::host::regions::{Piece, Regions};
use crate::host::transport::{POISON, POISON_INT, Sides, Transport};
use crate::memory::address::{Place, SymAddr};
use crate::memory::gpu::Gpu;
use crate::memory::local::{Local, Mapping};

const PAGE: usize = 64 << 10; // as large as those of some kernels for Arm

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) regions: Regions,
    /// None in a PE of host memory.
    pub(crate) gpu: Option<&'static Gpu>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thread {
    /// One of the user's, through NVSHMEM's host interface: queue pair 0.
    User,
    /// NVSHMEM's proxy thread, for the device: another queue pair.
    Proxy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amo {
    /// Which: `NVT_AMO_*` of [`nvshmem_abi::c`].
    pub op: i32,
    /// Width in bytes: 2, 4 or 8.
    pub bytes: i32,
    /// Operand, zero-extended; IEEE bits when `is_float`.
    pub value: u64,
    pub compare: u64,
    pub is_float: bool,
    /// For operations that fetch: 16 bytes of this PE's heap, of which the first half receives
    /// the old value and the second half the flag.
    pub fetch_to: Option<SymAddr>,
    /// For operations that fetch: what is stored in the flag after the value.
    pub flag: u64,
}

impl Amo {
    pub fn new(op: i32, bytes: i32, value: u64) -> Amo {
        Amo { op, bytes, value, compare: 0, is_float: false, fetch_to: None, flag: 0 }
    }
}

/// An atomic operation on a word of a PE's heap, ready to be issued many times.
#[derive(Clone, Copy, Debug)]
pub struct PlannedAmo {
    pub(crate) pe: u32,
    pub(crate) desc: i32,
    pub(crate) is_float: bool,
    pub(crate) elembytes: i32,
    pub(crate) mem: c::nvt_amo_memdesc,
}

// SAFETY: the pointers are to memory and handles of this PE's regions, or are addresses in another
// PE. They mean the same on every thread.
unsafe impl Send for PlannedAmo {}
// SAFETY: as above.
unsafe impl Sync for PlannedAmo {}

impl PlannedAmo {
    #[must_use]
    pub fn with_value(mut self, value: u64) -> PlannedAmo {
        self.mem.val = value;
        self
    }

    #[must_use]
    pub fn with_flag(mut self, flag: u64) -> PlannedAmo {
        self.mem.retflag = flag;
        self
    }
}

/// Operations, issued from one kind of thread. Lengths are in bytes. They fail with the plugin's
/// status, which would end a process of NVSHMEM's, or for a place that does not exist.
#[derive(Debug)]
pub struct Ops {
    pub(crate) shared: Arc<Shared>,
    thread: Thread,
    /// Whether a get was issued since the last quiet: then the host enforces consistency.
    got: AtomicBool,
    /// Memory that ends where a page ends, with a page behind it that faults.
    edge: Mutex<Mapping>,
}

impl Ops {
    pub(crate) fn new(shared: Arc<Shared>, thread: Thread) -> Result<Ops> {
        let got = AtomicBool::default();
        let edge = Mapping::new(2 * PAGE as u64, PAGE as u64)?;
        edge.forbid(PAGE)?;
        Ok(Ops { shared, thread, got, edge: Mutex::new(edge) })
    }

    pub fn n_pes(&self) -> u32 {
        self.shared.regions.heap_bases.len() as u32
    }

    pub fn pe(&self) -> u32 {
        self.shared.regions.me
    }

    pub fn layout(&self) -> Layout {
        self.shared.transport.layout
    }

    pub fn local(&self, place: impl Into<Place>, len: u64) -> Result<Local<'_>> {
        self.shared.regions.local(place.into(), len)
    }

    /// Writes to a PE's heap. From the user's thread it is the blocking call, whose source may be
    /// reused on return; from the proxy there is only [`Ops::put_nbi`].
    pub fn put(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_PUT, self.thread == Thread::Proxy, pe, to, from.into(), len)
    }

    pub fn put_nbi(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_PUT, true, pe, to, from.into(), len)
    }

    /// Reads from a PE's heap. From the user's thread the data is there on return; from the proxy
    /// there is only [`Ops::get_nbi`].
    pub fn get(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_GET, self.thread == Thread::Proxy, pe, from, to.into(), len)
    }

    pub fn get_nbi(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_GET, true, pe, from, to.into(), len)
    }

    /// Reads a small value of a PE's heap, as the device's `g` does; there after a quiet.
    pub fn g(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_G, true, pe, from, to.into(), len)
    }

    /// Writes the low `bytes` (1, 2, 4 or 8) of `value` to a PE's heap. The value is gone when
    /// the plugin returns; what follows it in memory faults.
    pub fn p(&self, pe: u32, to: SymAddr, value: u64, bytes: i32) -> Result<()> {
        let (mut remote, room) = self.shared.regions.remote(pe, to)?;
        if !matches!(bytes, 1 | 2 | 4 | 8) || room < bytes as u64 {
            return Err(error!("a P of {bytes} bytes, {room} before a border"));
        }
        let edge = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = Local::of(&edge, (PAGE - bytes as usize) as u64, bytes as u64)?;
        cell.write(&value.to_le_bytes()[..bytes as usize])?;
        let done = self.call("p", pe, || {
            let mut local = c::nvt_rma_memdesc {
                ptr: cell.as_ptr().cast(),
                offset: POISON,
                handle: std::ptr::null_mut(),
            };
            // What the host initialises of a P, and nothing else.
            let verb = c::nvt_rma_verb {
                desc: c::NVT_OP_P,
                is_nbi: 0,
                is_stream: POISON_INT,
                _pad: POISON_INT,
                cstrm: std::ptr::without_provenance_mut(POISON as usize),
            };
            let (srcstride, deststride) = (POISON as i64, POISON as i64);
            let bytes = c::nvt_rma_bytesdesc {
                nelems: 1,
                elembytes: bytes,
                _pad: POISON_INT,
                srcstride,
                deststride,
            };
            let (remote, local, t) = (&raw mut remote, &raw mut local, &self.shared.transport);
            // SAFETY: the value is valid for its bytes until this returns, which is all a P
            // promises.
            unsafe { t.rma(pe, verb, remote, local, bytes, self.qp()) }
        });
        // So that a plugin that kept its address is noticed.
        cell.set(!(value as u8))?;
        done
    }

    pub fn fence(&self) -> Result<()> {
        let skip_self = match self.layout().major() {
            Major::V3 => self.thread == Thread::Proxy,
            Major::V4 | Major::V5 | Major::V6 | Major::V7 => false,
        };
        let mut pes = (0..self.n_pes()).filter(|pe| !(skip_self && *pe == self.pe()));
        pes.try_for_each(|pe| self.fence_pe(pe))
    }

    pub fn fence_pe(&self, pe: u32) -> Result<()> {
        self.call("fence", pe, || self.shared.transport.fence(pe, self.qp()))
    }

    /// Waits until everything this kind of thread has issued is complete: at every PE, and here.
    pub fn quiet(&self) -> Result<()> {
        (0..self.n_pes()).try_for_each(|pe| self.quiet_pe(pe))?;
        if self.thread == Thread::Proxy && self.got.swap(false, Ordering::Relaxed) {
            // SAFETY: no memory is passed, to a transport that is connected; so below.
            self.call("enforce_cst", self.pe(), || unsafe { self.shared.transport.enforce_cst() })?;
        }
        Ok(())
    }

    #[inline]
    pub fn quiet_pe(&self, pe: u32) -> Result<()> {
        let qp = match (self.thread, self.layout().major()) {
            (Thread::User, _) => c::NVT_QP_HOST,
            (Thread::Proxy, Major::V3) => c::NVT_QP_DEFAULT,
            (Thread::Proxy, Major::V4 | Major::V5 | Major::V6 | Major::V7) => c::NVT_QP_ALL,
        };
        // SAFETY: see `quiet`.
        self.call("quiet", pe, || unsafe { self.shared.transport.quiet(pe as i32, qp) })
    }

    /// Lets the plugin work once. The proxy thread does so all the time; a closure that keeps it
    /// does it here.
    #[inline]
    pub fn progress(&self) -> Result<()> {
        // SAFETY: see `quiet`.
        check(unsafe { self.shared.transport.progress() }, || "progress".to_string())
    }

    /// An atomic operation on a PE's heap. NVSHMEM issues them from the proxy only.
    pub fn amo(&self, pe: u32, target: SymAddr, amo: Amo) -> Result<()> {
        self.issue_amo(&self.plan_amo(pe, target, &amo)?)
    }

    /// Writes to a PE's heap, and to its signal after that: one call of the plugin, or in layouts
    /// 3a and 3b put, fence and atomic, as their device side does it.
    pub fn put_signal(
        &self,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
        signal: SymAddr,
        amo: Amo,
    ) -> Result<()> {
        if !self.shared.transport.has_put_signal() {
            if len > 0 {
                self.put_nbi(pe, to, from, len)?;
            }
            self.fence()?;
            return self.amo(pe, signal, amo);
        }
        let signal = self.plan_amo(pe, signal, &amo)?;
        let pieces = if len > 0 { self.plan(pe, to, from, len)? } else { Vec::new() };
        let mut remote: Vec<_> = pieces.iter().map(|piece| piece.remote).collect();
        let mut local: Vec<_> = pieces.iter().map(|piece| piece.local).collect();
        let mut bytes: Vec<_> = pieces.iter().map(|piece| bytes_of(piece.len)).collect();
        self.signalled((&mut remote, &mut local, &mut bytes), &signal)
    }

    /// Cuts a transfer into the pieces that [`Ops::issue_put`] and [`Ops::issue_get`] take: a loop
    /// that measures neither looks chunks up nor allocates.
    pub fn plan(
        &self,
        pe: u32,
        remote: SymAddr,
        local: impl Into<Place>,
        len: u64,
    ) -> Result<Vec<Piece>> {
        self.shared.regions.cut(pe, remote, local.into(), len)
    }

    /// Makes an atomic operation ready for [`Ops::issue_amo`] and [`Ops::issue_put_signal`].
    pub fn plan_amo(&self, pe: u32, target: SymAddr, amo: &Amo) -> Result<PlannedAmo> {
        let (remote_memdesc, _) = self.shared.regions.remote(pe, target)?;
        let mut mem = c::nvt_amo_memdesc {
            remote_memdesc,
            val: amo.value,
            cmp: amo.compare,
            ..Default::default()
        };
        if let Some(to) = amo.fetch_to {
            mem.retptr = self.local(to, 16)?.as_ptr().cast();
            mem.retflag = amo.flag;
            mem.ret_handle = self.shared.regions.remote(self.pe(), to)?.0.handle;
        }
        let Amo { op: desc, is_float, bytes: elembytes, .. } = *amo;
        Ok(PlannedAmo { pe, desc, is_float, elembytes, mem })
    }

    #[inline]
    pub fn issue_put(&self, piece: &Piece) -> Result<()> {
        self.issue(c::NVT_OP_PUT, true, piece)
    }

    #[inline]
    pub fn issue_get(&self, piece: &Piece) -> Result<()> {
        self.issue(c::NVT_OP_GET, true, piece)
    }

    #[inline]
    pub fn issue_amo(&self, planned: &PlannedAmo) -> Result<()> {
        if planned.desc > c::NVT_AMO_END_OF_NONFETCH {
            self.got.store(true, Ordering::Relaxed);
        }
        self.call("amo", planned.pe, || {
            // SAFETY: the return location is in this PE's heap, which lives as long as the
            // transport.
            unsafe { self.shared.transport.amo(planned, self.qp()) }
        })
    }

    /// Writes a planned piece, and the signal of the same PE after it, in one call of the plugin.
    #[inline]
    pub fn issue_put_signal(&self, piece: &Piece, signal: &PlannedAmo) -> Result<()> {
        let pe = piece.pe;
        if !self.shared.transport.has_put_signal() || pe != signal.pe {
            return Err(error!("no put to PE {pe} with a signal to PE {}", signal.pe));
        }
        let (remote, local) = (&mut [piece.remote], &mut [piece.local]);
        self.signalled((remote, local, &mut [bytes_of(piece.len)]), signal)
    }

    #[inline]
    fn signalled(&self, sides: Sides<'_>, signal: &PlannedAmo) -> Result<()> {
        // SAFETY: the local sides are in this PE's regions, which live as long as the transport.
        let put = || unsafe { self.shared.transport.put_signal(sides, signal, self.qp()) };
        self.call("put_signal", signal.pe, put)
    }

    fn transfer(
        &self,
        desc: i32,
        nbi: bool,
        pe: u32,
        remote: SymAddr,
        local: Place,
        len: u64,
    ) -> Result<()> {
        let pieces = self.shared.regions.cut(pe, remote, local, len)?;
        pieces.iter().try_for_each(|piece| self.issue(desc, nbi, piece))
    }

    #[inline]
    fn issue(&self, desc: i32, nbi: bool, piece: &Piece) -> Result<()> {
        let (mut remote, mut local) = (piece.remote, piece.local);
        let is_put = desc == c::NVT_OP_PUT;
        if !is_put {
            self.got.store(true, Ordering::Relaxed);
        }
        self.call(if is_put { "put" } else { "get" }, piece.pe, || {
            let (verb, bytes) = (verb(desc, nbi), bytes_of(piece.len));
            let (remote, local, t) = (&raw mut remote, &raw mut local, &self.shared.transport);
            // SAFETY: the local side is in this PE's regions, which live as long as the transport.
            unsafe { t.rma(piece.pe, verb, remote, local, bytes, self.qp()) }
        })
    }

    #[inline]
    fn qp(&self) -> i32 {
        match self.thread {
            Thread::User => c::NVT_QP_HOST,
            Thread::Proxy => c::NVT_QP_DEFAULT,
        }
    }

    #[inline]
    fn call(&self, what: &str, pe: u32, f: impl FnOnce() -> i32) -> Result<()> {
        check(f(), || format!("{what} for PE {pe}"))
    }
}

#[inline]
fn verb(desc: i32, nbi: bool) -> c::nvt_rma_verb {
    c::nvt_rma_verb {
        desc,
        is_nbi: i32::from(nbi),
        is_stream: 0,
        _pad: POISON_INT,
        cstrm: std::ptr::null_mut(),
    }
}

#[inline]
fn bytes_of(len: u64) -> c::nvt_rma_bytesdesc {
    c::nvt_rma_bytesdesc {
        nelems: len,
        elembytes: 1,
        _pad: POISON_INT,
        srcstride: 1,
        deststride: 1,
    }
}
