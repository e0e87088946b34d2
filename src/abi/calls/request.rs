//! Requests: the host's arguments of an operation, converted for the engine.

use std::ffi::c_int;
use std::mem::offset_of;

use nvshmem_abi::{AmoBytes, AmoMem, RmaBytes, RmaBytesVector, RmaMem, RmaMemVector, RmaVerb, c};

use crate::abi::error::AbiError;
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::port::Direction;
use engine::request::{AtomicRequest, FetchTarget, LocalSide, Request};
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};

const _: () = assert!(HANDLE_BYTES == c::NVT_MEM_HANDLE_SIZE as usize);

/// The queue pair of user threads.
pub(crate) const HOST_QP: c_int = c::NVT_QP_HOST;

pub(crate) const PUT: c_int = c::NVT_OP_PUT;
pub(crate) const P: c_int = c::NVT_OP_P;
pub(crate) const GET: c_int = c::NVT_OP_GET;
pub(crate) const G: c_int = c::NVT_OP_G;

#[inline]
pub(crate) fn pe(pe: c_int) -> Result<Pe, AbiError> {
    u32::try_from(pe).map(Pe).map_err(|_| AbiError::BadPe { pe })
}

/// # Safety
/// Null, or a handle that stays valid for `'a`.
#[inline]
unsafe fn handle<'a>(handle: *const c::nvt_mem_handle) -> Option<&'a HandleBytes> {
    // SAFETY: by contract; a handle is 512 bytes without alignment.
    unsafe { handle.cast::<HandleBytes>().as_ref() }
}

/// Reads the arguments of `rma`. Returns the request, and whether the call is blocking.
///
/// # Safety
/// `remote` and `local` are valid for `'a`, with the handles they point to; for P, `local.ptr` is
/// readable for the element's size.
#[inline]
pub(crate) unsafe fn read<'a>(
    pe_number: c_int,
    verb: &RmaVerb,
    remote: *const RmaMem,
    local: *const RmaMem,
    bytes: &RmaBytes,
) -> Result<(Request<'a>, bool), AbiError> {
    // SAFETY: by contract.
    let (remote, local) = unsafe { (&*remote, &*local) };
    // SAFETY: by contract.
    let Some(remote_handle) = (unsafe { handle(remote.handle) }) else {
        return Err(AbiError::Null { argument: "remote->handle" });
    };
    let (direction, op) = match verb.desc {
        PUT => (Direction::Write, "PUT"),
        P => (Direction::Write, "P"),
        GET => (Direction::Read, "GET"),
        G => (Direction::Read, "G"),
        code => return Err(AbiError::BadOp { code }),
    };
    let (local, len) = if verb.desc == P {
        // Strides, stream and the handle are not initialised by the host for this operation.
        // SAFETY: by contract.
        let value = unsafe { value(local.ptr.cast::<u8>(), bytes.elembytes)? };
        (LocalSide::Value(value), bytes.elembytes as usize)
    } else {
        let len = length(op, bytes)?;
        if local.ptr.is_null() && len > 0 {
            return Err(AbiError::Null { argument: "local->ptr" });
        }
        (LocalSide::Memory(local.ptr as usize), len)
    };
    let blocking = verb.is_nbi == 0 && verb.desc != P;
    let request = Request {
        direction,
        pe: pe(pe_number)?,
        remote_handle,
        remote_addr: remote.ptr as u64,
        local,
        len,
    };
    Ok((request, blocking))
}

/// Reads a non-blocking PUT, GET, G or P, if it has the common form: a handle for its remote side.
/// [`read`] handles all others, also wrong ones.
///
/// # Safety
/// Rule 1, so no pointer to a structure is null.
#[inline(always)]
pub(crate) unsafe fn common<'a>(
    direction: Direction,
    pe: c_int,
    remote: *const RmaMem,
    (local, len): (LocalSide, usize),
) -> Option<Request<'a>> {
    // SAFETY: by contract.
    let RmaMem { ptr, handle: remote, .. } = *unsafe { &*remote };
    // SAFETY: by contract.
    let remote_handle = unsafe { handle(remote)? };
    // A negative PE becomes one that no job has.
    let pe = Pe(pe as u32);
    Some(Request { direction, pe, remote_handle, remote_addr: ptr as u64, local, len })
}

const PUT_NBI: u64 = PUT as u64 | 1 << 32;

const _: () = assert!(offset_of!(RmaVerb, desc) == 0 && offset_of!(RmaVerb, is_nbi) == 4);
const _: () = assert!(align_of::<RmaVerb>() >= align_of::<u64>());

