//! Operations of a lane on its rails: posting, and polling for completions.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, fi_cq_data_entry};

use crate::data_path::bulk::Bulk;
use crate::data_path::messages::FailedOp;
use crate::data_path::port::{FastRail, OfiPort, PortRail, no_such_rail};
use crate::error::{port_error, posted, refused};
use crate::objects::contexts::{Contexts, context_at, index_in};
use crate::objects::endpoint::Rma;
use engine::ids::{Pe, RailId, WrId};
use engine::port::{
    Completions, DataPath, Direction, Failure, Local, Operation, PeerAddr, Polled, PortError,
    Posted, RailLimits, Transfer, dispatch_completions,
};

impl DataPath for OfiPort {
    type Fast = FastRail;

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, rail: RailId) -> &str {
        self.rails.get(rail.index()).map_or("?", |rail| &rail.rail.name)
    }

    fn takes_unregistered(&self) -> bool {
        self.rails.iter().all(|rail| !rail.rail.domain.needs_desc())
    }

    #[inline]
    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Posted, PortError> {
        let (Operation::Transfer(transfer) | Operation::WriteWithImmediate(transfer, _)) =
            operation;
        let Some(port_rail) = self.rails.get(rail.index()) else { return Err(no_such_rail(rail)) };
        let Some(context) = self.contexts.context(wr_id) else { return Err(no_such_wr_id(wr_id)) };
        // SAFETY: `&mut self` makes this the only thread, and the work-request id is not in use.
        let op = unsafe { rma(&self.contexts, port_rail, wr_id, to, context, transfer) };
        let Some(op) = op else { return Err(not_inline(transfer)) };
        let endpoint = &port_rail.rail.endpoint;
        let gate = port_rail.gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, and the gate is entered. The
        // context and inline values live as long as the rail. The engine keeps registered memory
        // until the work-request id comes back, as `Local::Memory` demands.
        let (call, code) = unsafe {
            match (transfer.direction, operation) {
                (Direction::Read, _) => ("fi_read", endpoint.ops.read(&op)),
                (_, Operation::WriteWithImmediate(_, data)) => {
                    ("fi_writedata", endpoint.write_data(&op, data))
                }
                (Direction::Write, _) => ("fi_write", endpoint.ops.write(&op)),
            }
        };
        drop(gate);
        posted(port_rail.rail.domain.library(), call, code)
    }

    fn post_bulk(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        operation: Operation<'_>,
    ) -> Result<Option<Posted>, PortError> {
        let (Operation::Transfer(transfer) | Operation::WriteWithImmediate(transfer, _)) =
            operation;
        let port_rail = self.rails.get_mut(rail.index());
        let bulk = port_rail.and_then(|port_rail| port_rail.bulk.as_deref_mut());
        let (Some(bulk), Some(context)) = (bulk, self.contexts.context(wr_id)) else {
            return Ok(None);
        };
        bulk.post(to, wr_id, context, operation, transfer)
    }

    fn ended_process(&mut self) -> Option<Pe> {
        let entry = |process: &(Pe, OwnedFd)| libc::pollfd {
            fd: process.1.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries: Vec<libc::pollfd> = self.processes.iter().map(entry).collect();
        // SAFETY: an array of that length; a timeout of 0 does not wait.
        let found = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, 0) };
        let ended = |entry: &libc::pollfd| entry.revents != 0;
        let at = (found > 0).then(|| entries.iter().position(ended)).flatten()?;
        Some(self.processes.swap_remove(at).0)
    }

    fn endpoint_error(&mut self, rail: RailId) -> Option<PortError> {
        let PortRail { rail, gate, .. } = self.rails.get(rail.index())?;
        let _gate = gate.enter();
        rail.endpoint.endpoint_error()
    }

    fn has_fast_path(&self) -> bool {
        self.rails.iter().all(|rail| rail.gate.is_absent())
    }

    fn fast(&self, rail: RailId) -> FastRail {
        let ops = self.rails[rail.index()].rail.endpoint.ops;
        let ops = if self.has_fast_path() { ops } else { ops.refusing() };
        FastRail { ops, contexts: self.contexts.base() }
    }

    #[inline(always)]
    fn try_post(
        &mut self,
        fast: FastRail,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        transfer: &Transfer,
    ) -> bool {
        let (buf, desc) = match transfer.local {
            Local::Memory { addr, desc } => (addr as *mut c_void, desc.0),
            Local::Value(value) => {
                let Some(port_rail) = self.rails.get(rail.index()) else { return false };
                // SAFETY: `&mut self` is the only thread, and the work-request id is not in use.
                match unsafe { self.contexts.set_value(wr_id, value) } {
                    Some(place) if is_inline(transfer) => (place, port_rail.values_desc),
                    _ => return false,
                }
            }
        };
        // Not by `rma`, with which the fast path would need more registers.
        let op = Rma {
            buf,
            len: transfer.len,
            desc: desc as *mut c_void,
            peer: to.0,
            remote: transfer.remote,
            key: transfer.key,
            context: context_at(fast.contexts, wr_id),
        };
        // SAFETY: as in `post`, without a gate: with one `fast` refuses. It is of a rail of this
        // port, which keeps the endpoint open. There is a context for each `wr_id` that the trait
        // admits.
        let code = unsafe {
            match transfer.direction {
                Direction::Write => fast.ops.write(&op),
                Direction::Read => fast.ops.read(&op),
            }
        };
        code == 0
    }

    #[inline(always)]
    fn has_completions(&mut self, rail: RailId) -> bool {
        let Some(port_rail) = self.rails.get(rail.index()) else { return true };
        if !port_rail.gate.is_absent() || port_rail.messages.needs_repost {
            return true;
        }
        // SAFETY: the lane's only thread, without a gate; the rail keeps the queue open.
        let code = unsafe { port_rail.queue.read(&mut self.entries) };
        if code == -(FI_EAGAIN as isize) {
            return false;
        }
        self.fetched = code;
        true
    }

    #[inline(always)]
    fn drain(&mut self, rail: RailId, completions: &mut impl Completions) -> Polled {
        let code = match std::mem::replace(&mut self.fetched, 0) {
            0 => match self.fetch(rail) {
                Ok(code) => code,
                Err(error) => return broken(error),
            },
            code => code,
        };
        let Self { rails, contexts, entries, .. } = self;
        let Some(port_rail) = rails.get_mut(rail.index()) else {
            return broken(no_such_rail(rail));
        };
        if code <= 0 {
            return if code == -(FI_EAGAIN as isize) || code == 0 {
                Polled::Empty
            } else {
                poll_failed(contexts, port_rail, code)
            };
        }
        // SAFETY: libfabric has written `code` entries, at most the capacity, and nobody else
        // since.
        let entries = unsafe { entries.written(code as usize) };
        let mut others = OtherCompletions { count: 0, wrong: None };
        let base = contexts.base();
        let index_of = |entry: &fi_cq_data_entry| index_in(base, entry.op_context);
        dispatch_completions(completions, entries, index_of, |left| {
            others.take(port_rail, contexts, left)
        });
        if others.count == 0 {
            return Polled::Completed(entries.len());
        }
        others.polled(entries.len())
    }
}

