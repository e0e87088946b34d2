//! Calls as a broken host could make them: correct ones, whose arguments a test then changes.

use std::ptr::null_mut;

use nvshmem_abi::c;

use crate::error::Result;
use crate::host::ops::{Amo, Ops, bytes_of, verb};
use crate::memory::address::SymAddr;

/// The arguments of a put that [`Ops::raw_put`] lets a test change.
#[derive(Debug)]
pub struct RawRma {
    pub pe: u32,
    pub verb: c::nvt_rma_verb,
    /// The remote side, whose handle is taken from `remote_handle`.
    pub remote: c::nvt_rma_memdesc,
    /// A copy of the remote side's handle; a null pointer is passed when there is none.
    pub remote_handle: Option<Box<c::nvt_mem_handle>>,
    pub local: c::nvt_rma_memdesc,
    pub bytes: c::nvt_rma_bytesdesc,
}

impl Ops {
    /// Puts `len` bytes within one chunk with whatever a broken host could pass, and returns the
    /// plugin's status. `edit` changes the arguments of a correct put. With a signal, which stays
    /// as it is, it is the put of a put with signal, where the layout has that.
    ///
    /// # Safety
    /// Should the plugin accept the call, the local side is valid memory, and at the remote side
    /// nothing is hit that must not be.
    pub unsafe fn raw_put(
        &self,
        pe: u32,
        (to, from): (SymAddr, SymAddr),
        len: u64,
        signal: Option<(SymAddr, &Amo)>,
        edit: impl FnOnce(&mut RawRma),
    ) -> Result<i32> {
        let piece = self.plan(pe, to, from, len)?[0];
        // SAFETY: the handles are those of this PE's regions, 512 bytes each at any alignment.
        let handle = Box::new(unsafe { piece.remote.handle.read_unaligned() });
        let mut raw = RawRma {
            pe,
            verb: verb(c::NVT_OP_PUT, true),
            remote: piece.remote,
            remote_handle: Some(handle),
            local: piece.local,
            bytes: bytes_of(len),
        };
        edit(&mut raw);
        let handle = raw.remote_handle.as_mut().map_or(null_mut(), |handle| &raw mut **handle);
        let (mut remote, mut local) = (c::nvt_rma_memdesc { handle, ..raw.remote }, raw.local);
        let (t, qp, bytes) = (&self.shared.transport, self.qp(), raw.bytes);
        let signal = signal.map(|(at, amo)| self.plan_amo(pe, at, amo)).transpose()?;
        // SAFETY: the caller vouches for it.
        Ok(unsafe {
            match signal {
                Some(signal) => {
                    let sides = (&mut [remote][..], &mut [local][..], &mut [bytes][..]);
                    t.put_signal(sides, &signal, qp)
                }
                None => {
                    let (remote, local) = (&raw mut remote, &raw mut local);
                    t.rma(raw.pe, raw.verb, remote, local, bytes, qp)
                }
            }
        })
    }
}
