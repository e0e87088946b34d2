//! The data path of one lane over libfabric.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL};

use crate::engine::atomic::Atomic;
use crate::engine::ids::{RailId, Token};
use crate::engine::port::fabric_atomic::{FabricAtomic, Row};
use crate::engine::port::{
    Context, Direction, Failure, Incoming, Local, POLL_BATCH, PeerAddr, Polled, Port, PortError,
    Posted, RailLimits, Transfer,
};
use crate::engine::wire::message::{MAX_MESSAGE, Packet};
use crate::ofi::data_path::host_memory;
use crate::ofi::data_path::messages::{Messages, too_long};
use crate::ofi::data_path::rail::Rail;
use crate::ofi::error::{port_error, refused};
use crate::ofi::objects::atomic_calls;
use crate::ofi::objects::completion_queue::{DirectQueue, Entries};
use crate::ofi::objects::contexts::{AtomicCell, Contexts};
use crate::ofi::objects::domain::{Domain, Gate};
use crate::ofi::objects::endpoint::{AtomicPost, Direct, Rma};

/// The rails of one lane.
///
/// Posting, polling and messages allocate nothing and format nothing unless they fail, and lock only
/// where the provider demands it.
#[derive(Debug)]
pub struct OfiPort {
    rails: Box<[PortRail]>,
    contexts: Arc<Contexts>,
    limits: Box<[RailLimits]>,
    /// Whether writes are posted with `FI_MORE` where others follow.
    batches: bool,
    start: Instant,
    /// Where polls leave completions.
    entries: Entries,
    /// What the last poll answered, until [`Port::drain`] has taken it; 0 for nothing.
    fetched: isize,
    /// The control endpoints, one for each rail, where there are some.
    control: Option<Box<OfiPort>>,
}

// Ports are made on one thread and used on others, a lane at a time.
const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<OfiPort>();
};

/// A rail, with what posting needs of it at hand.
#[derive(Debug)]
struct PortRail {
    rail: Arc<Rail>,
    gate: Gate,
    /// Descriptor of the values of inline writes.
    values_desc: usize,
    /// Descriptor of the cells of atomic operations.
    cells_desc: usize,
    /// Whether atomics that fetch nothing are posted as fetching ones.
    always_fetches: bool,
    messages: Messages,
    queue: DirectQueue,
}

/// What goes along with a write.
#[derive(Clone, Copy)]
enum Along {
    Nothing,
    /// Remote data.
    Data(u32),
    /// The word that another write follows at once.
    More,
}

impl OfiPort {
    /// A port over rails that no other port uses. It posts the rails' receives.
    pub(crate) fn new(rails: &[Arc<Rail>], contexts: Arc<Contexts>) -> Result<Self, PortError> {
        let port_rail = |rail: &Arc<Rail>| {
            let gate = rail.domain().gate().clone();
            let mut messages = Messages::new(rail);
            messages.settle(rail, &gate).map_err(|error| on_rail(rail, error))?;
            Ok(PortRail {
                rail: Arc::clone(rail),
                queue: rail.endpoint().queue().direct(),
                gate,
                values_desc: rail.values_desc().0,
                cells_desc: rail.cells_desc().0,
                always_fetches: rail.always_fetches(),
                messages,
            })
        };
        Ok(Self {
            rails: rails.iter().map(port_rail).collect::<Result<_, PortError>>()?,
            contexts,
            limits: rails.iter().map(|rail| rail.limits()).collect(),
            batches: false,
            start: Instant::now(),
            entries: Entries::new(),
            fetched: 0,
            control: None,
        })
    }

    /// The same, with the provider told when more writes follow.
    pub(crate) fn with_batches(self, batches: bool) -> Self {
        Self { batches, ..self }
    }

    /// The same, with another port's endpoints for control messages, one for each rail.
    pub(crate) fn with_control(self, control: Option<OfiPort>) -> Self {
        Self { control: control.map(Box::new), ..self }
    }

    /// The control endpoints.
    pub fn control(&mut self) -> Option<&mut OfiPort> {
        self.control.as_deref_mut()
    }

