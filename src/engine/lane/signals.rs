//! Atomics, and puts with signal: submitted in a way that keeps signal behind data, in calls that turn the loop
//! while there is no room.

use crate::engine::atomics::fabric;
use crate::engine::error::EngineError;
use crate::engine::ids::Pe;
use crate::engine::lane::Lane;
use crate::engine::port::Port;
use crate::engine::port::copies::Reach;
use crate::engine::posting::dispatch::Behind;
use crate::engine::posting::failure::local_fault;
use crate::engine::rails::paths::Hop;
use crate::engine::recovery::Recovery;
use crate::engine::request::{AtomicRequest, LocalSide, PutSignalRequest, Request, refused};
use crate::engine::signal::Way;
use crate::engine::signal::counted::{Counting, Tagged};
use crate::engine::state::regions::Place;
use crate::engine::striping::pinned::{pinned_path, submit_pinned};
use crate::engine::wire::handle::HandleView;
use crate::engine::wire::message::{Body, MAX_EAGER, Mark, Spot, Tag};

impl<P: Port> Lane<P> {
    /// Starts an atomic operation. [`Lane::quiet`] waits for its end; a fetched word, and its flag
    /// after it, are stored as soon as they arrive.
    ///
    /// It is carried out by the peer's proxy thread, exactly once, in order behind a fence. A signal's own
    /// operations ([`AtomicOp::is_signal`](crate::engine::atomic::AtomicOp::is_signal)) take effect behind the puts
    /// that this lane has started to the same PE before: NVSHMEM's host interface sends a put and its signal as two
    /// calls with no fence in between.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that takes nothing more.
    #[inline]
    pub fn atomic(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        if request.pe == self.core.me {
            // Before layout 4 a put with signal comes as put, fence and atomic, and NVSHMEM leaves
            // out the fence for the PE itself.
            self.fence(request.pe)?;
        }
        self.end_burst();
        let what = if request.atomic.op.is_signal() { Behind::Puts } else { Behind::Nothing };
        let mut idle = 0;
        while !self.submit_atomic(request, what, None)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Starts a put whose signal becomes visible after its data. No other operation is waited for,
    /// and none waits for this one.
    ///
    /// # Errors
    /// As [`Lane::atomic`].
    pub fn put_signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        self.end_burst();
        let PutSignalRequest { parts, signal } = request;
        let bytes: usize = parts.iter().map(|part| part.len).sum();
        if bytes == 0 {
            return self.atomic(signal);
        }
        let staged = self.has_staged_part(request)?;
        if self.core.atomics.is_some() && !is_staged_word(signal) {
            return self.put_signal_chained(parts, signal);
        }
        match self.signals.way(&self.core, parts, staged) {
            Way::Eager => self.put_signal_eager(&parts[0], signal),
            Way::Ordered => self.put_signal_ordered(parts, signal),
            Way::Counted => self.put_signal_counted(request),
            Way::Chained => self.put_signal_chained(parts, signal),
        }
    }

