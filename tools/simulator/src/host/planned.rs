//! Operations made ready once and issued many times: a loop that measures neither looks chunks up
//! nor allocates.

use std::sync::atomic::Ordering;

use nvshmem_abi::c;

use crate::error::{Error, Result, check};
use crate::host::ops::{Amo, Ops, bytes_of};
use crate::host::regions::Piece;
use crate::host::shared::Doing;
use crate::host::transport::AmoCall;
use crate::memory::address::{Place, SymAddr};

/// An atomic operation on a word of a PE's heap, ready to be issued.
#[derive(Clone, Copy, Debug)]
pub struct PlannedAmo {
    pe: u32,
    call: AmoCall,
}

// SAFETY: the pointers are to memory and handles of this PE's regions, or are addresses in another
// PE. They mean the same on every thread.
unsafe impl Send for PlannedAmo {}
// SAFETY: as above.
unsafe impl Sync for PlannedAmo {}

impl PlannedAmo {
    /// The same with another operand.
    #[must_use]
    pub fn with_value(mut self, value: u64) -> PlannedAmo {
        self.call.mem.val = value;
        self
    }

    /// The same with another value for the flag that follows a fetched word.
    #[must_use]
    pub fn with_flag(mut self, flag: u64) -> PlannedAmo {
        self.call.mem.retflag = flag;
        self
    }
}

impl Ops {
    /// Cuts a transfer into the pieces that [`Ops::issue_put`] and [`Ops::issue_get`] take.
    ///
    /// # Errors
    /// A place that does not exist.
    pub fn plan(
        &self,
        pe: u32,
        remote: SymAddr,
        local: impl Into<Place>,
        len: u64,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.shared.regions.cut(pe, remote, local.into(), len, |piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    /// Makes an atomic operation ready for [`Ops::issue_amo`] and [`Ops::issue_put_signal`].
    ///
    /// # Errors
    /// A place that does not exist.
    pub fn plan_amo(&self, pe: u32, target: SymAddr, amo: &Amo) -> Result<PlannedAmo> {
        Ok(PlannedAmo { pe, call: self.amo_call(pe, target, amo)? })
    }

    /// Writes a planned piece; complete after a quiet.
    ///
    /// # Errors
    /// The plugin's status.
    #[inline]
    pub fn issue_put(&self, piece: &Piece) -> Result<()> {
        self.issue(c::NVT_OP_PUT, true, piece)
    }

    /// Reads a planned piece; there after a quiet.
    ///
    /// # Errors
    /// The plugin's status.
    #[inline]
    pub fn issue_get(&self, piece: &Piece) -> Result<()> {
        self.issue(c::NVT_OP_GET, true, piece)
    }

    /// A planned atomic operation; complete after a quiet, or when its flag is there.
    ///
    /// # Errors
    /// The plugin's status.
    #[inline]
    pub fn issue_amo(&self, amo: &PlannedAmo) -> Result<()> {
        let PlannedAmo { pe, call } = amo;
        if call.desc > c::NVT_AMO_END_OF_NONFETCH {
            self.got.store(true, Ordering::Relaxed);
        }
        self.enter(Doing::Amo, *pe);
        // SAFETY: the return location is in this PE's heap, which lives as long as the transport.
        let status = unsafe { self.shared.transport.amo(*pe, call, self.qp()) };
        self.leave();
        check(status, || format!("amo({}) to PE {pe}", call.desc))
    }

    /// Writes a planned piece, and the signal of the same PE after it, in one call of the plugin.
    ///
    /// # Errors
    /// The plugin's status, a layout without such a call, or a signal of another PE.
    #[inline]
    pub fn issue_put_signal(&self, piece: &Piece, signal: &PlannedAmo) -> Result<()> {
        if !self.shared.transport.has_put_signal() || piece.pe != signal.pe {
            let text = format!("no put to PE {} with a signal to PE {}", piece.pe, signal.pe);
            return Err(Error::Usage(text));
        }
        let (mut remote, mut local) = ([piece.remote], [piece.local]);
        let mut bytes = [bytes_of(piece.len)];
        self.enter(Doing::PutSignal, piece.pe);
        // SAFETY: the local side is in this PE's regions, which live as long as the transport.
        let status = unsafe {
            let t = &self.shared.transport;
            t.put_signal(piece.pe, &mut remote, &mut local, &mut bytes, &signal.call, self.qp())
        };
        self.leave();
        check(status, || format!("put_signal to PE {}", piece.pe))
    }
}
