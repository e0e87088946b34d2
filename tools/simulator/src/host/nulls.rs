//! Calls with NULL where a descriptor belongs, as no sound host makes them.

use std::ptr::null_mut;

use nvshmem_abi::c;

use crate::host::ops::{Ops, bytes_of};
use crate::host::table::{Amo, GetMemHandle, PutSignal};
use crate::host::transport::AmoCall;

/// Which pointer is NULL, and what the plugin has answered.
pub type NullCall = (String, i32);

impl Ops {
    /// Makes every call with each of its pointers NULL in turn, and the others sound, on this
    /// thread's queue pair.
    ///
    /// # Errors
    /// The places do not exist.
    pub fn null_calls(&self, pe: u32, word: crate::SymAddr) -> crate::error::Result<Vec<NullCall>> {
        let mut answers = Vec::new();
        let transport = &self.shared.transport;
        let (table, raw, qp) = (transport.table(), transport.raw(), self.qp());
        let regions = &self.shared.regions;
        let ((remote, _), (local, _)) =
            (regions.remote(pe, word)?, regions.remote(self.pe(), word)?);
        let local = c::nvt_rma_memdesc { ptr: self.local(word, 8)?.as_ptr().cast(), ..local };
        let signal = self.amo_call(pe, word, &crate::Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 0))?;
        let at = pe as i32;

        for (desc, name) in
            [(c::NVT_OP_PUT, "put"), (c::NVT_OP_GET, "get"), (c::NVT_OP_P, "p"), (c::NVT_OP_G, "g")]
        {
            for is_nbi in [0, 1] {
                let verb = c::nvt_rma_verb { desc, is_nbi, ..Default::default() };
                let bytes = match desc {
                    c::NVT_OP_P => c::nvt_rma_bytesdesc { elembytes: 8, ..bytes_of(1) },
                    _ => bytes_of(8),
                };
                let (mut there, mut here) = (remote, local);
                for null in ["remote", "local"] {
                    let (there, here) = match null {
                        "remote" => (null_mut(), &raw mut here),
                        _ => (&raw mut there, null_mut()),
                    };
                    let Some(rma) = table.rma else { continue };
                    // SAFETY: the transport is connected; descriptors are locals of memory that
                    // stays, or NULL.
                    let status = unsafe { rma(raw, at, verb, there, here, bytes, qp) };
                    answers.push((format!("{null} of {name}, is_nbi {is_nbi}"), status));
                    // SAFETY: as above.
                    let hinted = unsafe {
                        transport.rma(pe, verb, there, here, bytes, qp, Default::default())
                    };
                    answers.push((format!("{null} of {name} with hints, is_nbi {is_nbi}"), hinted));
                }
            }
        }
        for (desc, name) in [(c::NVT_AMO_SIGNAL_SET, "signal"), (c::NVT_AMO_FETCH_ADD, "fetch-add")]
        {
            // SAFETY: nothing is passed that the call might use.
            answers.push((format!("descriptor of {name}"), unsafe {
                null_amo(&table.amo, raw, at, desc, qp)
            }));
        }
        for null in
            ["remote", "local", "bytes", "signal", "remote.begin", "local.begin", "bytes.begin"]
        {
            // SAFETY: locals of memory that stays, or NULL.
            let answer = unsafe {
                null_put_signal(&table.put_signal, raw, at, (remote, local), &signal, qp, null)
            };
            answers.extend(answer.map(|status| (format!("{null} of put_signal"), status)));
        }
        let (start, len) = (local.ptr, 8);
        let mut handle = c::nvt_mem_handle::default();
        for (out, start, null) in
            [(null_mut(), start, "handle"), (&raw mut handle, null_mut(), "memory")]
        {
            let status = match table.get_mem_handle {
                // SAFETY: memory that stays, and a place for its handle; NULL is what the call is
                // to refuse.
                GetMemHandle::WithHandleIn(Some(f)) => unsafe {
                    f(out, null_mut(), start, len, raw, true)
                },
                // SAFETY: the same.
                GetMemHandle::Short(Some(f)) => unsafe { f(out, start, len, raw, true) },
                _ => continue,
            };
            answers.push((format!("{null} of get_mem_handle"), status));
        }
        if let Some(release) = table.release_mem_handle {
            // SAFETY: NULL is what the call is to refuse.
            answers.push((String::from("handle"), unsafe { release(null_mut(), raw) }));
        }
        if let Some(reach) = table.can_reach_peer {
            // SAFETY: the same.
            answers.push((String::from("access"), unsafe { reach(null_mut(), null_mut(), raw) }));
        }
        Ok(answers)
    }
}