    /// Polls a rail, whatever stands in the way.
    #[cold]
    fn fetch(&mut self, rail: RailId) -> Result<isize, PortError> {
        let port_rail = self.rails.get_mut(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let PortRail { rail, gate, messages, queue, .. } = port_rail;
        if !messages.is_settled() {
            messages.settle(rail, gate)?;
        }
        let _entered = gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, the gate is entered, and the rail
        // keeps the queue open.
        Ok(unsafe { queue.read(&mut self.entries) })
    }

    /// The number of rails.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Tokens are below this.
    pub fn token_capacity(&self) -> usize {
        self.contexts.capacity()
    }

    /// A rail's own address, for peers to insert. Empty for a rail that does not exist.
    pub fn address(&self, rail: RailId) -> &[u8] {
        match self.rails.get(rail.index()) {
            Some(rail) => rail.rail.endpoint().address(),
            None => &[],
        }
    }

    /// Inserts the addresses of peers' rails into one rail's address vector, in one call, and
    /// gives what to post to, in the same order.
    ///
    /// # Errors
    /// What libfabric refused; addresses by their place in `addresses`.
    pub fn insert<A: AsRef<[u8]>>(
        &mut self,
        rail: RailId,
        addresses: &[A],
    ) -> Result<Vec<PeerAddr>, PortError> {
        let rail = self.rails.get(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let endpoint = rail.rail.endpoint();
        endpoint
            .vector()
            .insert(addresses, endpoint.address().len())
            .map_err(|error| on_rail(&rail.rail, error))
    }

    /// Posts a segment; a write with what goes along with it.
    #[inline]
    fn post_along(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        along: Along,
    ) -> Result<Posted, PortError> {
        let Some(port_rail) = self.rails.get(rail.index()) else { return Err(no_such_rail(rail)) };
        let Some(context) = self.contexts.context(token) else { return Err(no_such_token(token)) };
        // SAFETY: `&mut self` makes this the only thread, and the token is not in use.
        let op = unsafe { rma(&self.contexts, port_rail, token, to, context, transfer) };
        let Some(op) = op else {
            return Err(not_inline(transfer));
        };
        let endpoint = port_rail.rail.endpoint();
        let gate = port_rail.gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, and the gate is entered. The
        // context and inline values live as long as the rail. Other memory is what the engine
        // registered and keeps until the token comes back, as `Local::Memory` demands.
        let code = unsafe {
            match (transfer.direction, along) {
                (Direction::Write, Along::Nothing) => endpoint.write(&op),
                (Direction::Write, Along::Data(data)) => endpoint.write_data(&op, data),
                (Direction::Write, Along::More) => endpoint.write_more(&op),
                (Direction::Read, _) => endpoint.read(&op),
            }
        };
        drop(gate);
        if code == 0 {
            Ok(Posted::Yes)
        } else if code == -(FI_EAGAIN as isize) {
            Ok(Posted::Again)
        } else {
            Err(post_failed(port_rail, transfer.direction, code))
        }
    }
}

impl Port for OfiPort {
    type Short = Direct;

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, rail: RailId) -> &str {
        self.rails.get(rail.index()).map_or("?", |rail| rail.rail.name())
    }

    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.post_along(rail, to, token, transfer, Along::Nothing)
    }

    fn post_with_data(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: u32,
    ) -> Result<Posted, PortError> {
        self.post_along(rail, to, token, transfer, Along::Data(data))
    }

    fn batches(&self) -> bool {
        self.batches
    }

    fn post_more(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.post_along(rail, to, token, transfer, Along::More)
    }

    fn takes_unregistered(&self) -> bool {
        self.rails.iter().all(|rail| !rail.rail.domain().needs_desc())
    }

    fn has_short(&self) -> bool {
        let takes_any = |domain: &Domain| !domain.needs_desc() && !domain.needs_device_desc();
        self.rails.iter().all(|rail| rail.gate.is_open() && takes_any(rail.rail.domain()))
    }

    fn short(&self, rail: RailId) -> Direct {
        self.rails[rail.index()].rail.endpoint().direct()
    }

    fn context(&self, token: Token) -> Context {
        Context(self.contexts.context(token).map_or(0, |context| context as usize))
    }

