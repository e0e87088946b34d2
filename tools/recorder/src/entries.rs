//! The recorded functions: each writes down its call and makes it on the transport behind.
//!
//! # What NVSHMEM promises, on which the `unsafe` here rests
//! 1. A transport pointer passed in is one that `nvshmemt_init` gave out and `finalize` has not
//!    had. It, and every pointer argument, is valid for the duration of the call.
//! 2. `connect_endpoints` and `finalize` run while no other function runs on the transport.
//!
//! A call that keeps them here keeps them behind: its arguments are handed on as they came. Nothing
//! here panics: sums wrap, and the recorder takes whatever it is given.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock, PoisonError, RwLock};

use nvshmem_abi::{
    AmoBytes, AmoMem, AmoVerb3, AmoVerb6, Major, MemHandle, OpAttrs6, OpAttrs7, RmaBytes,
    RmaBytesVector, RmaMem, RmaMemVector, RmaVerb, Transport, Transport3b, Transport4, Transport6,
    Transport7, c,
};
use nvshmem_recording::{Caller, Kind, Record};

use crate::writer::Recorder;

/// Layouts 3a and 3b, which differ in their arguments and say that they are the same version: six
/// words in registers.
type GetMemHandle3 = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// The functions of the transport behind, by the names of those that take their place. None has
/// what its layout or it lacks.
#[derive(Default)]
struct Real {
    connect_endpoints_3: c::nvt_connect_endpoints_fn_3,
    connect_endpoints_4: c::nvt_connect_endpoints_fn_4,
    get_mem_handle_3: Option<GetMemHandle3>,
    get_mem_handle: c::nvt_get_mem_handle_fn_3b,
    rma: c::nvt_rma_fn,
    rma_with_hints_6: c::nvt_rma_with_hints_fn_6,
    rma_with_hints_7: c::nvt_rma_with_hints_fn_7,
    amo_3: c::nvt_amo_fn_3,
    amo_6: c::nvt_amo_fn_6,
    put_signal_4: c::nvt_put_signal_fn_4,
    put_signal_6: c::nvt_put_signal_fn_6,
    fence_3: c::nvt_fence_fn_3,
    fence_4: c::nvt_fence_fn_4,
    quiet: c::nvt_quiet_fn,
    progress: c::nvt_progress_fn,
    finalize: c::nvt_finalize_fn,
}

/// A transport with recorded functions.
struct Wrapped {
    address: usize,
    /// Where it has the number of its PE, and behind that how many there are.
    pe: usize,
    /// The file of the transport behind.
    file: String,
    real: Real,
    /// Once the PEs are connected.
    recorder: OnceLock<Recorder>,
}

static WRAPPED: RwLock<Vec<Arc<Wrapped>>> = RwLock::new(Vec::new());

/// This process is a child of fork: the recordings that it has are its parent's.
static CHILD: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

pub(crate) fn notice_children() {
    static ONCE: Once = Once::new();
    // SAFETY: the function is one that children may run. The C library forgets it should this
    // library be unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

fn find(address: usize) -> Option<Arc<Wrapped>> {
    let all = WRAPPED.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|wrapped| wrapped.address == address).map(Arc::clone)
}

/// Makes a call on the transport behind, which has it if NVSHMEM has found this one in its place.
fn with<F>(
    transport: usize,
    real: impl FnOnce(&Real) -> Option<F>,
    call: impl FnOnce(&Wrapped, F) -> c_int,
) -> c_int {
    let Some(wrapped) = find(transport) else { return c::NVT_STATUS_INVALID_VALUE };
    real(&wrapped.real).map_or(c::NVT_STATUS_INTERNAL, |real| call(&wrapped, real))
}

