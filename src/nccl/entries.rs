//! The functions of the tables: what NCCL calls.
//!
//! The safety of all of it rests on the rules that are numbered in [`crate::nccl`]'s documentation.

use std::ffi::{c_int, c_void};

use crate::nccl::abi::{
    Config, HANDLE_BYTES, Logger, MR_SIGNAL_NEVER_RESET, PTR_CUDA, PTR_HOST, Properties,
    RmaProperties, Status,
};

use super::error::{NcclError, guard};
use super::group::{BlockId, Group, Shared, Signal, Span, members};
use super::listener::Listener;
use super::plugin::Plugin;
use super::requests::RequestId;
use engine::port::{Access, Direction};

/// A block of contexts, which share the lane of their group: a context is only a number.
#[derive(Debug)]
struct Contexts {
    group: *const Group,
    count: c_int,
}

impl Contexts {
    #[inline]
    fn group(&self, context: c_int) -> Result<&Shared, NcclError> {
        if !(0..self.count).contains(&context) {
            return Err(NcclError::NoContext { context, contexts: self.count });
        }
        Ok(self.any())
    }

    #[inline]
    fn any(&self) -> &Shared {
        // SAFETY: rule 1: the block ends before its group.
        unsafe { &(*self.group).shared }
    }
}

/// Reads through the pointer that is the argument of that name.
///
/// # Safety
/// Null, or valid for `'a` and of that type.
#[inline]
unsafe fn given<'a, T>(pointer: *const T, argument: &'static str) -> Result<&'a T, NcclError> {
    // `ok_or` would make and drop an error in every call.
    // SAFETY: by contract.
    let Some(given) = (unsafe { pointer.as_ref() }) else {
        return Err(NcclError::Null { argument });
    };
    Ok(given)
}

/// Writes an answer to where the argument of that name points.
///
/// # Safety
/// Null, or valid for the write.
#[inline]
unsafe fn answer<T>(out: *mut T, argument: &'static str, value: T) -> Result<(), NcclError> {
    if out.is_null() {
        return Err(NcclError::Null { argument });
    }
    // SAFETY: not null; the rest by contract.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// Rule 2.
pub(super) unsafe extern "C" fn init(
    ctx: *mut *mut c_void,
    _communicator: u64,
    logger: Logger,
) -> Status {
    guard("init", || {
        super::log::init(logger);
        let plugin = Plugin::init()?;
        // Nobody reads its target. Not null, which may mean that there is no context.
        if !ctx.is_null() {
            // SAFETY: not null; rule 2.
            unsafe { ctx.write(std::sync::Arc::as_ptr(&plugin).cast_mut().cast()) };
        }
        Ok(())
    })
}

/// # Safety
/// Rule 2.
pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    guard("devices", || {
        let devices = Plugin::current()?.n_devices();
        // SAFETY: rule 2.
        unsafe { answer(count, "count", devices) }
    })
}

/// # Safety
/// Rule 2.
pub(super) unsafe extern "C" fn get_properties(
    device: c_int,
    properties: *mut Properties,
) -> Status {
    guard("getProperties", || {
        let known = Plugin::current()?.properties(device)?;
        // SAFETY: rule 2.
        unsafe { answer(properties, "properties", known) }
    })
}

/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn get_rma_properties(
    group: *mut c_void,
    properties: *mut RmaProperties,
) -> Status {
    guard("getRmaProperties", || {
        // SAFETY: rule 1.
        unsafe { given(group.cast::<Group>(), "group")? };
        // A completed put is delivered at its target: written by the NIC, or copied from a bounce
        // buffer. The target's CPU applies every signal, from whatever rank, so a later signal of
        // any rank makes the put visible as its own signal does. So no request may complete when
        // only its source is free.
        let known = RmaProperties { flushes_all_puts_on_any_signal: true };
        // SAFETY: rule 2.
        unsafe { answer(properties, "properties", known) }
    })
}

/// # Safety
/// Rule 2; the handle has room for `HANDLE_BYTES`.
pub(super) unsafe extern "C" fn listen(
    _ctx: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listening: *mut *mut c_void,
) -> Status {
    guard("listen", || {
        // Checks that there is such a device.
        Plugin::current()?.properties(device)?;
        let listener = Box::new(Listener::new(device)?);
        // SAFETY: rule 2, and the room is this function's contract.
        unsafe { answer(handle.cast::<[u8; HANDLE_BYTES]>(), "handle", listener.handle)? };
        // SAFETY: rule 2.
        unsafe { answer(listening, "listening", Box::into_raw(listener).cast()) }
    })
}