#[inline(always)]
pub(crate) fn is_put_nbi(verb: &RmaVerb) -> bool {
    // SAFETY: inside the verb, whose first two fields it is, and aligned as it is.
    unsafe { (&raw const *verb).cast::<u64>().read_volatile() == PUT_NBI }
}

/// Reads the local side of a PUT, GET or G, with its length, if it is contiguous.
///
/// # Safety
/// As [`common`].
#[inline(always)]
pub(crate) unsafe fn contiguous(
    local: *const RmaMem,
    bytes: &RmaBytes,
) -> Option<(LocalSide, usize)> {
    // SAFETY: by contract.
    let addr = unsafe { (*local).ptr } as usize;
    if !is_contiguous(bytes) {
        return None;
    }
    Some((LocalSide::Memory(addr), bytes.nelems as usize))
}

/// Reads the value of a P of 8 bytes, the width of flags.
///
/// # Safety
/// As [`common`].
#[inline(always)]
pub(crate) unsafe fn word(local: *const RmaMem, bytes: &RmaBytes) -> Option<(LocalSide, usize)> {
    // SAFETY: by contract.
    let at = unsafe { (*local).ptr }.cast::<u64>();
    if bytes.elembytes != 8 || at.is_null() {
        return None;
    }
    // SAFETY: by contract, readable for 8 bytes.
    Some((LocalSide::Value(unsafe { at.read_unaligned() }), 8))
}

#[inline]
fn length(op: &'static str, bytes: &RmaBytes) -> Result<usize, AbiError> {
    if bytes.elembytes <= 0 {
        let accepted = "it must be at least 1";
        return Err(AbiError::ElementSize { op, bytes: bytes.elembytes, accepted });
    }
    if bytes.nelems > 1 && (bytes.srcstride != 1 || bytes.deststride != 1) {
        return Err(AbiError::Strides { op, src: bytes.srcstride, dest: bytes.deststride });
    }
    (bytes.nelems as usize).checked_mul(bytes.elembytes as usize).ok_or(AbiError::TooLarge {
        op,
        nelems: bytes.nelems,
        bytes: bytes.elembytes,
    })
}

/// Reads the value of a P, which is in a temporary of the caller, of any alignment.
///
/// # Safety
/// `at` is null or readable for `bytes` bytes; nothing beyond them is read.
#[inline]
unsafe fn value(at: *const u8, bytes: c_int) -> Result<u64, AbiError> {
    if at.is_null() {
        return Err(AbiError::Null { argument: "local->ptr" });
    }
    // SAFETY: by contract, readable in the width that is read.
    unsafe {
        match bytes {
            8 => Ok(at.cast::<u64>().read_unaligned()),
            4 => Ok(u64::from(at.cast::<u32>().read_unaligned())),
            2 => Ok(u64::from(at.cast::<u16>().read_unaligned())),
            1 => Ok(u64::from(at.read())),
            _ => {
                let accepted = "1, 2, 4 and 8 are accepted";
                Err(AbiError::ElementSize { op: "P", bytes, accepted })
            }
        }
    }
}

/// An atomic verb of any layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amo {
    /// `NVT_AMO_*`.
    pub(crate) code: c_int,
    /// Whether the operands are IEEE numbers; false before layout 6.
    pub(crate) float: bool,
}

/// Reads the arguments of `amo`, or the signal of `put_signal`.
///
/// # Safety
/// `mem` is valid for `'a`, with the handle it points to.
#[inline]
pub(crate) unsafe fn atomic<'a>(
    pe_number: c_int,
    amo: Amo,
    mem: *const AmoMem,
    bytes: &AmoBytes,
) -> Result<AtomicRequest<'a>, AbiError> {
    // SAFETY: by contract.
    let mem = unsafe { &*mem };
    // SAFETY: by contract.
    let Some(remote_handle) = (unsafe { handle(mem.remote_memdesc.handle) }) else {
        return Err(AbiError::Null { argument: "remote->handle" });
    };
    let op = AtomicOp::from_code(amo.code).ok_or(AbiError::BadAtomic { code: amo.code })?;
    let width = Width::from_bytes(bytes.elembytes).ok_or(AbiError::ElementSize {
        op: "an atomic operation",
        bytes: bytes.elembytes,
        accepted: "2, 4 and 8 are accepted",
    })?;
    let result = if op.fetches() {
        if mem.retptr.is_null() {
            return Err(AbiError::Null { argument: "retptr" });
        }
        Some(FetchTarget { addr: mem.retptr as usize, flag: Some(mem.retflag) })
    } else {
        None
    };
    let atomic = Atomic { op, width, float: amo.float, operand: mem.val, compare: mem.cmp };
    let remote_addr = mem.remote_memdesc.ptr as u64;
    Ok(AtomicRequest { pe: pe(pe_number)?, remote_handle, remote_addr, atomic, result })
}