impl Wrapped {
    fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get().filter(|_| !is_child())
    }

    /// Makes a call, written down if there is something to.
    fn record(
        &self,
        record: impl FnOnce(&Recorder) -> Record,
        call: impl FnOnce() -> c_int,
    ) -> c_int {
        let Some(recorder) = self.recorder() else { return call() };
        let begun = recorder.begin(record(recorder));
        let status = call();
        recorder.end(begun, status);
        status
    }

    /// Starts the recording once the PEs are connected.
    fn connected(&self, status: c_int) -> c_int {
        if status == c::NVT_STATUS_SUCCESS && self.recorder.get().is_none() {
            // SAFETY: rule 1; NVSHMEM has written both before.
            let [me, n_pes] = unsafe { *(self.pe as *const [u32; 2]) };
            let recorder = Recorder::from_env((me, n_pes), &self.file);
            // Rule 2: nobody else has set it.
            recorder.map(|recorder| self.recorder.set(recorder));
        }
        status
    }

    fn progressed(&self, status: c_int) -> c_int {
        if let (true, Some(recorder)) = (status != c::NVT_STATUS_SUCCESS, self.recorder()) {
            recorder.saw(Record { status, ..of(Kind::Progress, c::NVT_QP_DEFAULT, 0) });
        }
        status
    }

    /// No transport has its address any more, or another one will.
    fn forget(&self) {
        let mut all = WRAPPED.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| other.address != self.address);
    }

    fn registered(&self, status: c_int, buf: usize, size: usize, local_only: bool) -> c_int {
        if let (c::NVT_STATUS_SUCCESS, Some(recorder)) = (status, self.recorder()) {
            recorder.registered(buf as u64, size as u64, local_only);
        }
        status
    }
}

/// Puts recorded functions into a transport in place of its own.
///
/// # Safety
/// It is of this version, and nobody else uses it.
pub(crate) unsafe fn wrap(transport: *mut Transport, major: Major, file: &str) {
    let mut real = Real::default();
    /// Takes the place of functions of a layout, each by one of that name. Where the PE's number
    /// is.
    macro_rules! take {
        ($layout:ty: $($field:ident = $name:ident),*) => {{
            let transport = transport.cast::<$layout>();
            // SAFETY: by contract. No more of it is borrowed: the structure may end sooner.
            let ops = unsafe { &mut (*transport).host_ops };
            $(
                real.$name = ops.$field;
                if real.$name.is_some() {
                    ops.$field = Some($name);
                }
            )*
            // SAFETY: by contract.
            unsafe { &raw const (*transport).my_pe as usize }
        }};
    }
    /// The same for all layouts from 4 on.
    macro_rules! take_4 {
        ($layout:ty: $($field:ident = $name:ident),*) => {
            take!($layout:
                connect_endpoints = connect_endpoints_4, get_mem_handle = get_mem_handle, rma = rma, fence = fence_4,
                quiet = quiet, progress = progress, finalize = finalize, $($field = $name),*)
        };
    }
    let pe = match major {
        Major::V3 => {
            // SAFETY: by contract. Either layout has a function there that takes what comes in the
            // registers of six words.
            unsafe {
                let ops = &raw mut (*transport.cast::<Transport3b>()).host_ops;
                let place = (&raw mut (*ops).get_mem_handle).cast::<Option<GetMemHandle3>>();
                real.get_mem_handle_3 = *place;
                *place = real.get_mem_handle_3.map(|_| get_mem_handle_3 as GetMemHandle3);
            }
            // 3a has all of these where 3b has them.
            take!(Transport3b:
                connect_endpoints = connect_endpoints_3, rma = rma, amo = amo_3, fence = fence_3, quiet = quiet,
                progress = progress, finalize = finalize)
        }
        Major::V4 | Major::V5 => take_4!(Transport4: amo = amo_3, put_signal = put_signal_4),
        Major::V6 => take_4!(Transport6:
            amo = amo_6, put_signal = put_signal_6, rma_with_hints = rma_with_hints_6),
        Major::V7 => take_4!(Transport7:
            amo = amo_6, put_signal = put_signal_6, rma_with_hints = rma_with_hints_7),
    };
    notice_children();
    let (address, file) = (transport as usize, file.to_owned());
    let wrapped = Wrapped { address, pe, file, real, recorder: OnceLock::new() };
    WRAPPED.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(wrapped));
}

/// Layouts before 4 pass whether it is the proxy thread, later ones a queue pair: both say 0 for
/// threads of the program.
fn of(kind: Kind, qp: c_int, pe: c_int) -> Record {
    let caller = if qp == c::NVT_QP_HOST { Caller::Host } else { Caller::Proxy };
    // The PE that is not there stays none: no job has as many.
    Record::new(kind, caller, pe as u32)
}