/// # Safety
/// Rules 1 and 2; there are handles of `HANDLE_BYTES` for `ranks` ranks.
pub(super) unsafe extern "C" fn connect(
    _ctx: *mut c_void,
    handles: *const *const c_void,
    ranks: c_int,
    rank: c_int,
    listening: *mut c_void,
    group: *mut *mut c_void,
) -> Status {
    guard("connect", || {
        // SAFETY: rule 1.
        let listener = unsafe { given(listening.cast::<Listener>(), "listenComm")? };
        let shape = NcclError::Shape { rank, ranks };
        let count = usize::try_from(ranks).ok().filter(|count| *count > 0).ok_or(shape)?;
        // SAFETY: rule 2.
        unsafe { given(handles, "handles")? };
        let handle = |rank: usize| -> Result<_, NcclError> {
            // SAFETY: this function's contract.
            let handle = unsafe { *handles.add(rank) };
            // SAFETY: the same.
            unsafe { given(handle.cast::<[u8; HANDLE_BYTES]>(), "a handle") }
        };
        let handles = (0..count).map(handle).collect::<Result<Vec<_>, _>>()?;
        let plugin = Plugin::current()?;
        let made = Box::new(Group::connect(&plugin, listener, &handles, rank)?);
        // SAFETY: rule 2.
        unsafe { answer(group, "collComm", Box::into_raw(made).cast()) }
    })
}

/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn create_context(
    group: *mut c_void,
    config: *mut Config,
    contexts: *mut *mut c_void,
) -> Status {
    guard("createContext", || {
        // SAFETY: rule 1.
        let group = unsafe { given(group.cast::<Group>(), "collComm")? };
        // SAFETY: rule 2.
        let Config { contexts: count, .. } = *unsafe { given(config, "config")? };
        let made = Box::new(Contexts { group, count });
        // SAFETY: rule 2.
        unsafe { answer(contexts, "context", Box::into_raw(made).cast()) }
    })
}

/// # Safety
/// Rules 1, 2 and 3.
pub(super) unsafe extern "C" fn reg_mr_sym(
    group: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    flags: u64,
    handle: *mut *mut c_void,
) -> Status {
    guard("regMrSym", || {
        // SAFETY: rule 1.
        let group = unsafe { given(group.cast::<Group>(), "collComm")? };
        // The driver tells the memory's kind; here only the argument is checked.
        if kind & !(PTR_HOST | PTR_CUDA) != 0 || kind == 0 {
            return Err(NcclError::NoKind { kind });
        }
        // Signals keep their order in any memory, so that flag has no effect.
        let never_reset = flags & MR_SIGNAL_NEVER_RESET != 0;
        let access = if never_reset { Access::Signals } else { Access::LocalAndRemote };
        let registered = group.register(data.addr(), size, access)?;
        // SAFETY: rule 2.
        unsafe { answer(handle, "mhandle", registered) }
    })
}

/// The dma-buf is not used: where NICs reach the memory, one of our own is exported.
///
/// # Safety
/// Rules 1, 2 and 3.
pub(super) unsafe extern "C" fn reg_mr_sym_dma_buf(
    group: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    _offset: u64,
    _fd: c_int,
    flags: u64,
    handle: *mut *mut c_void,
) -> Status {
    // SAFETY: this function's contract.
    unsafe { reg_mr_sym(group, data, size, kind, flags, handle) }
}

/// # Safety
/// Rules 1 and 3.
pub(super) unsafe extern "C" fn dereg_mr_sym(group: *mut c_void, handle: *mut c_void) -> Status {
    guard("deregMrSym", || {
        // SAFETY: rule 1.
        unsafe { given(group.cast::<Group>(), "collComm")? }.release(handle)
    })
}

/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn destroy_context(contexts: *mut c_void) -> Status {
    guard("destroyContext", || {
        if !contexts.is_null() {
            // SAFETY: rule 1: `make_contexts` made it, and this is its end.
            drop(unsafe { Box::from_raw(contexts.cast::<Contexts>()) });
        }
        Ok(())
    })
}

/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn close_coll(group: *mut c_void) -> Status {
    guard("closeColl", || {
        if !group.is_null() {
            // SAFETY: rule 1: `connect` made it, and this is its end.
            members::close(*unsafe { Box::from_raw(group.cast::<Group>()) });
        }
        Ok(())
    })
}

/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn close_listen(listening: *mut c_void) -> Status {
    guard("closeListen", || {
        if !listening.is_null() {
            // SAFETY: rule 1: `listen` made it, and this is its end.
            drop(unsafe { Box::from_raw(listening.cast::<Listener>()) });
        }
        Ok(())
    })
}