    #[inline(always)]
    fn post_short(
        &mut self,
        short: Direct,
        to: PeerAddr,
        token: Token,
        context: Context,
        transfer: &Transfer,
    ) -> bool {
        let buf = match transfer.local {
            Local::Memory { addr, .. } => addr as *mut c_void,
            Local::Inline(value) => {
                // SAFETY: `&mut self` makes this the only thread, and the token is not in use.
                match unsafe { self.contexts.set_value(token, value) } {
                    Some(place) if is_inline(transfer) => place,
                    _ => return false,
                }
            }
        };
        let op = Rma {
            buf,
            len: transfer.len,
            desc: std::ptr::null_mut(),
            peer: to.0,
            remote: transfer.remote,
            key: transfer.key,
            context: context.0 as *mut c_void,
        };
        // SAFETY: as in `post`; without a mutex there is no gate to enter. `short` is of a rail of
        // this port and `context` the token's, as the trait demands. The rail keeps the endpoint
        // open.
        let code = unsafe {
            match transfer.direction {
                Direction::Write => short.write(&op),
                Direction::Read => short.read(&op),
            }
        };
        code == 0
    }

    fn post_atomic(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        atomic: &FabricAtomic,
    ) -> Result<Posted, PortError> {
        let Some(port_rail) = self.rails.get(rail.index()) else { return Err(no_such_rail(rail)) };
        let Some(context) = self.contexts.context(token) else { return Err(no_such_token(token)) };
        let Some(cell) = self.contexts.cell(token).filter(|_| port_rail.rail.has_atomics()) else {
            return Err(refused("posting an atomic", String::from("FI_ATOMIC was not asked for")));
        };
        // SAFETY: inside the array. `&mut self` makes this the only thread, and the token is not in
        // use, so the provider does not have the cell.
        unsafe {
            let FabricAtomic { operand, compare, .. } = *atomic;
            cell.write(AtomicCell { operand, compare, result: 0 });
        }
        let row = Row { fetches: atomic.row.fetches || port_rail.always_fetches, ..atomic.row };
        let op = AtomicPost {
            cell,
            desc: port_rail.cells_desc as *mut c_void,
            peer: to.0,
            remote: atomic.remote,
            key: atomic.key,
            context,
        };
        let gate = port_rail.gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, and the gate is entered. Context and
        // cell live as long as the rail, and nobody uses the cell before the token comes back.
        let code = unsafe { port_rail.rail.endpoint().atomic(row, &op) };
        drop(gate);
        if code == 0 {
            Ok(Posted::Yes)
        } else if code == -(FI_EAGAIN as isize) {
            Ok(Posted::Again)
        } else {
            let library = port_rail.rail.domain().library();
            Err(port_error(library, atomic_calls::name_of(row), code as i64))
        }
    }

    fn fetched(&mut self, token: Token) -> u64 {
        // SAFETY: inside the array. The operation has completed, so the provider is done with the
        // cell, and `&mut self` makes this the only thread.
        self.contexts.cell(token).map_or(0, |cell| unsafe { (*cell).result })
    }

    fn poll(&mut self, rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled {
        let mut places = done.iter_mut();
        let capacity = self.contexts.capacity();
        self.drain(rail, |index| {
            let known = index < capacity;
            if known {
                // Never more tokens than places: a poll takes no more entries.
                if let Some(place) = places.next() {
                    *place = Token(index as u32);
                }
            }
            known
        })
    }

    #[inline(always)]
    fn has_completions(&mut self, rail: RailId) -> bool {
        let Some(port_rail) = self.rails.get(rail.index()) else { return true };
        if !port_rail.gate.is_open() || !port_rail.messages.is_settled() {
            return true;
        }
        // SAFETY: `&mut self` makes this the lane's only thread, there is no gate to enter, and the
        // rail keeps the queue open.
        self.fetched = unsafe { port_rail.queue.read(&mut self.entries) };
        self.fetched != -(FI_EAGAIN as isize)
    }

    #[inline(always)]
    fn drain(&mut self, rail: RailId, mut each: impl FnMut(usize) -> bool) -> Polled {
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
        // SAFETY: libfabric has written so many entries, at most as many as it was given room, and
        // nobody has written to them since.
        let entries = unsafe { entries.written(code as usize) };
        let mut others = 0;
        let mut wrong = None;
        let places = contexts.places();
        for entry in entries {
            if each(places.index_of(entry.op_context)) {
                continue;
            }
            others += 1;
            let PortRail { rail, messages, .. } = port_rail;
            let noted = messages.completed(rail, entry);
            wrong = wrong.or(noted.err());
        }
        match (wrong, entries.len() - others) {
            (Some(error), _) => broken(error),
            (None, 0) => Polled::Empty,
            (None, count) => Polled::Completed(count),
        }
    }

    #[inline]
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        let Some(port_rail) = self.rails.get_mut(rail.index()) else {
            return Err(no_such_rail(rail));
        };
        if bytes.len() > MAX_MESSAGE {
            return Err(too_long(bytes.len()));
        }
        let PortRail { rail, gate, messages, .. } = port_rail;
        messages.send(rail, gate, to, token, bytes)
    }