    /// Whether the signal or some part of the data is staged, here or there.
    fn has_staged_part(&mut self, request: &PutSignalRequest<'_>) -> Result<bool, EngineError> {
        if is_staged_word(&request.signal) {
            return Ok(true);
        }
        for part in request.parts {
            let remote = HandleView::check(part.remote_handle)
                .map_err(|fault| refused(part, "remote", fault))?;
            if self.staging.is_staged(&mut self.core, part, &remote)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Data and signal in one message.
    fn put_signal_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let mut payload = [0; MAX_EAGER];
        let payload = &mut payload[..part.len];
        let LocalSide::Memory { addr, handle } = part.local else {
            return self.put_signal_chained(&[*part], signal);
        };
        let mut reach = Reach::Direct;
        if self.core.devices {
            let Self { core, staging, .. } = self;
            reach = staging.local_reach(core, signal.pe, addr, part.len, handle)?;
        }
        self.staging
            .load_at(&mut self.core, Place { addr, reach }, payload)
            .map_err(|error| local_fault(signal.pe, &error))?;
        let remote = HandleView::check(part.remote_handle)?;
        let offset = remote.locate(part.remote_addr, part.len as u64)?;
        let to = Spot { slot: remote.slot(), offset };
        let mut idle = 0;
        let body = |at, atomic| Body::PutSignal { at, atomic, to, payload };
        while !self.core.try_message(signal, Behind::Nothing, None, body)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Data, then signal, on one rail that keeps their order.
    fn put_signal_ordered(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let bytes = parts.iter().map(|part| part.len).sum();
        let mut path = pinned_path(&mut self.core, signal.pe, bytes)?;
        let number = self.recovery.as_deref_mut().map(Recovery::new_order);
        for part in parts {
            let mut sent = 0;
            let mut idle = 0;
            loop {
                path = self.path_still(signal.pe, path)?;
                submit_pinned(&mut self.core, part, &path, number, &mut sent)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        let mut idle = 0;
        loop {
            path = self.path_still(signal.pe, path)?;
            self.core.stream_to(signal.pe)?.next = path;
            if self.try_ordered(signal, number)? {
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    /// Submits the signal of a put on a rail that keeps the order, with the put's number, if there is one.
    fn try_ordered(
        &mut self,
        signal: &AtomicRequest<'_>,
        number: Option<u32>,
    ) -> Result<bool, EngineError> {
        let submitted = self.submit_atomic(signal, Behind::Nothing, number);
        if let (Some(recovery), false) =
            (self.recovery.as_deref_mut(), matches!(submitted, Ok(false)))
        {
            recovery.ordering = None;
        }
        submitted
    }

    /// The path, as it is now; another, if it has failed. What was sent over it before then leaves it as
    /// well, and messages wait for that.
    fn path_still(&mut self, pe: Pe, path: Hop) -> Result<Hop, EngineError> {
        let next = self.core.stream_to(pe)?.next;
        if !self.core.recovers {
            return Ok(path);
        }
        let out = self.core.paths.is_out(pe, path.rail);
        Ok(if out { next } else { self.core.paths.get(pe, path.rail) })
    }

    /// Data on all rails; the signal is sent when its own data, and nothing else, is delivered.
    pub(in crate::engine) fn put_signal_chained(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
    ) -> Result<(), EngineError> {
        let op = self.begin_op();
        let mut idle = 0;
        for part in parts {
            let mut sent = 0;
            loop {
                self.submit(part, &mut sent, op)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        while !self.submit_atomic(signal, Behind::Operation(op), None)? {
            self.make_room(&mut idle)?;
        }
        Ok(())
    }

    /// Data on all rails, with the signal beside it.
    pub(in crate::engine) fn put_signal_counted(
        &mut self,
        request: &PutSignalRequest<'_>,
    ) -> Result<(), EngineError> {
        let PutSignalRequest { parts, signal } = request;
        let mut idle = 0;
        let tag = loop {
            match self.signals.take_tag(&mut self.core, signal.pe)? {
                Tagged::With(tag) => break tag,
                Tagged::Never => return self.put_signal_chained(parts, signal),
                Tagged::Later => self.make_room(&mut idle)?,
            }
            if let Some(failed) = &self.core.failure {
                return Err((**failed).clone());
            }
        };
        let sent = self.send_counted(parts, signal, tag);
        if sent.is_err() {
            self.signals.retire(&mut self.core, signal.pe);
        }
        sent
    }

    fn send_counted(
        &mut self,
        parts: &[Request<'_>],
        signal: &AtomicRequest<'_>,
        tag: Tag,
    ) -> Result<(), EngineError> {
        let mut counting =
            Counting { data: Mark { from: self.core.me, tag }.encode(), segments: 0 };
        let mut idle = 0;
        for part in parts {
            let mut sent = 0;
            loop {
                self.submit_counted(part, &mut sent, &mut counting)?;
                if sent == part.len {
                    break;
                }
                self.make_room(&mut idle)?;
            }
        }
        loop {
            let segments = counting.segments;
            let body = |at, atomic| Body::CountedSignal { at, atomic, tag, segments };
            if self.core.try_message(signal, Behind::Nothing, None, body)? {
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    /// Submits an atomic if there is room for it, to leave behind `what`. `order` is the number of the ordered put
    /// that it is the signal of. Never blocks.
    #[inline]
    fn submit_atomic(
        &mut self,
        request: &AtomicRequest<'_>,
        what: Behind,
        order: Option<u32>,
    ) -> Result<bool, EngineError> {
        if self.core.atomics.is_some() && !is_staged_word(request) {
            return fabric::submit(&mut self.core, request, what);
        }
        self.core.try_message(request, what, order, |at, atomic| Body::Atomic { at, atomic })
    }
}

/// Whether a word is in staged memory, by its handle.
fn is_staged_word(request: &AtomicRequest<'_>) -> bool {
    HandleView::check(request.remote_handle).is_ok_and(|remote| remote.is_staged())
}
