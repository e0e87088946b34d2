//! Operations on the plugin, called as NVSHMEM's host calls them from one of its two kinds of
//! threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use nvshmem_abi::{Layout, Major, c};

use crate::error::{Error, Result, check};
use crate::host::regions::Piece;
use crate::host::shared::{Doing, PAGE, Shared, Thread};
use crate::host::transport::{AmoCall, Hint, ISSUER, POISON, POISON_INT};
use crate::memory::address::{Place, SymAddr};
use crate::memory::local::Local;

/// An atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amo {
    /// Which: `NVT_AMO_*` of [`nvshmem_abi::c`].
    pub op: i32,
    /// Width in bytes: 4 or 8.
    pub bytes: i32,
    /// Operand, zero-extended; IEEE bits when `is_float`.
    pub value: u64,
    /// What a compare and swap compares with.
    pub compare: u64,
    /// Whether the operands are floating point numbers (layouts 6 and 7).
    pub is_float: bool,
    /// For operations that fetch: 16 bytes of this PE's heap, of which the first half receives
    /// the old value and the second half the flag.
    pub fetch_to: Option<SymAddr>,
    /// For operations that fetch: what is stored in the flag after the value.
    pub flag: u64,
}

impl Amo {
    /// An operation of that width that returns nothing.
    pub fn new(op: i32, bytes: i32, value: u64) -> Amo {
        Amo { op, bytes, value, compare: 0, is_float: false, fetch_to: None, flag: 0 }
    }
}

/// Operations, issued from one kind of thread.
///
/// A status other than success ends a process of NVSHMEM's on the proxy path; here it is an error.
/// Lengths are in bytes.
#[derive(Debug)]
pub struct Ops {
    pub(crate) shared: Arc<Shared>,
    thread: Thread,
    /// Whether a get was issued since the last quiet: then the host enforces consistency.
    pub(crate) got: AtomicBool,
    /// What is said of the puts that are issued: another follows, and the region they are in.
    more: AtomicBool,
    region: AtomicU64,
}

impl Ops {
    pub(crate) fn new(shared: Arc<Shared>, thread: Thread) -> Ops {
        let (got, more) = (AtomicBool::new(false), AtomicBool::new(false));
        Ops { shared, thread, got, more, region: AtomicU64::new(0) }
    }

    /// From here on puts are issued with the word that another follows at once, or without it.
    /// Layouts 6 and 7 pass it on.
    pub fn set_more_follows(&self, more: bool) {
        self.more.store(more, Ordering::Relaxed);
    }

    /// From here on puts are issued as parts of a region, numbered from 1, or of none: 0. Layout 7
    /// passes it on.
    pub fn set_region(&self, region: u64) {
        self.region.store(region, Ordering::Relaxed);
    }