/// # Safety
/// The transport is connected.
unsafe fn null_amo(amo: &Amo, raw: *mut c::nvt_transport, pe: i32, desc: i32, qp: i32) -> i32 {
    let bytes = c::nvt_amo_bytesdesc { name_type: 0, elembytes: 8 };
    // SAFETY: by contract.
    unsafe {
        match amo {
            Amo::Three(Some(f)) => {
                let verb = c::nvt_amo_verb_3 { desc, ..Default::default() };
                f(raw, pe, null_mut(), verb, null_mut(), bytes, qp)
            }
            Amo::Six(Some(f)) => {
                let verb = c::nvt_amo_verb_6 { desc, ..Default::default() };
                f(raw, pe, null_mut(), verb, null_mut(), bytes, qp)
            }
            Amo::Three(None) | Amo::Six(None) => c::NVT_STATUS_INVALID_VALUE,
        }
    }
}

/// None where the layout has no such call.
///
/// # Safety
/// The transport is connected, and the descriptors are of memory that stays.
unsafe fn null_put_signal(
    put_signal: &PutSignal,
    raw: *mut c::nvt_transport,
    pe: i32,
    (mut remote, mut local): (c::nvt_rma_memdesc, c::nvt_rma_memdesc),
    signal: &AmoCall,
    qp: i32,
    null: &str,
) -> Option<i32> {
    /// A vector of one element, or of one that begins at NULL.
    fn bounds<T>(of: &mut T, is_null: bool) -> (*mut T, *mut T) {
        let begin = if is_null { null_mut() } else { &raw mut *of };
        (begin, begin.wrapping_add(1))
    }
    let mut size = bytes_of(8);
    let (begin, end) = bounds(&mut remote, null == "remote.begin");
    let remotes = c::nvt_memdesc_vector { begin, end, cap: end };
    let (begin, end) = bounds(&mut local, null == "local.begin");
    let locals = c::nvt_memdesc_vector { begin, end, cap: end };
    let (begin, end) = bounds(&mut size, null == "bytes.begin");
    let sizes = c::nvt_bytesdesc_vector { begin, end, cap: end };
    let mut word = signal.mem;
    let unless = |is: &str| null != is;
    let remotes = if unless("remote") { &raw const remotes } else { null_mut() };
    let locals = if unless("local") { &raw const locals } else { null_mut() };
    let sizes = if unless("bytes") { &raw const sizes } else { null_mut() };
    let word = if unless("signal") { &raw mut word } else { null_mut() };
    let verb = c::nvt_rma_verb { desc: c::NVT_OP_PUT, is_nbi: 1, ..Default::default() };
    let width = c::nvt_amo_bytesdesc { name_type: 0, elembytes: 8 };
    // SAFETY: by contract; vectors and descriptors outlive the call.
    unsafe {
        match put_signal {
            PutSignal::Four(Some(f)) => {
                let of = c::nvt_amo_verb_3 { desc: signal.desc, ..Default::default() };
                Some(f(raw, pe, verb, remotes, locals, sizes, of, word, width, qp))
            }
            PutSignal::Six(Some(f)) => {
                let of = c::nvt_amo_verb_6 { desc: signal.desc, ..Default::default() };
                Some(f(raw, pe, verb, remotes, locals, sizes, of, word, width, qp))
            }
            _ => None,
        }
    }
}