/// Completions of a poll that are not of segments: messages that have arrived or were sent, and
/// immediate data of peers. Out of line, so that the loop over segments is short.
struct OtherCompletions {
    count: usize,
    wrong: Option<PortError>,
}

impl OtherCompletions {
    #[inline(never)]
    fn take(
        &mut self,
        port_rail: &mut PortRail,
        contexts: &Contexts,
        left: &[fi_cq_data_entry],
    ) -> usize {
        let PortRail { rail, messages, .. } = port_rail;
        let is_other = |entry: &fi_cq_data_entry| contexts.wr_id(entry.op_context).is_none();
        let mut taken = 0;
        for entry in left {
            // Most are messages that have arrived, which need no look-up.
            if messages.take_message(entry) {
                taken += 1;
                continue;
            }
            if taken != 0 && !is_other(entry) {
                break;
            }
            taken += 1;
            if let Err(error) = messages.take_entry(rail, entry) {
                self.wrong.get_or_insert(error);
            }
        }
        self.count += taken;
        taken
    }

    /// Returns the result of a poll with `all` entries.
    #[inline(never)]
    fn polled(self, all: usize) -> Polled {
        match (self.wrong, all - self.count) {
            (Some(error), _) => broken(error),
            (None, 0) => Polled::Empty,
            (None, count) => Polled::Completed(count),
        }
    }
}