/// # Safety
/// Rule 1.
unsafe fn of_rma(
    pe: c_int,
    verb: &RmaVerb,
    remote: *const RmaMem,
    local: *const RmaMem,
    bytes: &RmaBytes,
    qp: c_int,
) -> Record {
    let kind = match verb.desc {
        c::NVT_OP_GET => Kind::Get,
        c::NVT_OP_G => Kind::G,
        c::NVT_OP_P => Kind::P,
        // Of anything else no transport takes it.
        _ => Kind::Put,
    };
    // SAFETY: rule 1.
    let (remote, local) = unsafe { (remote.as_ref(), local.as_ref()) };
    let width = bytes.elembytes as u32 as u64;
    Record {
        blocking: kind != Kind::P && verb.is_nbi == 0,
        remote: remote.map_or(0, |remote| remote.ptr as u64),
        // That of a P is gone when the call returns.
        local: if kind == Kind::P { 0 } else { local.map_or(0, |local| local.ptr as u64) },
        bytes: if kind == Kind::P { width } else { bytes.nelems.wrapping_mul(width) },
        ..of(kind, qp, pe)
    }
}

/// # Safety
/// Rule 1.
unsafe fn of_amo(pe: c_int, op: c_int, mem: *const AmoMem, bytes: &AmoBytes, qp: c_int) -> Record {
    // SAFETY: rule 1.
    let target = unsafe { mem.as_ref() };
    Record {
        op: op as u8,
        remote: target.map_or(0, |mem| mem.remote_memdesc.ptr as u64),
        local: target.map_or(0, |mem| mem.retptr as u64),
        bytes: bytes.elembytes as u32 as u64,
        ..of(Kind::Amo, qp, pe)
    }
}

/// Records all pieces of the data but the first, which is in the record of the call.
///
/// # Safety
/// Rule 1.
unsafe fn of_put_signal(
    recorder: &Recorder,
    pe: c_int,
    verb: &RmaVerb,
    vectors: (*const RmaMemVector, *const RmaMemVector, *const RmaBytesVector),
    op: c_int,
    signal: *const AmoMem,
    qp: c_int,
) -> Record {
    let mut data = of(Kind::PutSignal, qp, pe);
    // SAFETY: rule 1.
    let vectors = unsafe { (vectors.0.as_ref(), vectors.1.as_ref(), vectors.2.as_ref()) };
    if let (Some(remote), Some(local), Some(bytes)) = vectors {
        for at in 0..remote.len().min(local.len()).min(bytes.len()) {
            // SAFETY: rule 1: within the vectors.
            let piece = unsafe {
                let (remote, local) = (remote.begin.add(at), local.begin.add(at));
                of_rma(pe, verb, remote, local, &*bytes.begin.add(at), qp)
            };
            match at {
                0 => data = Record { kind: Kind::PutSignal, ..piece },
                _ => recorder.saw(Record { kind: Kind::Part, ..piece }),
            }
        }
    }
    // SAFETY: rule 1.
    let word = unsafe { signal.as_ref() };
    let signal = word.map_or(0, |signal| signal.remote_memdesc.ptr as u64);
    Record { op: op as u8, blocking: false, signal, ..data }
}

/// Functions of which each does what the expression says with the call on the transport behind.
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) |$wrapped:ident, $call:ident| $does:expr;)*) => {$(
        /// # Safety
        /// Rules 1 and 2.
        #[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
        unsafe extern "C" fn $name(transport: *mut Transport, $($argument: $type),*) -> c_int {
            with(transport as usize, |real| real.$name, |$wrapped, real| {
                // SAFETY: rules 1 and 2.
                let $call = || unsafe { real(transport, $($argument),*) };
                // SAFETY: rule 1.
                #[allow(unused_unsafe, reason = "some do nothing that is not safe")]
                unsafe { $does }
            })
        }
    )*};
}

