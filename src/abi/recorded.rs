//! Recorded entries: what the host is given in place of the others where a setting asks for a recording. Each writes down
//! its call and makes it.
//!
//! As in [`crate::abi::entries`], the safety of all of it rests on the rules that are numbered in [`super`]'s
//! documentation. Nothing here panics: sums wrap, and the recorder takes whatever it is given.

use std::ffi::{c_int, c_void};

use nvshmem_abi::{
    AmoBytes, AmoMem, MemHandle, RmaBytes, RmaBytesVector, RmaMem, RmaMemVector, RmaVerb,
    Transport, c,
};

use crate::abi::calls::hints::{self, OpAttrs};
use crate::abi::calls::request::{Amo, G, GET, HOST_QP, P, PUT};
use crate::abi::calls::signals;
use crate::abi::collectives::HostCollectives;
use crate::abi::entries as e;
use crate::abi::state::{self, boot_handle, job_of};
use crate::job::recording::Recorder;
use crate::job::recording::format::{Caller, Kind, Record};
use crate::job::{Collectives as _, Connected};
use engine::atomic::AtomicOp;
use engine::ids::Pe;
use ofi::fork;

/// What records the calls of a transport.
///
/// # Safety
/// Rule 1.
unsafe fn recorder<'a>(transport: *mut Transport) -> Option<&'a Recorder> {
    // The file is its parent's.
    if fork::is_child() {
        return None;
    }
    // SAFETY: rule 1.
    unsafe { state::recorder(transport)?.get() }
}

/// Makes a call, written down if there is something to.
///
/// # Safety
/// Rules 1 and 3; of the proxy thread if the record says so.
unsafe fn record(
    transport: *mut Transport,
    record: impl FnOnce() -> Record,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: rule 1.
    let Some(recorder) = (unsafe { recorder(transport) }) else { return call() };
    let record = record();
    let begun = recorder.begin(record);
    let status = call();
    // SAFETY: by contract.
    let ahead = is_signal(&record) && unsafe { is_overtaken(transport, record.pe) };
    recorder.end(begun, status, ahead);
    if record.caller == Caller::Proxy {
        // SAFETY: by contract.
        unsafe { look(transport, recorder) };
    }
    status
}

/// Whether it is a signal of the proxy thread that is sent apart from its data.
fn is_signal(record: &Record) -> bool {
    let op = AtomicOp::from_code(record.op.into());
    (record.kind, record.caller) == (Kind::Amo, Caller::Proxy)
        && op.is_some_and(AtomicOp::is_signal)
}

/// Whether the last signal to a PE has left before puts that were before it have ended.
///
/// # Safety
/// Rules 1 and 3, of the proxy thread; the transport is not null.
unsafe fn is_overtaken(transport: *mut Transport, pe: u32) -> bool {
    // SAFETY: rules 1 and 3.
    unsafe {
        let under_way = |connected: &Connected| connected.with_proxy(|lane| lane.under_way(Pe(pe)));
        job_of(transport).connection().is_some_and(|connected| under_way(connected).is_overtaken())
    }
}

/// Has what has ended written down.
///
/// # Safety
/// Rules 1 and 3, of the proxy thread; the transport is not null.
unsafe fn look(transport: *mut Transport, recorder: &Recorder) {
    // SAFETY: rule 1.
    if let Some(connected) = unsafe { job_of(transport) }.connection() {
        // SAFETY: rule 3.
        recorder.look(|pe| unsafe { connected.with_proxy(|lane| lane.under_way(pe)) });
    }
}

fn caller(qp: c_int) -> Caller {
    if qp == HOST_QP { Caller::Host } else { Caller::Proxy }
}

/// The PE that is not there stays none: no job has as many.
fn of(kind: Kind, qp: c_int, pe: c_int) -> Record {
    Record::new(kind, caller(qp), pe as u32)
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
    let (kind, blocking) = match verb.desc {
        PUT => (Kind::Put, verb.is_nbi == 0),
        GET => (Kind::Get, verb.is_nbi == 0),
        G => (Kind::G, verb.is_nbi == 0),
        P => (Kind::P, false),
        // It is refused.
        _ => (Kind::Put, false),
    };
    // SAFETY: rule 1.
    let (remote, local) = unsafe { (remote.as_ref(), local.as_ref()) };
    let width = bytes.elembytes as u32 as u64;
    Record {
        blocking,
        remote: remote.map_or(0, |remote| remote.ptr as u64),
        // That of a P is gone when the call returns.
        local: if kind == Kind::P { 0 } else { local.map_or(0, |local| local.ptr as u64) },
        bytes: if kind == Kind::P { width } else { bytes.nelems.wrapping_mul(width) },
        ..of(kind, qp, pe)
    }
}