/// Reads a non-fetching atomic, if it has the common form: a handle for its word.
///
/// # Safety
/// As [`common`].
#[inline(always)]
pub(crate) unsafe fn common_atomic<'a>(
    pe: c_int,
    amo: Amo,
    mem: *const AmoMem,
    width: Width,
) -> Option<AtomicRequest<'a>> {
    // SAFETY: by contract.
    let mem = unsafe { &*mem };
    // SAFETY: by contract.
    let remote_handle = unsafe { handle(mem.remote_memdesc.handle)? };
    let op = AtomicOp::plain_from_code(amo.code)?;
    let atomic = Atomic { op, width, float: amo.float, operand: mem.val, compare: 0 };
    let remote_addr = mem.remote_memdesc.ptr as u64;
    // A negative PE becomes one that no job has.
    Some(AtomicRequest { pe: Pe(pe as u32), remote_handle, remote_addr, atomic, result: None })
}

/// Reads a put with signal, if it has the common form: one contiguous part, and a handle for each
/// remote side.
///
/// # Safety
/// As [`common`].
#[inline(always)]
pub(crate) unsafe fn common_signal<'a>(
    put: &Put<'_>,
    amo: Amo,
    signal: *const AmoMem,
    signal_bytes: AmoBytes,
) -> Option<(Request<'a>, AtomicRequest<'a>)> {
    // One element each, checked one by one, so that each check is one comparison.
    let Put { remote, local, bytes, .. } = put;
    if remote.begin.wrapping_add(1) != remote.end {
        return None;
    }
    if local.begin.wrapping_add(1) != local.end {
        return None;
    }
    // Signals are integers of eight bytes, so no kind has to be determined.
    if bytes.begin.wrapping_add(1) != bytes.end
        || put.verb.desc != PUT
        || signal_bytes.elembytes != 8
        || amo.float
    {
        return None;
    }
    // SAFETY: by contract, entries before the end of such a vector are readable.
    let (from, bytes) = unsafe { ((*local.begin).ptr as usize, &*bytes.begin) };
    if !is_contiguous(bytes) {
        return None;
    }
    let local = (LocalSide::Memory(from), bytes.nelems as usize);
    // SAFETY: by contract.
    unsafe {
        let part = common(Direction::Write, put.pe, remote.begin, local)?;
        Some((part, common_atomic(put.pe, amo, signal, Width::Eight)?))
    }
}

/// Returns true if NVSHMEM's strides are those of contiguous elements.
#[inline(always)]
fn is_contiguous(bytes: &RmaBytes) -> bool {
    bytes.elembytes == 1 && bytes.srcstride == 1 && bytes.deststride == 1
}

/// The host's arguments of the put of a put with signal, whose parts are read one at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put<'a> {
    pub(crate) pe: c_int,
    pub(crate) verb: &'a RmaVerb,
    pub(crate) remote: &'a RmaMemVector,
    pub(crate) local: &'a RmaMemVector,
    pub(crate) bytes: &'a RmaBytesVector,
}

impl<'a> Put<'a> {
    /// Returns the number of parts; with none there is only a signal.
    pub(crate) fn parts(&self) -> Result<usize, AbiError> {
        let (remote, local, bytes) = (self.remote.len(), self.local.len(), self.bytes.len());
        if remote != local || remote != bytes {
            return Err(AbiError::Vectors { remote, local, bytes });
        }
        if remote > 0 && self.verb.desc != PUT {
            return Err(AbiError::BadOp { code: self.verb.desc });
        }
        Ok(remote)
    }

    /// # Safety
    /// The vectors are valid for `'a`, with all that they point to, and `at` is below
    /// [`Put::parts`].
    pub(crate) unsafe fn get(&self, at: usize) -> Result<Request<'a>, AbiError> {
        // SAFETY: by contract, inside the vectors.
        unsafe {
            let (remote, local) = (self.remote.begin.add(at), self.local.begin.add(at));
            let (request, _) = read(self.pe, self.verb, remote, local, &*self.bytes.begin.add(at))?;
            Ok(request)
        }
    }
}

#[cfg(test)]
mod tests;