    #[inline(always)]
    fn send_short(
        &mut self,
        short: Direct,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> bool {
        if bytes.len() <= short.inject_size() {
            // SAFETY: `&mut self` makes this the lane's only thread, and without a mutex there is no
            // gate to enter. `short` is of a rail of this port, as the trait demands, and the rail keeps
            // the endpoint open. The length is checked.
            return unsafe { short.inject(bytes, to.0) } == 0;
        }
        matches!(self.send(rail, to, token, bytes), Ok(Posted::Yes))
    }

    #[inline(always)]
    fn has_message(&self, rail: RailId) -> bool {
        self.rails.get(rail.index()).is_some_and(|rail| rail.messages.has_arrived())
    }

    #[inline(always)]
    fn receive(&mut self, rail: RailId, into: &mut Packet) -> Incoming {
        let Some(port_rail) = self.rails.get_mut(rail.index()) else { return Incoming::Nothing };
        let PortRail { rail, gate, messages, .. } = port_rail;
        messages.receive(rail, gate, into)
    }

    fn can_reset(&self, rail: RailId) -> bool {
        // What is bound to the endpoint would have to be registered again, with other keys.
        let rail = self.rails.get(rail.index());
        rail.is_some_and(|rail| !rail.rail.domain().binds_regions())
    }

    fn reset_rail(&mut self, rail: RailId) -> Result<Vec<u8>, PortError> {
        let port_rail = self.rails.get_mut(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let PortRail { rail, messages, queue, .. } = port_rail;
        if rail.domain().binds_regions() {
            let text = String::from("its memory is bound to the endpoint (FI_MR_ENDPOINT)");
            return Err(refused("opening a rail again", text));
        }
        // SAFETY: `&mut self` makes this the lane's only thread. The queue is resolved again here, and the
        // engine asks for [`Port::short`] again. No region is bound to the endpoint, as just checked.
        let address = unsafe { rail.endpoint().reopen() }?;
        *queue = rail.endpoint().queue().direct();
        self.fetched = 0;
        // Receives are posted with the next poll.
        messages.forget();
        Ok(address)
    }

    fn insert_address(&mut self, rail: RailId, address: &[u8]) -> Result<PeerAddr, PortError> {
        let inserted = self.insert(rail, &[address])?;
        inserted.first().copied().ok_or_else(|| no_such_rail(rail))
    }

    fn send_control(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        match &mut self.control {
            Some(control) => control.send(rail, to, Token(u32::MAX), bytes),
            None => Ok(Posted::Again),
        }
    }

    fn receive_control(&mut self, rail: RailId, into: &mut Packet) -> bool {
        let Some(control) = &mut self.control else { return false };
        if !control.has_message(rail) && control.has_completions(rail) {
            // What it sends belongs to no segment, and may be lost.
            let _ = control.drain(rail, |_| false);
        }
        matches!(control.receive(rail, into), Incoming::Message)
    }

    #[inline(always)]
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        check_word(addr, atomic.width.bytes())?;
        // SAFETY: the engine has checked that the word lies in a region that this process has
        // registered, and its owner keeps the memory while it is. It is aligned, as just checked.
        Ok(unsafe { host_memory::apply(addr, atomic) })
    }

    #[inline]
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        // SAFETY: the bytes are the local side of a put, which the caller of the put vouches for
        // until it ends.
        unsafe { host_memory::load(addr, into) };
        Ok(())
    }