/// # Safety
/// Rule 1.
unsafe fn of_amo(pe: c_int, verb: Amo, mem: *const AmoMem, bytes: &AmoBytes, qp: c_int) -> Record {
    // SAFETY: rule 1.
    let target = unsafe { mem.as_ref() };
    Record {
        op: verb.code as u8,
        remote: target.map_or(0, |mem| mem.remote_memdesc.ptr as u64),
        local: target.map_or(0, |mem| mem.retptr as u64),
        bytes: bytes.elembytes as u32 as u64,
        ..of(Kind::Amo, qp, pe)
    }
}

/// Entries of which each writes down the call, as the expression says, and makes it.
macro_rules! entries {
    ($($name:ident[$($generics:tt)*]($($argument:ident: $type:ty),*) = $call:path: $record:expr;)*) => {$(
        /// # Safety
        /// Rules 1, 3 and 4.
        #[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
        pub(crate) unsafe extern "C" fn $name<$($generics)*>(
            transport: *mut Transport,
            $($argument: $type),*
        ) -> c_int {
            // SAFETY: rules 1, 3 and 4.
            unsafe { record(transport, || $record, || $call(transport, $($argument),*)) }
        }
    )*};
}

entries! {
    // The one for bursts does where there are none.
    rma[](
        pe: c_int, verb: RmaVerb, remote: *mut RmaMem, local: *mut RmaMem, bytes: RmaBytes, qp: c_int
    ) = hints::rma: of_rma(pe, &verb, remote, local, &bytes, qp);
    rma_with_hints[A: OpAttrs](
        pe: c_int, verb: RmaVerb, remote: *mut RmaMem, local: *mut RmaMem, bytes: RmaBytes, qp: c_int, attrs: *const A
    ) = hints::rma_with_hints: of_rma(pe, &verb, remote, local, &bytes, qp);
    amo[V: Into<Amo> + Copy](
        pe: c_int, ret: *mut c_void, verb: V, mem: *mut AmoMem, bytes: AmoBytes, qp: c_int
    ) = signals::amo: of_amo(pe, verb.into(), mem, &bytes, qp);
    fence_3[](pe: c_int, is_proxy: c_int) = e::fence_3: of(Kind::Fence, is_proxy, pe);
    fence_4[](pe: c_int, qp: c_int, is_multi: c_int) = e::fence_4: of(Kind::Fence, qp, pe);
    quiet[](pe: c_int, qp: c_int) = e::quiet: Record { blocking: true, ..of(Kind::Quiet, qp, pe) };
}

/// # Safety
/// Rules 1, 3 and 4.
#[allow(clippy::too_many_arguments, reason = "NVSHMEM's interface")]
pub(crate) unsafe extern "C" fn put_signal<V: Into<Amo> + Copy>(
    transport: *mut Transport,
    pe: c_int,
    write_verb: RmaVerb,
    remote: *const RmaMemVector,
    local: *const RmaMemVector,
    bytes: *const RmaBytesVector,
    signal_verb: V,
    signal: *mut AmoMem,
    signal_bytes: AmoBytes,
    qp: c_int,
) -> c_int {
    // SAFETY: rule 1.
    let vectors = unsafe { (remote.as_ref(), local.as_ref(), bytes.as_ref()) };
    let pieces = match vectors {
        (Some(remote), Some(local), Some(bytes))
            if !(remote.begin.is_null() || local.begin.is_null() || bytes.begin.is_null()) =>
        {
            remote.len().min(local.len()).min(bytes.len())
        }
        _ => 0,
    };
    // SAFETY: rule 1: within the vectors, which are not null if there are pieces.
    let piece = |kind, at: usize| unsafe {
        let piece = ((*remote).begin.add(at), (*local).begin.add(at), &*(*bytes).begin.add(at));
        Record { kind, ..of_rma(pe, &write_verb, piece.0, piece.1, piece.2, qp) }
    };
    // SAFETY: rule 1.
    if let Some(recorder) = unsafe { recorder(transport) } {
        for at in 1..pieces {
            let begun = recorder.begin(piece(Kind::Part, at));
            recorder.end(begun, 0, false);
        }
    }
    let call = || {
        let data =
            if pieces == 0 { of(Kind::PutSignal, qp, pe) } else { piece(Kind::PutSignal, 0) };
        // SAFETY: rule 1.
        let word = unsafe { signal.as_ref() };
        Record {
            op: signal_verb.into().code as u8,
            blocking: false,
            signal: word.map_or(0, |signal| signal.remote_memdesc.ptr as u64),
            ..data
        }
    };
    // SAFETY: rules 1, 3 and 4.
    unsafe {
        record(transport, call, || {
            signals::put_signal(
                transport,
                pe,
                write_verb,
                remote,
                local,
                bytes,
                signal_verb,
                signal,
                signal_bytes,
                qp,
            )
        })
    }
}

