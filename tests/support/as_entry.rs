//! A lane, used as the plugin's entries use it.

use nvshmem_transport_libfabric::engine::error::EngineError;
use nvshmem_transport_libfabric::engine::lane::Lane;
use nvshmem_transport_libfabric::engine::lane::fast_path::{Common, CommonSignal, Rest};
use nvshmem_transport_libfabric::engine::port::{Desc, Local, Port};
use nvshmem_transport_libfabric::engine::request::{AtomicRequest, PutSignalRequest};
use nvshmem_transport_libfabric::engine::request::{LocalSide, Request};

/// Operations as the plugin's entries do them: in the short way where there is one.
pub(crate) trait AsEntry {
    fn begin(&mut self, request: &Request<'_>) -> Result<(), EngineError>;
    fn amo(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError>;
    fn signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError>;
}

impl<P: Port> AsEntry for Lane<P> {
    fn begin(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let local = match request.local {
            LocalSide::Value(value) => Local::Inline(value),
            LocalSide::Memory { addr, .. } => Local::Memory { addr, desc: Desc(0) },
        };
        let common = Common {
            direction: request.direction,
            pe: request.pe,
            handle: request.remote_handle,
            addr: request.remote_addr,
            local,
            len: request.len,
        };
        let started = match self.start_at_once(common) {
            Ok(()) => Ok(()),
            Err(Rest::Whole(_)) => self.start(request),
            Err(Rest::Declined(declined)) => self.start_declined(declined),
        };
        self.end_burst();
        started
    }

    fn amo(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        let AtomicRequest { pe, remote_handle, remote_addr, atomic, .. } = request;
        if !atomic.op.fetches() && self.atomic_at_once(*pe, remote_handle, *remote_addr, atomic) {
            return Ok(());
        }
        self.atomic(request)
    }

    fn signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        let AtomicRequest { pe, remote_handle, remote_addr, atomic, .. } = request.signal;
        if let [part] = request.parts {
            if let LocalSide::Memory { addr: from, .. } = part.local {
                let common = CommonSignal {
                    pe,
                    data_handle: part.remote_handle,
                    data_addr: part.remote_addr,
                    from,
                    len: part.len,
                    handle: remote_handle,
                    addr: remote_addr,
                    atomic,
                };
                if self.put_signal_at_once(&common) {
                    return Ok(());
                }
            }
        }
        self.put_signal(request)
    }
}