impl OfiPort {
    #[cold]
    fn fetch(&mut self, rail: RailId) -> Result<isize, PortError> {
        let port_rail = self.rails.get_mut(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let PortRail { rail, gate, messages, queue, .. } = port_rail;
        if messages.needs_repost {
            messages.repost(rail, gate)?;
        }
        let _entered = gate.enter();
        // SAFETY: the lane's only thread, with the gate entered; the rail keeps the queue open.
        Ok(unsafe { queue.read(&mut self.entries) })
    }
}

/// Builds libfabric's arguments of a segment; None for an inline value that it cannot take.
///
/// # Safety
/// Called by the port's only thread, with a work-request id that is not in use.
#[inline(always)]
unsafe fn rma(
    contexts: &Contexts,
    port_rail: &PortRail,
    wr_id: WrId,
    to: PeerAddr,
    context: *mut c_void,
    transfer: &Transfer,
) -> Option<Rma> {
    let (buf, desc) = match transfer.local {
        Local::Memory { addr, desc } => (addr as *mut c_void, desc.0),
        Local::Value(value) => {
            if !is_inline(transfer) {
                return None;
            }
            // SAFETY: by contract.
            (unsafe { contexts.set_value(wr_id, value) }?, port_rail.values_desc)
        }
    };
    Some(Rma {
        buf,
        len: transfer.len,
        desc: desc as *mut c_void,
        peer: to.0,
        remote: transfer.remote,
        key: transfer.key,
        context,
    })
}

#[inline(always)]
fn is_inline(transfer: &Transfer) -> bool {
    transfer.len <= size_of::<u64>() && transfer.direction == Direction::Write
}

#[cold]
fn poll_failed(contexts: &Contexts, port_rail: &mut PortRail, code: isize) -> Polled {
    let PortRail { rail, gate, messages, bulk, .. } = port_rail;
    if let Some(failure) = bulk.as_deref_mut().and_then(Bulk::take_failure) {
        return Polled::Failed(Box::new(failure));
    }
    if code != -(FI_EAVAIL as isize) {
        return broken(port_error(rail.domain.library(), "fi_cq_read", code as i64));
    }
    let entered = gate.enter();
    // SAFETY: called only by `drain`, which borrows the port exclusively; the gate is entered.
    let entry = unsafe { rail.endpoint.read_error() };
    drop(entered);
    let Some((context, mut error)) = entry else { return Polled::Empty };
    let wr_id = contexts.wr_id(context);
    let (wr_id, is_message) = match wr_id {
        Some(_) => (wr_id, false),
        None => match messages.failed(rail, context, &mut error) {
            FailedOp::Sent(wr_id) => (Some(wr_id), true),
            FailedOp::Rail => (None, false),
            FailedOp::Received => return Polled::Empty,
        },
    };
    Polled::Failed(Box::new(Failure { wr_id, is_message, error }))
}

#[cold]
fn broken(error: PortError) -> Polled {
    Polled::Failed(Box::new(Failure { wr_id: None, is_message: false, error }))
}

#[cold]
fn no_such_wr_id(wr_id: WrId) -> PortError {
    refused("posting", format!("work-request id {} is beyond the port's capacity", wr_id.0))
}

#[cold]
fn not_inline(transfer: &Transfer) -> PortError {
    refused("posting", format!("{} bytes cannot be an inline write", transfer.len))
}
