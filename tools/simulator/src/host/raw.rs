//! Calls as a broken host could make them: correct ones, whose arguments a test then changes.

use nvshmem_abi::c;

use crate::error::{Error, Result, Status};
use crate::host::ops::{Amo, Ops, bytes_of, verb};
use crate::host::transport::Hint;
use crate::memory::address::{Place, SymAddr};

impl Ops {
    /// Calls `rma` with whatever a broken host could pass, and returns the plugin's status. `edit`
    /// changes the arguments of an otherwise correct put.
    ///
    /// # Safety
    /// Should the plugin accept the call, the local side is valid memory, and at the remote side
    /// nothing is hit that must not be.
    ///
    /// # Errors
    /// A place that does not exist, in the put to begin with.
    pub unsafe fn raw_put(
        &self,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
        edit: impl FnOnce(&mut RawRma),
    ) -> Result<Status> {
        let mut raw = self.sound(pe, to, from, len)?;
        edit(&mut raw);
        let (mut remote, mut local) = (raw.remote(), raw.local);
        let (pe, verb, bytes, qp) = (raw.pe, raw.verb, raw.bytes, self.qp());
        // SAFETY: the caller vouches for it.
        let status = unsafe {
            let t = &self.shared.transport;
            t.rma(pe, verb, &raw mut remote, &raw mut local, bytes, qp, Hint::default())
        };
        Ok(Status(status))
    }

    /// As [`Ops::raw_put`] for the put of a put with signal, where the layout has that. The signal
    /// is sound.
    ///
    /// # Safety
    /// See [`Ops::raw_put`].
    ///
    /// # Errors
    /// See [`Ops::raw_put`].
    #[allow(clippy::too_many_arguments)] // NVSHMEM's own call has as many
    pub unsafe fn raw_put_signal(
        &self,
        pe: u32,
        to: SymAddr,
        from: impl Into<Place>,
        len: u64,
        signal: SymAddr,
        amo: &Amo,
        edit: impl FnOnce(&mut RawRma),
    ) -> Result<Status> {
        let call = self.amo_call(pe, signal, amo)?;
        let mut raw = self.sound(pe, to, from, len)?;
        edit(&mut raw);
        let (mut remote, mut local, mut bytes) = ([raw.remote()], [raw.local], [raw.bytes]);
        // SAFETY: the caller vouches for it.
        let status = unsafe {
            let t = &self.shared.transport;
            t.put_signal(raw.pe, &mut remote, &mut local, &mut bytes, &call, self.qp())
        };
        Ok(Status(status))
    }

    /// A put with signal whose vectors of remote sides, of local sides and of lengths say that they
    /// have so many elements, of which there are two: the two halves of a correct put.
    ///
    /// # Safety
    /// See [`Ops::raw_put`].
    ///
    /// # Errors
    /// See [`Ops::raw_put`].
    pub unsafe fn raw_vectors(
        &self,
        pe: u32,
        to: SymAddr,
        from: SymAddr,
        len: u64,
        (signal, amo): (SymAddr, &Amo),
        say: [usize; 3],
    ) -> Result<Status> {
        let call = self.amo_call(pe, signal, amo)?;
        let half = len / 2;
        let mut parts = [
            self.sound(pe, to, from, half)?,
            self.sound(pe, to.plus(half), from.plus(half), len - half)?,
        ];
        let mut remote = parts.each_mut().map(RawRma::remote);
        let (mut local, mut bytes) =
            (parts.each_ref().map(|p| p.local), parts.each_ref().map(|p| p.bytes));
        let (remote, local, bytes) = (
            remote.get_mut(..say[0]).unwrap_or_default(),
            local.get_mut(..say[1]).unwrap_or_default(),
            bytes.get_mut(..say[2]).unwrap_or_default(),
        );
        // SAFETY: the caller vouches for it.
        let status =
            unsafe { self.shared.transport.put_signal(pe, remote, local, bytes, &call, self.qp()) };
        Ok(Status(status))
    }

    /// The arguments of a correct put, which is one piece.
    fn sound(&self, pe: u32, to: SymAddr, from: impl Into<Place>, len: u64) -> Result<RawRma> {
        let pieces = self.plan(pe, to, from, len)?;
        let [piece] = pieces[..] else {
            return Err(Error::Usage(format!("{} pieces where one is meant", pieces.len())));
        };
        // SAFETY: the handles are those of this PE's regions, 512 bytes each at any alignment.
        let handle = Box::new(unsafe { piece.remote.handle.read_unaligned() });
        Ok(RawRma {
            pe,
            verb: verb(c::NVT_OP_PUT, true),
            remote: piece.remote,
            remote_handle: Some(handle),
            local: piece.local,
            bytes: bytes_of(len),
        })
    }
}

/// The arguments of an `rma` call that [`Ops::raw_put`] lets a test change.
#[derive(Debug)]
pub struct RawRma {
    /// Which PE.
    pub pe: u32,
    /// The verb.
    pub verb: c::nvt_rma_verb,
    /// The remote side, whose handle is taken from `remote_handle`.
    pub remote: c::nvt_rma_memdesc,
    /// A copy of the remote side's handle; a null pointer is passed when there is none.
    pub remote_handle: Option<Box<c::nvt_mem_handle>>,
    /// The local side.
    pub local: c::nvt_rma_memdesc,
    /// How much.
    pub bytes: c::nvt_rma_bytesdesc,
}

impl RawRma {
    /// The remote side with its handle.
    fn remote(&mut self) -> c::nvt_rma_memdesc {
        let handle = self.remote_handle.as_mut().map_or(std::ptr::null_mut(), |h| &raw mut **h);
        c::nvt_rma_memdesc { handle, ..self.remote }
    }
}