/// Starts an operation on a context of a block, and gives NCCL its request.
///
/// # Safety
/// Rules 1 and 2.
#[inline]
unsafe fn start(
    contexts: *mut c_void,
    context: c_int,
    request: *mut *mut c_void,
    begin: impl FnOnce(&Shared) -> Result<RequestId, NcclError>,
) -> Result<(), NcclError> {
    // SAFETY: rule 1.
    let contexts = unsafe { given(contexts.cast::<Contexts>(), "context block")? };
    if request.is_null() {
        return Err(NcclError::Null { argument: "request" });
    }
    let begun = begin(contexts.group(context)?)?;
    // SAFETY: not null; rule 2.
    unsafe { request.write(begun.pointer()) };
    Ok(())
}

/// # Safety
/// Rules 1, 2 and 3.
pub(super) unsafe extern "C" fn iput(
    contexts: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    size: usize,
    target_offset: u64,
    target: *mut c_void,
    rank: u32,
    _flags: u32,
    request: *mut *mut c_void,
) -> Status {
    guard("iput", || {
        let local = Span { handle: source, offset: source_offset };
        let remote = Span { handle: target, offset: target_offset };
        let put = |group: &Shared| group.transfer(Direction::Write, rank, (local, remote), size);
        // SAFETY: rules 1 and 2.
        unsafe { start(contexts, context, request, put) }
    })
}

/// Weak signals are no cheaper than strong ones here, so all are strong.
///
/// # Safety
/// Rules 1, 2 and 3.
pub(super) unsafe extern "C" fn iput_signal(
    contexts: *mut c_void,
    context: c_int,
    source_offset: u64,
    source: *mut c_void,
    size: usize,
    target_offset: u64,
    target: *mut c_void,
    rank: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    _strong: bool,
    _flags: u32,
    request: *mut *mut c_void,
) -> Status {
    guard("iputSignal", || {
        let local = Span { handle: source, offset: source_offset };
        let remote = Span { handle: target, offset: target_offset };
        let word = Span { handle: signal, offset: signal_offset };
        let signal = Signal { word, value, operation };
        let put = |group: &Shared| group.put_signal(rank, (local, remote), size, &signal);
        // SAFETY: rules 1 and 2.
        unsafe { start(contexts, context, request, put) }
    })
}

/// # Safety
/// Rules 1, 2 and 3.
pub(super) unsafe extern "C" fn iget(
    contexts: *mut c_void,
    context: c_int,
    remote_offset: u64,
    remote: *mut c_void,
    size: usize,
    local_offset: u64,
    local: *mut c_void,
    rank: u32,
    _flags: u32,
    request: *mut *mut c_void,
) -> Status {
    guard("iget", || {
        let local = Span { handle: local, offset: local_offset };
        let remote = Span { handle: remote, offset: remote_offset };
        let get = |group: &Shared| group.transfer(Direction::Read, rank, (local, remote), size);
        // SAFETY: rules 1 and 2.
        unsafe { start(contexts, context, request, get) }
    })
}

/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn iflush(
    contexts: *mut c_void,
    context: c_int,
    _handle: *mut c_void,
    _rank: u32,
    request: *mut *mut c_void,
) -> Status {
    guard("iflush", || {
        // SAFETY: rule 1.
        let contexts = unsafe { given(contexts.cast::<Contexts>(), "context block")? };
        contexts.group(context)?.flush()?;
        // A null request is complete.
        // SAFETY: rule 2.
        unsafe { answer(request, "request", std::ptr::null_mut()) }
    })
}

/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn test(
    group: *mut c_void,
    request: *mut c_void,
    done: *mut c_int,
) -> Status {
    guard("test", || {
        // SAFETY: rule 1.
        let group = unsafe { given(group.cast::<Group>(), "collComm")? };
        let is_done = group.shared.is_done(RequestId::of(request))?;
        // SAFETY: rule 2.
        unsafe { answer(done, "done", c_int::from(is_done)) }
    })
}

/// # Safety
/// Rule 1.
pub(super) unsafe extern "C" fn progress(contexts: *mut c_void) -> Status {
    guard("progress", || {
        // SAFETY: rule 1.
        let block = unsafe { given(contexts.cast::<Contexts>(), "context block")? };
        block.any().progress(BlockId(contexts.addr()))
    })
}

/// # Safety
/// Rules 1 and 2.
pub(super) unsafe extern "C" fn query_last_error(
    contexts: *mut c_void,
    has_error: *mut bool,
) -> Status {
    guard("queryLastError", || {
        // SAFETY: rule 1.
        let contexts = unsafe { given(contexts.cast::<Contexts>(), "context block")? };
        let has_failed = contexts.any().failure().is_some();
        // SAFETY: rule 2.
        unsafe { answer(has_error, "hasError", has_failed) }
    })
}

/// # Safety
/// None.
pub(super) unsafe extern "C" fn finalize(_ctx: *mut c_void) -> Status {
    guard("finalize", Plugin::finalize)
}
