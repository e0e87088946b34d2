//! Calls as a broken host could make them: correct ones, whose arguments a test then changes, or
//! with NULL where a descriptor belongs.

use std::ptr::{null, null_mut};

use nvshmem_abi::c;

use crate::error::{Error, Result, Status};
use crate::host::ops::{Amo, Ops, bytes_of, verb};
use crate::host::transport::{Hint, Vectors};
use crate::memory::address::{Place, SymAddr};

/// The arguments of an `rma` call that [`Ops::raw_put`] lets a test change.
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

impl RawRma {
    fn remote(&mut self) -> c::nvt_rma_memdesc {
        let handle = self.remote_handle.as_mut().map_or(null_mut(), |handle| &raw mut **handle);
        c::nvt_rma_memdesc { handle, ..self.remote }
    }
}

impl Ops {
    /// Calls `rma` with whatever a broken host could pass, and returns the plugin's status. `edit`
    /// changes the arguments of an otherwise correct put.
    ///
    /// # Safety
    /// Should the plugin accept the call, the local side is valid memory, and at the remote side
    /// nothing is hit that must not be.
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
        Ok(Status(unsafe {
            let t = &self.shared.transport;
            t.rma(pe, verb, &raw mut remote, &raw mut local, bytes, qp, Hint::default())
        }))
    }

    /// As [`Ops::raw_put`] for the put of a put with signal, where the layout has that. The signal
    /// is sound.
    ///
    /// # Safety
    /// See [`Ops::raw_put`].
    #[allow(clippy::too_many_arguments, reason = "NVSHMEM's own call has as many")]
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
        let sides = (&mut [raw.remote()][..], &mut [raw.local][..], &mut [raw.bytes][..]);
        // SAFETY: the caller vouches for it.
        Ok(Status(unsafe { self.shared.transport.put_signal(raw.pe, sides, &call, self.qp()) }))
    }

    /// A put with signal whose vectors of remote sides, of local sides and of lengths say that they
    /// have so many elements, of which there are two: the two halves of a correct put.
    ///
    /// # Safety
    /// See [`Ops::raw_put`].
    pub unsafe fn raw_vectors(
        &self,
        pe: u32,
        to: SymAddr,
        from: SymAddr,
        len: u64,
        (signal, amo): (SymAddr, &Amo),
        [remotes, locals, lengths]: [usize; 3],
    ) -> Result<Status> {
        let call = self.amo_call(pe, signal, amo)?;
        let half = len / 2;
        let mut parts = [
            self.sound(pe, to, from, half)?,
            self.sound(pe, to.plus(half), from.plus(half), len - half)?,
        ];
        let mut remote = parts.each_mut().map(RawRma::remote);
        let (mut local, mut bytes) =
            (parts.each_ref().map(|part| part.local), parts.each_ref().map(|part| part.bytes));
        let sides = (&mut remote[..remotes], &mut local[..locals], &mut bytes[..lengths]);
        // SAFETY: the caller vouches for it.
        Ok(Status(unsafe { self.shared.transport.put_signal(pe, sides, &call, self.qp()) }))
    }

    /// Makes every call with each of its pointers NULL in turn, and the others sound. Returns which
    /// pointer it was, and what the plugin has answered.
    pub fn null_calls(&self, pe: u32, word: SymAddr) -> Result<Vec<(String, i32)>> {
        let mut answers = Vec::new();
        let (t, qp) = (&self.shared.transport, self.qp());
        let mut sound = self.sound(pe, word, word, 8)?;
        let (mut remote, mut local) = (sound.remote(), sound.local);
        let signal = self.amo_call(pe, word, &Amo::new(c::NVT_AMO_SIGNAL_SET, 8, 0))?;
        let fetch = self.amo_call(pe, word, &Amo::new(c::NVT_AMO_FETCH_ADD, 8, 0))?;
        for desc in [c::NVT_OP_PUT, c::NVT_OP_GET, c::NVT_OP_P, c::NVT_OP_G] {
            for (is_nbi, is_local) in [(false, false), (false, true), (true, false), (true, true)] {
                let verb = verb(desc, is_nbi);
                let bytes = match desc {
                    c::NVT_OP_P => c::nvt_rma_bytesdesc { elembytes: 8, ..bytes_of(1) },
                    _ => bytes_of(8),
                };
                let (there, here) = match is_local {
                    true => (&raw mut remote, null_mut()),
                    false => (null_mut(), &raw mut local),
                };
                // SAFETY: descriptors are locals of memory that stays, or NULL.
                let (plain, hinted) = unsafe {
                    (
                        t.plain_rma(pe, verb, there, here, bytes, qp),
                        t.rma(pe, verb, there, here, bytes, qp, Hint::default()),
                    )
                };
                let what = format!("a side of operation {desc}, nbi {is_nbi}, local {is_local}");
                answers.extend([(what.clone(), plain), (what + ", with hints", hinted)]);
            }
        }
        for call in [&signal, &fetch] {
            // SAFETY: nothing is passed that the call might use.
            let status = unsafe { t.amo(pe, call, qp, Some(null_mut())) };
            answers.push((format!("descriptor of atomic {}", call.desc), status));
        }
        for which in (0..7).filter(|_| t.has_put_signal()) {
            let (mut bytes, mut mem) = (bytes_of(8), signal.mem);
            let (mut remote, mut local) = ([remote], [local]);
            let mut vectors =
                Vectors::of(&mut remote, &mut local, std::slice::from_mut(&mut bytes));
            // One element at NULL.
            let sides = match which {
                4 => Some(&mut vectors.remote),
                5 => Some(&mut vectors.local),
                _ => None,
            };
            if let Some(side) = sides {
                (side.begin, side.end) =
                    (null_mut(), null_mut::<c::nvt_rma_memdesc>().wrapping_add(1));
            } else if which == 6 {
                let end = null_mut::<c::nvt_rma_bytesdesc>().wrapping_add(1);
                (vectors.bytes.begin, vectors.bytes.end) = (null_mut(), end);
            }
            let (there, here, lengths) = vectors.pointers();
            let sides = (
                if which == 0 { null() } else { there },
                if which == 1 { null() } else { here },
                if which == 2 { null() } else { lengths },
            );
            let mem = if which == 3 { null_mut() } else { &raw mut mem };
            // SAFETY: vectors and descriptors are locals of memory that stays, or NULL.
            let status = unsafe { t.raw_put_signal(pe, sides, &signal, mem, qp) };
            answers.push((format!("pointer {which} of put_signal"), status));
        }
        let mut handle = c::nvt_mem_handle::default();
        // SAFETY: memory that stays, and a place for its handle; NULL is what the calls are to
        // refuse.
        let registered = unsafe {
            [
                t.raw_register(null_mut(), local.ptr, 8, true),
                t.raw_register(&raw mut handle, null_mut(), 8, true),
            ]
        };
        for (what, status) in ["handle of registration", "memory", "handle to release", "PE"]
            .into_iter()
            .zip(registered.into_iter().chain(t.null_answers()))
        {
            answers.push((what.to_owned(), status));
        }
        Ok(answers)
    }

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