/// Turns are not recorded, but for those that fail.
///
/// # Safety
/// Rules 1 and 3.
pub(crate) unsafe extern "C" fn progress(transport: *mut Transport) -> c_int {
    // SAFETY: rules 1 and 3.
    unsafe {
        let status = e::progress(transport);
        if let Some(recorder) = recorder(transport) {
            if status != c::NVT_STATUS_SUCCESS {
                recorder.saw(Record { status, ..of(Kind::Progress, c::NVT_QP_DEFAULT, 0) });
            }
            look(transport, recorder);
        }
        status
    }
}

/// # Safety
/// Rules 1 and 2.
pub(crate) unsafe extern "C" fn connect_endpoints_3(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
) -> c_int {
    // SAFETY: rules 1 and 2.
    unsafe {
        let status = e::connect_endpoints_3(transport, devices, n_devices);
        start(transport);
        status
    }
}

/// # Safety
/// Rules 1 and 2.
pub(crate) unsafe extern "C" fn connect_endpoints_4(
    transport: *mut Transport,
    devices: *mut c_int,
    n_devices: c_int,
    qp_indices: *mut c_int,
    n_qps: c_int,
) -> c_int {
    // SAFETY: rules 1 and 2.
    unsafe {
        let status = e::connect_endpoints_4(transport, devices, n_devices, qp_indices, n_qps);
        start(transport);
        status
    }
}

/// Starts the recording of a transport whose PEs are connected.
///
/// # Safety
/// Rules 1 and 2.
unsafe fn start(transport: *mut Transport) {
    // SAFETY: rule 1.
    let Some(place) = (unsafe { state::recorder(transport) }) else { return };
    // SAFETY: rule 1; it is not null, as it has a place.
    let job = unsafe { job_of(transport) };
    let Some(connected) = job.connection() else { return };
    if place.get().is_some() {
        return;
    }
    // SAFETY: rules 1 and 2.
    let Ok(collectives) = (unsafe { HostCollectives::new(boot_handle(transport)) }) else { return };
    let Ok(shape) = collectives.shape() else { return };
    let provider = &connected.report.provider;
    if let Some(recorder) = Recorder::of(&job.settings, shape.me, shape.n_pes, provider) {
        // PEs connect once.
        let _ = place.set(recorder);
    }
}

/// # Safety
/// Rule 1, for the form in which it was called.
pub(crate) unsafe extern "C" fn get_mem_handle_3(
    out: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_int {
    let words = [second, third, fourth, fifth, sixth];
    // SAFETY: rule 1; the transport is alive, where it is known.
    unsafe {
        match e::registration_of_3(words) {
            Some((buf, size, transport, local_only)) => {
                let (out, transport) = (out as *mut MemHandle, transport as *mut Transport);
                get_mem_handle(out, buf as *mut c_void, size, transport, local_only)
            }
            // Which says what is wrong.
            None => e::get_mem_handle_3(out, second, third, fourth, fifth, sixth),
        }
    }
}

/// # Safety
/// Rule 1.
pub(crate) unsafe extern "C" fn get_mem_handle(
    out: *mut MemHandle,
    buf: *mut c_void,
    size: usize,
    transport: *mut Transport,
    local_only: bool,
) -> c_int {
    // SAFETY: rule 1.
    unsafe {
        let status = e::get_mem_handle(out, buf, size, transport, local_only);
        if status == c::NVT_STATUS_SUCCESS {
            if let Some(recorder) = recorder(transport) {
                recorder.registered(buf as u64, size as u64, local_only);
            }
        }
        status
    }
}
