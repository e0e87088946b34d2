//! A lane, used as the plugin's entries use it.

use engine::error::EngineError;
use engine::lane::Lane;
use engine::lane::fast_path::{FastPutSignal, FastTransfer, NotStarted};
use engine::port::{Desc, Local, Port};
use engine::request::{AtomicRequest, PutSignalRequest};
use engine::request::{LocalSide, Request};
use engine::state::batch::Batch;

/// Operations as the plugin's entries do them: in the fast path where there is one.
pub(crate) trait AsEntry {
    fn begin_in(&mut self, request: &Request<'_>, batch: Batch) -> Result<(), EngineError>;
    fn amo_in(&mut self, request: &AtomicRequest<'_>, batch: Batch) -> Result<(), EngineError>;
    fn signal_in(
        &mut self,
        request: &PutSignalRequest<'_>,
        batch: Batch,
    ) -> Result<(), EngineError>;

    fn begin(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        self.begin_in(request, Batch::NONE)
    }

    fn amo(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        self.amo_in(request, Batch::NONE)
    }

    fn signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        self.signal_in(request, Batch::NONE)
    }
}

impl<P: Port> AsEntry for Lane<P> {
    fn begin_in(&mut self, request: &Request<'_>, batch: Batch) -> Result<(), EngineError> {
        let local = match request.local {
            LocalSide::Value(value) => Local::Inline(value),
            LocalSide::Memory { addr, .. } => Local::Memory { addr, desc: Desc(0) },
        };
        let common = FastTransfer {
            direction: request.direction,
            pe: request.pe,
            handle: request.remote_handle,
            addr: request.remote_addr,
            local,
            len: request.len,
        };
        let tried = match self.try_start(common, batch) {
            Err(NotStarted::Untried(common)) => self.retry_start(common, batch),
            tried => tried,
        };
        let started = match tried {
            Ok(()) => Ok(()),
            Err(NotStarted::Untried(_)) => self.start(request),
            Err(NotStarted::Declined(declined)) => self.start_declined(declined),
        };
        self.end_burst();
        started
    }

    fn amo_in(&mut self, request: &AtomicRequest<'_>, batch: Batch) -> Result<(), EngineError> {
        let AtomicRequest { pe, remote_handle, remote_addr, atomic, .. } = request;
        if !atomic.op.fetches() && self.try_atomic(*pe, remote_handle, *remote_addr, atomic, batch)
        {
            return Ok(());
        }
        self.atomic(request)
    }

    fn signal_in(
        &mut self,
        request: &PutSignalRequest<'_>,
        batch: Batch,
    ) -> Result<(), EngineError> {
        let AtomicRequest { pe, remote_handle, remote_addr, atomic, .. } = request.signal;
        if let [part] = request.parts {
            if let LocalSide::Memory { addr: from, .. } = part.local {
                let common = FastPutSignal {
                    pe,
                    data_handle: part.remote_handle,
                    data_addr: part.remote_addr,
                    from,
                    len: part.len,
                    handle: remote_handle,
                    addr: remote_addr,
                    atomic,
                };
                let sent = self.try_put_signal(common, batch);
                if sent.or_else(|common| self.retry_put_signal(common, batch)).is_ok() {
                    return Ok(());
                }
            }
        }
        self.put_signal(request)
    }
}