entries! {
    rma(
        pe: c_int, verb: RmaVerb, remote: *mut RmaMem, local: *mut RmaMem, bytes: RmaBytes, qp: c_int
    ) |wrapped, call| wrapped.record(|_| of_rma(pe, &verb, remote, local, &bytes, qp), call);
    rma_with_hints_6(
        pe: c_int, verb: RmaVerb, remote: *mut RmaMem, local: *mut RmaMem, bytes: RmaBytes, qp: c_int,
        attrs: *const OpAttrs6
    ) |wrapped, call| wrapped.record(|_| of_rma(pe, &verb, remote, local, &bytes, qp), call);
    rma_with_hints_7(
        pe: c_int, verb: RmaVerb, remote: *mut RmaMem, local: *mut RmaMem, bytes: RmaBytes, qp: c_int,
        attrs: *const OpAttrs7
    ) |wrapped, call| wrapped.record(|_| of_rma(pe, &verb, remote, local, &bytes, qp), call);
    amo_3(
        pe: c_int, ret: *mut c_void, verb: AmoVerb3, mem: *mut AmoMem, bytes: AmoBytes, qp: c_int
    ) |wrapped, call| wrapped.record(|_| of_amo(pe, verb.desc, mem, &bytes, qp), call);
    amo_6(
        pe: c_int, ret: *mut c_void, verb: AmoVerb6, mem: *mut AmoMem, bytes: AmoBytes, qp: c_int
    ) |wrapped, call| wrapped.record(|_| of_amo(pe, verb.desc, mem, &bytes, qp), call);
    put_signal_4(
        pe: c_int, write: RmaVerb, remote: *const RmaMemVector, local: *const RmaMemVector,
        bytes: *const RmaBytesVector, verb: AmoVerb3, signal: *mut AmoMem, width: AmoBytes, qp: c_int
    ) |wrapped, call| {
        let record = |recorder: &_| of_put_signal(recorder, pe, &write, (remote, local, bytes), verb.desc, signal, qp);
        wrapped.record(record, call)
    };
    put_signal_6(
        pe: c_int, write: RmaVerb, remote: *const RmaMemVector, local: *const RmaMemVector,
        bytes: *const RmaBytesVector, verb: AmoVerb6, signal: *mut AmoMem, width: AmoBytes, qp: c_int
    ) |wrapped, call| {
        let record = |recorder: &_| of_put_signal(recorder, pe, &write, (remote, local, bytes), verb.desc, signal, qp);
        wrapped.record(record, call)
    };
    fence_3(pe: c_int, is_proxy: c_int) |wrapped, call| wrapped.record(|_| of(Kind::Fence, is_proxy, pe), call);
    fence_4(pe: c_int, qp: c_int, is_multi: c_int) |wrapped, call| wrapped.record(|_| of(Kind::Fence, qp, pe), call);
    quiet(pe: c_int, qp: c_int) |wrapped, call| {
        wrapped.record(|_| Record { blocking: true, ..of(Kind::Quiet, qp, pe) }, call)
    };
    progress() |wrapped, call| wrapped.progressed(call());
    connect_endpoints_3(devices: *mut c_int, n_devices: c_int) |wrapped, call| wrapped.connected(call());
    connect_endpoints_4(
        devices: *mut c_int, n_devices: c_int, qp_indices: *mut c_int, n_qps: c_int
    ) |wrapped, call| wrapped.connected(call());
    finalize() |wrapped, call| {
        wrapped.forget();
        call()
    };
}

/// Layout 3a passes (out, handle_in, buf, size, transport, local_only), layout 3b (out, buf, size,
/// transport, local_only). No other argument has the value of a transport's address by chance: it
/// is neither a size nor memory that is registered.
///
/// # Safety
/// Rule 1, for the form in which it was called.
unsafe extern "C" fn get_mem_handle_3(
    out: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_int {
    let (transport, buf, size, local_only) = match find(fourth) {
        Some(_) => (fourth, second, third, fifth),
        None => (fifth, third, fourth, sixth),
    };
    with(
        transport,
        |real| real.get_mem_handle_3,
        |wrapped, real| {
            // SAFETY: rule 1.
            let status = unsafe { real(out, second, third, fourth, fifth, sixth) };
            // A `bool` argument is in the low byte; the rest of the register may hold anything.
            wrapped.registered(status, buf, size, local_only as u8 != 0)
        },
    )
}

/// # Safety
/// Rule 1.
unsafe extern "C" fn get_mem_handle(
    out: *mut MemHandle,
    buf: *mut c_void,
    size: usize,
    transport: *mut Transport,
    local_only: bool,
) -> c_int {
    with(
        transport as usize,
        |real| real.get_mem_handle,
        |wrapped, real| {
            // SAFETY: rule 1.
            let status = unsafe { real(out, buf, size, transport, local_only) };
            wrapped.registered(status, buf as usize, size, local_only)
        },
    )
}