    /// Ends a region (layout 7); nothing where there are none.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn end_region(&self, region: u64) -> Result<()> {
        self.set_region(0);
        let role = match self.thread {
            Thread::User => c::NVT_REGION_ROLE_HOST,
            Thread::Proxy => c::NVT_REGION_ROLE_PROXY,
        };
        self.shared.transport.region_flush(role, ISSUER, region)
    }

    /// Number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.shared.n_pes
    }

    /// This PE.
    pub fn pe(&self) -> u32 {
        self.shared.me
    }

    /// The layout driven.
    pub fn layout(&self) -> Layout {
        self.shared.transport.layout()
    }

    /// Memory of this PE.
    ///
    /// # Errors
    /// It is not all inside the heap or the buffer.
    pub fn local(&self, place: impl Into<Place>, len: u64) -> Result<Local<'_>> {
        self.shared.regions.local(place.into(), len)
    }

    /// Writes to a PE's heap. From the user's thread it is the blocking call, whose source may be
    /// reused on return; from the proxy there is only [`Ops::put_nbi`].
    ///
    /// # Errors
    /// The plugin's status, or a place that does not exist.
    pub fn put(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<()> {
        let nbi = self.thread == Thread::Proxy;
        self.transfer(c::NVT_OP_PUT, nbi, pe, to, from.into(), len)
    }

    /// Writes to a PE's heap; complete after a quiet.
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn put_nbi(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_PUT, true, pe, to, from.into(), len)
    }

    /// Reads from a PE's heap. From the user's thread the data is there on return; from the proxy
    /// there is only [`Ops::get_nbi`].
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn get(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        let nbi = self.thread == Thread::Proxy;
        self.transfer(c::NVT_OP_GET, nbi, pe, from, to.into(), len)
    }

    /// Reads from a PE's heap; the data is there after a quiet.
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn get_nbi(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_GET, true, pe, from, to.into(), len)
    }

    /// Reads from a PE's heap, on either thread: the data is there on return. NVSHMEM's proxy
    /// thread never asks for it, but the interface has it.
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn get_blocking(
        &self,
        pe: u32,
        from: SymAddr,
        to: impl Into<Place>,
        len: u64,
    ) -> Result<()> {
        self.transfer(c::NVT_OP_GET, false, pe, from, to.into(), len)
    }

    /// Reads a small value of a PE's heap, as the device's `g` does; there after a quiet.
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn g(&self, pe: u32, from: SymAddr, to: impl Into<Place>, len: u64) -> Result<()> {
        self.transfer(c::NVT_OP_G, true, pe, from, to.into(), len)
    }

    /// Writes the low `bytes` (1, 2, 4 or 8) of `value` to a PE's heap. The value is gone when
    /// the plugin returns; from the user's thread, what follows it in memory faults.
    ///
    /// # Errors
    /// See [`Ops::put`].
    pub fn p(&self, pe: u32, to: SymAddr, value: u64, bytes: i32) -> Result<()> {
        if !matches!(bytes, 1 | 2 | 4 | 8) {
            return Err(Error::Usage(format!("no P has {bytes} bytes")));
        }
        let (remote, room) = self.shared.regions.remote(pe, to)?;
        if room < bytes as u64 {
            return Err(Error::Usage(format!("a P at {to:?} that crosses a chunk")));
        }
        match self.thread {
            Thread::Proxy => {
                let mut on_stack = value;
                let status = self.p_from(pe, remote, &raw mut on_stack, bytes);
                // SAFETY: a local, overwritten so that a plugin that kept its address is noticed.
                unsafe { (&raw mut on_stack).write_volatile(!value) };
                check(status, || format!("rma(P) to PE {pe}"))
            }
            Thread::User => {
                let edge = self.shared.edge.lock().unwrap_or_else(PoisonError::into_inner);
                let at = (PAGE - bytes as usize) as u64;
                let cell = Local::of(&edge, at, bytes as u64)?;
                cell.write(&value.to_le_bytes()[..bytes as usize])?;
                let status = self.p_from(pe, remote, cell.as_ptr().cast(), bytes);
                cell.set(!(value as u8))?;
                check(status, || format!("rma(P) to PE {pe}"))
            }
        }
    }

    /// Orders what is issued later, to each PE, behind what was issued to it before.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn fence(&self) -> Result<()> {
        let skip_self = self.layout().major() == Major::V3 && self.thread == Thread::Proxy;
        (0..self.n_pes())
            .filter(|pe| !(skip_self && *pe == self.pe()))
            .try_for_each(|pe| self.fence_pe(pe))
    }

    /// The fence for one PE.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn fence_pe(&self, pe: u32) -> Result<()> {
        self.enter(Doing::Fence, pe);
        let status = self.shared.transport.fence(pe, self.qp());
        self.leave();
        check(status.unwrap_or(c::NVT_STATUS_SUCCESS), || format!("fence for PE {pe}"))
    }

    /// Waits until everything this kind of thread has issued is complete: at every PE, and here.
    ///
    /// # Errors
    /// The plugin's status.
    pub fn quiet(&self) -> Result<()> {
        (0..self.n_pes()).try_for_each(|pe| self.quiet_pe(pe))?;
        if self.thread == Thread::Proxy && self.got.swap(false, Ordering::Relaxed) {
            self.enter(Doing::EnforceCst, self.pe());
            let result = self.shared.transport.enforce_cst();
            self.leave();
            return result;
        }
        Ok(())
    }

    /// The quiet for one PE.
    ///
    /// # Errors
    /// The plugin's status.
    #[inline]
    pub fn quiet_pe(&self, pe: u32) -> Result<()> {
        let qp = match (self.thread, self.layout().major()) {
            (Thread::User, _) => c::NVT_QP_HOST,
            (Thread::Proxy, Major::V3) => c::NVT_QP_DEFAULT,
            (Thread::Proxy, _) => c::NVT_QP_ALL,
        };
        self.enter(Doing::Quiet, pe);
        let status = self.shared.transport.quiet(pe, qp);
        self.leave();
        check(status, || format!("quiet for PE {pe}"))
    }

    /// Lets the plugin work once. The proxy thread does so all the time; a closure that keeps it
    /// does it here.
    ///
    /// # Errors
    /// The plugin's status.
    #[inline]
    pub fn progress(&self) -> Result<()> {
        match self.shared.transport.progress() {
            Some(status) => check(status, || "progress".to_string()),
            None => {
                std::thread::yield_now();
                Ok(())
            }
        }
    }

    /// An atomic operation on a PE's heap. NVSHMEM issues them from the proxy only.
    ///
    /// # Errors
    /// The plugin's status, or a place that does not exist.
    pub fn amo(&self, pe: u32, target: SymAddr, amo: &Amo) -> Result<()> {
        self.issue_amo(&self.plan_amo(pe, target, amo)?)
    }

    /// Writes to a PE's heap, and to its signal after that: one call of the plugin, or in layouts
    /// 3a and 3b put, fence and atomic, as their device side does it.
    ///
    /// # Errors
    /// The plugin's status, or a place that does not exist.
    pub fn put_signal(
        &self,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
        signal: SymAddr,
        amo: &Amo,
    ) -> Result<()> {
        let from = from.into();
        if !self.shared.transport.has_put_signal() {
            if len > 0 {
                self.put_nbi(pe, to, from, len)?;
            }
            self.fence()?;
            return self.amo(pe, signal, amo);
        }
        let call = self.amo_call(pe, signal, amo)?;
        let (mut remote, mut local, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        if len > 0 {
            self.shared.regions.cut(pe, to, from, len, |piece| {
                remote.push(piece.remote);
                local.push(piece.local);
                bytes.push(bytes_of(piece.len));
                Ok(())
            })?;
        }
        self.enter(Doing::PutSignal, pe);
        // SAFETY: the local sides are in this PE's regions, which live as long as the transport.
        let status = unsafe {
            let t = &self.shared.transport;
            t.put_signal(pe, &mut remote, &mut local, &mut bytes, &call, self.qp())
        };
        self.leave();
        check(status, || format!("put_signal to PE {pe}"))
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
        self.shared.regions.cut(pe, remote, local, len, |piece| self.issue(desc, nbi, &piece))
    }

    #[inline]
    pub(crate) fn issue(&self, desc: i32, nbi: bool, piece: &Piece) -> Result<()> {
        let (mut remote, mut local) = (piece.remote, piece.local);
        let is_put = desc == c::NVT_OP_PUT;
        if !is_put {
            self.got.store(true, Ordering::Relaxed);
        }
        self.enter(if is_put { Doing::Put } else { Doing::Get }, piece.pe);
        // SAFETY: the local side is in this PE's regions, which live as long as the transport.
        let status = unsafe {
            self.shared.transport.rma(
                piece.pe,
                verb(desc, nbi),
                &raw mut remote,
                &raw mut local,
                bytes_of(piece.len),
                self.qp(),
                self.hint(is_put, piece),
            )
        };
        self.leave();
        check(status, || {
            let name = if is_put { "PUT" } else { "GET" };
            format!("rma({name}) of {} bytes for PE {}", piece.len, piece.pe)
        })
    }

    #[inline]
    fn hint(&self, is_put: bool, piece: &Piece) -> Hint {
        let more = piece.more || is_put && self.more.load(Ordering::Relaxed);
        let region = if is_put { self.region.load(Ordering::Relaxed) } else { 0 };
        Hint { more, region }
    }

    fn p_from(
        &self,
        pe: u32,
        mut remote: c::nvt_rma_memdesc,
        value: *mut u64,
        elembytes: i32,
    ) -> i32 {
        // What the host initialises of a P, and nothing else.
        let verb = c::nvt_rma_verb {
            desc: c::NVT_OP_P,
            is_nbi: 0,
            is_stream: POISON_INT,
            _pad: POISON_INT,
            cstrm: std::ptr::without_provenance_mut(POISON as usize),
        };
        let bytes = c::nvt_rma_bytesdesc {
            nelems: 1,
            elembytes,
            _pad: POISON_INT,
            srcstride: POISON as i64,
            deststride: POISON as i64,
        };
        let mut local =
            c::nvt_rma_memdesc { ptr: value.cast(), offset: POISON, handle: std::ptr::null_mut() };
        self.enter(Doing::P, pe);
        // SAFETY: the value is valid for its bytes until this returns, which is all a P promises.
        let status = unsafe {
            let t = &self.shared.transport;
            t.rma(pe, verb, &raw mut remote, &raw mut local, bytes, self.qp(), Hint::default())
        };
        self.leave();
        status
    }

    pub(crate) fn amo_call(&self, pe: u32, target: SymAddr, amo: &Amo) -> Result<AmoCall> {
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
        Ok(AmoCall { desc: amo.op, is_float: amo.is_float, elembytes: amo.bytes, mem })
    }

    #[inline]
    pub(crate) fn qp(&self) -> i32 {
        match self.thread {
            Thread::User => c::NVT_QP_HOST,
            Thread::Proxy => c::NVT_QP_DEFAULT,
        }
    }

    #[inline]
    pub(crate) fn enter(&self, call: Doing, pe: u32) {
        let word = (call as u64) << 32 | u64::from(pe);
        self.shared.doing[self.thread as usize].store(word, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.shared.doing[self.thread as usize].store(Doing::Nothing as u64, Ordering::Relaxed);
    }
}

#[inline]
pub(crate) fn verb(desc: i32, nbi: bool) -> c::nvt_rma_verb {
    c::nvt_rma_verb {
        desc,
        is_nbi: i32::from(nbi),
        is_stream: 0,
        _pad: POISON_INT,
        cstrm: std::ptr::null_mut(),
    }
}

#[inline]
pub(crate) fn bytes_of(len: u64) -> c::nvt_rma_bytesdesc {
    c::nvt_rma_bytesdesc {
        nelems: len,
        elembytes: 1,
        _pad: POISON_INT,
        srcstride: 1,
        deststride: 1,
    }
}