    #[inline]
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        // SAFETY: the engine has checked that the place lies in a registered region, or it is where
        // the caller of a fetch has asked for the result.
        unsafe { host_memory::store(addr, bytes) };
        Ok(())
    }

    #[inline]
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        check_word(addr, size_of::<u64>())?;
        // SAFETY: as for `store`; the word is aligned, as just checked.
        unsafe { host_memory::store_flag(addr, flag) };
        Ok(())
    }

    #[inline]
    fn now(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[inline]
    fn relax(&mut self) {
        thread::yield_now();
    }
}

/// What libfabric is told of a segment. None for an inline value that cannot be one.
///
/// # Safety
/// Only the thread that has the port, with a token that is not in use.
#[inline(always)]
unsafe fn rma(
    contexts: &Contexts,
    port_rail: &PortRail,
    token: Token,
    to: PeerAddr,
    context: *mut c_void,
    transfer: &Transfer,
) -> Option<Rma> {
    let (buf, desc) = match transfer.local {
        Local::Memory { addr, desc } => (addr as *mut c_void, desc.0),
        Local::Inline(value) => {
            if !is_inline(transfer) {
                return None;
            }
            // SAFETY: by contract.
            (unsafe { contexts.set_value(token, value) }?, port_rail.values_desc)
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

/// Whether the segment may carry a value of its own.
#[inline(always)]
fn is_inline(transfer: &Transfer) -> bool {
    transfer.len <= size_of::<u64>() && transfer.direction == Direction::Write
}

/// A poll that answered with an error.
#[cold]
fn poll_failed(contexts: &Contexts, port_rail: &mut PortRail, code: isize) -> Polled {
    let PortRail { rail, gate, messages, .. } = port_rail;
    if code != -(FI_EAVAIL as isize) {
        return broken(port_error(rail.domain().library(), "fi_cq_read", code as i64));
    }
    let entered = gate.enter();
    // SAFETY: called from `poll` only, which has the port for itself; the gate is entered.
    let entry = unsafe { rail.endpoint().queue().read_error() };
    drop(entered);
    let Some(mut entry) = entry else { return Polled::Empty };
    let mut token = contexts.token(entry.op_context);
    let mut is_message = false;
    if token.is_none() {
        token = messages.failed(rail, entry.op_context, &mut entry.error);
        is_message = token.is_some();
    }
    Polled::Failed(Failure { token, is_message, error: entry.error })
}

/// The failure of a rail as a whole.
#[cold]
fn broken(error: PortError) -> Polled {
    Polled::Failed(Failure { token: None, is_message: false, error })
}

#[cold]
fn on_rail(rail: &Rail, mut error: PortError) -> PortError {
    error.text = format!("rail {}: {}", rail.name(), error.text);
    error
}

#[cold]
fn post_failed(port_rail: &PortRail, direction: Direction, code: isize) -> PortError {
    let call = match direction {
        Direction::Write => "fi_write",
        Direction::Read => "fi_read",
    };
    port_error(port_rail.rail.domain().library(), call, code as i64)
}

#[cold]
fn no_such_rail(rail: RailId) -> PortError {
    refused("choosing a rail", format!("{rail} does not exist"))
}

#[cold]
fn no_such_token(token: Token) -> PortError {
    refused("posting", format!("token {} is beyond the port's capacity", token.0))
}

#[cold]
fn not_inline(transfer: &Transfer) -> PortError {
    refused("posting", format!("{} bytes cannot be an inline write", transfer.len))
}

/// That a word can be accessed at once, which is what the processor's atomic instructions need.
#[inline]
fn check_word(addr: usize, width: usize) -> Result<(), PortError> {
    if addr != 0 && addr % width == 0 { Ok(()) } else { Err(no_word(addr, width)) }
}

#[cold]
fn no_word(addr: usize, width: usize) -> PortError {
    refused("accessing memory", format!("{addr:#x} is no place for a word of {width} bytes"))
}
