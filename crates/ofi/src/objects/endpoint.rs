//! An endpoint with its completion queue and its address vector.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use libfabric_sys::{
    FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_ETOOSMALL, FI_MORE, FI_OPT_ENDPOINT,
    FI_OPT_SHARED_MEMORY_PERMITTED, FI_RECV, FI_TRANSMIT, Library, Padded, fi_addr_t, fi_enable,
    fi_endpoint, fi_ep_bind, fi_getname, fi_getopt, fi_inject, fi_msg, fi_msg_rma, fi_read,
    fi_rma_iov, fi_sendmsg, fi_setopt, fi_write, fi_writedata, fi_writemsg, fid, fid_ep, iovec,
};
use log::debug;

use crate::error::check;
use crate::fork;
use crate::objects::address_vector::AddressVector;
use crate::objects::completion_queue::{CompletionQueue, Wakes};
use crate::objects::cuda_calls::CudaCalls;
use crate::objects::domain::Domain;
use crate::objects::event_queue::EventQueue;
use crate::objects::fabric::{close, opened};
use engine::port::PortError;
use engine::port::registration::note_unclosed;

mod direct;

pub(crate) use direct::Direct;

/// The call that an endpoint's resources are made in.
pub(crate) const ENABLE: &str = "fi_enable";

/// Owner of a `fid_ep`, enabled, and of the objects bound to it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Never null. Only [`Endpoint::reopen`] changes it.
    raw: AtomicPtr<fid_ep>,
    address: Vec<u8>,
    domain: Arc<Domain>,
    queue: CompletionQueue,
    vector: AddressVector,
    /// What has gone wrong with it, where the provider tells.
    events: Option<EventQueue>,
    completions: usize,
    wakes: Wakes,
    peers: usize,
    cuda_calls: CudaCalls,
    closed: bool,
}

// SAFETY: the pointers are to libfabric objects that may move between threads; who calls when is
// settled by the unsafe methods' contracts and, for safe ones, by the domain's gate.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// One RMA operation, as `fi_write` and `fi_read` take it.
pub(crate) struct Rma {
    pub(crate) buf: *mut c_void,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
    pub(crate) peer: fi_addr_t,
    pub(crate) remote: u64,
    pub(crate) key: u64,
    pub(crate) context: *mut c_void,
}

/// A buffer of a message, as `fi_sendmsg` and `fi_recv` take it.
#[derive(Debug)]
pub(crate) struct MessageBuffer {
    pub(crate) buf: *mut c_void,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
    pub(crate) context: *mut c_void,
}

// SAFETY: addresses alone; what they point to is handed to libfabric by unsafe calls only, whose
// callers see to the threads.
unsafe impl Send for MessageBuffer {}

impl Endpoint {
    pub(crate) fn open(
        domain: &Arc<Domain>,
        completions: usize,
        peers: usize,
        events: bool,
        wakes: Wakes,
    ) -> Result<Self, PortError> {
        let queue = CompletionQueue::open(domain, completions, wakes)?;
        let vector = AddressVector::open(domain, peers)?;
        let events = events.then(|| EventQueue::open(domain.fabric())).transpose()?;
        let (raw, cuda_calls) = open_enabled(domain, &queue, &vector, events.as_ref())?;
        // From here on an early return closes the endpoint, then queue and vector.
        let mut endpoint = Self {
            raw: AtomicPtr::new(raw.as_ptr()),
            address: Vec::new(),
            domain: Arc::clone(domain),
            queue,
            vector,
            events,
            completions,
            wakes,
            peers,
            cuda_calls,
            closed: false,
        };
        endpoint.address = name_of(domain, raw)?;
        Ok(endpoint)
    }

    /// Opens another endpoint with a queue and a vector of its own, to take the place of this one
    /// with [`Self::replace`]. What the vector knows is inserted again and posted to as before.
    ///
    /// The new vector gets its addresses when the endpoint bound to it is enabled: native tcp of
    /// libfabric 2.x crashes on the first post to an address that was inserted before (with
    /// `FI_THREAD_COMPLETION` each queue has a domain of its own inside, whose copy of the vector
    /// lacks the peers).
    pub(crate) fn another(&self) -> Result<Another, PortError> {
        let queue = CompletionQueue::open(&self.domain, self.completions, self.wakes)?;
        let vector = AddressVector::open(&self.domain, self.peers)?;
        let (raw, _) = open_enabled(&self.domain, &queue, &vector, self.events.as_ref())?;
        // From here on an early return closes the endpoint, then queue and vector.
        let domain = Arc::clone(&self.domain);
        let mut another = Another { raw: Some(raw), address: Vec::new(), queue, vector, domain };
        another.address = name_of(&self.domain, raw)?;
        another.vector.insert_all_of(&self.vector, another.address.len())?;
        Ok(another)
    }

    /// Closes the endpoint with its queue and its vector; the others take their places. Gives the
    /// new address.
    ///
    /// # Safety
    /// One thread uses the endpoint and what is resolved of it and its queue, and resolves both
    /// again before it uses them; no region is bound to it. The other is of the same endpoint.
    pub(crate) unsafe fn replace(&self, mut another: Another) -> Vec<u8> {
        let address = std::mem::take(&mut another.address);
        let Some(raw) = another.raw else { return address };
        let old = self.raw.swap(raw.as_ptr(), Ordering::Relaxed);
        self.queue.exchange(&another.queue);
        self.vector.exchange(&another.vector);
        // Dropped here: the endpoint that was, of no use to anybody any more, before its queue and
        // its vector. Contexts and buffers of what was in flight outlive it.
        another.raw = NonNull::new(old);
        drop(another);
        // What is there is of the endpoint that is gone.
        while self.trouble().is_some() {}
        address
    }

    /// What has gone wrong with it and belongs to no operation, once.
    pub(crate) fn trouble(&self) -> Option<PortError> {
        self.events.as_ref()?.error()
    }

    pub(crate) fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let _gate = self.domain.gate().enter();
        // SAFETY: open; regions bound to it are closed: they hold its rail. Operations in flight
        // are dropped by the provider, and their contexts outlive this call (see `Rail`). Queue and
        // vector, being fields, are closed after it, when the gate is free again.
        if !unsafe { close(self.domain.library(), "endpoint", self.as_fid()) } {
            note_unclosed();
        }
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.as_ptr().cast()
    }

    #[inline]
    fn as_ptr(&self) -> *mut fid_ep {
        self.raw.load(Ordering::Relaxed)
    }

    pub(crate) fn option(&self, option: i32) -> Option<bool> {
        let (mut value, mut len) = (0_u8, size_of::<u8>());
        let _gate = self.domain.gate().enter();
        // SAFETY: open, and the place is of the length that is given with it.
        let code = unsafe {
            let value = (&raw mut value).cast();
            fi_getopt(self.as_ptr(), FI_OPT_ENDPOINT as i32, option, value, &raw mut len)
        };
        (code == 0).then_some(value != 0)
    }

    pub(crate) fn cuda_calls(&self) -> &CudaCalls {
        &self.cuda_calls
    }

    #[inline]
    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    pub(crate) fn vector(&self) -> &AddressVector {
        &self.vector
    }

    /// Posts a write with the endpoint's own flags, `FI_DELIVERY_COMPLETE`.
    ///
    /// `fi_write` takes the flags of `tx_attr.op_flags`: the fi_endpoint man page says so, and
    /// the tests of this layer check it for tcp, tcp;ofi_rxm and shm.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate. The buffer and the context are valid until
    /// the operation completes or the endpoint is closed.
    #[inline]
    pub(crate) unsafe fn write(&self, op: &Rma) -> isize {
        let ep = self.as_ptr();
        // SAFETY: enabled; the rest is the caller's promise.
        unsafe { fi_write(ep, op.buf, op.len, op.desc, op.peer, op.remote, op.key, op.context) }
    }

    /// Posts a write that also reports `data` in the completion queue of the target. As
    /// [`Self::write`] else.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline]
    pub(crate) unsafe fn write_data(&self, op: &Rma, data: u64) -> isize {
        let ep = self.as_ptr();
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: enabled; the rest is the caller's promise.
        unsafe { fi_writedata(ep, buf, len, desc, data, peer, remote, key, context) }
    }

    /// As [`Self::write`], with the word that another write follows at once (`FI_MORE`).
    ///
    /// # Safety
    /// As for [`Self::write`].
    pub(crate) unsafe fn write_more(&self, op: &Rma) -> isize {
        let local = iovec { iov_base: op.buf, iov_len: op.len };
        let remote = fi_rma_iov { addr: op.remote, len: op.len, key: op.key };
        let mut desc = op.desc;
        let mut message = Padded::<fi_msg_rma>::new();
        message.msg_iov = &local;
        message.desc = &mut desc;
        message.iov_count = 1;
        message.addr = op.peer;
        message.rma_iov = &remote;
        message.rma_iov_count = 1;
        message.context = op.context;
        let flags = FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_MORE;
        // SAFETY: enabled; the structures are only read during the call; the rest is the caller's
        // promise.
        unsafe { fi_writemsg(self.as_ptr(), message.as_mut_ptr(), flags) }
    }

    /// Posts a read.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline]
    pub(crate) unsafe fn read(&self, op: &Rma) -> isize {
        let ep = self.as_ptr();
        // SAFETY: enabled; the rest is the caller's promise.
        unsafe { fi_read(ep, op.buf, op.len, op.desc, op.peer, op.remote, op.key, op.context) }
    }

    /// Sends a message that is copied before this returns, and never completes. Native tcp reports
    /// nothing of one that fails later, so its sender learns that from missing acknowledgements.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate. The message is at most as long as the
    /// transmit attributes' `inject_size`: providers copy a longer one over their own memory.
    #[inline]
    pub(crate) unsafe fn inject(&self, bytes: &[u8], peer: fi_addr_t) -> isize {
        // SAFETY: enabled; the bytes are only read, and only during the call.
        unsafe { fi_inject(self.as_ptr(), bytes.as_ptr().cast(), bytes.len(), peer) }
    }

    /// Sends a message that completes when its buffer is free again.
    ///
    /// Not with `fi_send`, which takes the endpoint's flags: with `FI_DELIVERY_COMPLETE` the peer's
    /// tcp provider answers each message, and native tcp then moves 180 thousand messages of 32
    /// bytes a second instead of 610 thousand (libfabric 2.5.1, both ends on one core). The
    /// engine's peers acknowledge what matters.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate. Buffer and context are valid, the buffer
    /// unchanged, until the operation completes or the endpoint is closed.
    #[inline]
    pub(crate) unsafe fn send(&self, buffer: &MessageBuffer, peer: fi_addr_t) -> isize {
        let memory = iovec { iov_base: buffer.buf, iov_len: buffer.len };
        let mut desc = buffer.desc;
        let mut message = Padded::<fi_msg>::new();
        message.msg_iov = &memory;
        message.desc = &mut desc;
        message.iov_count = 1;
        message.addr = peer;
        message.context = buffer.context;
        // SAFETY: enabled; the structures are only read during the call; the rest is the caller's
        // promise.
        unsafe { fi_sendmsg(self.as_ptr(), message.as_mut_ptr(), FI_COMPLETION) }
    }
}

/// An endpoint with queue and vector, for another's place. Dropped without having taken it, it is
/// closed.
#[derive(Debug)]
pub(crate) struct Another {
    raw: Option<NonNull<fid_ep>>,
    address: Vec<u8>,
    queue: CompletionQueue,
    vector: AddressVector,
    domain: Arc<Domain>,
}

// SAFETY: as for `Endpoint`.
unsafe impl Send for Another {}

impl Drop for Another {
    fn drop(&mut self) {
        let Some(raw) = self.raw else { return };
        let _gate = self.domain.gate().enter();
        // SAFETY: open, and nobody else has it. Queue and vector, being fields, are closed after
        // it, when the gate is free again.
        if !unsafe { close(self.domain.library(), "endpoint", raw.as_ptr().cast()) } {
            note_unclosed();
        }
    }
}

fn name_of(domain: &Domain, raw: NonNull<fid_ep>) -> Result<Vec<u8>, PortError> {
    let library = domain.library();
    let mut address = vec![0_u8; 128];
    // The second round has the room that the first one asked for.
    for _ in 0..2 {
        let mut len = address.len();
        // SAFETY: enabled; the buffer has the length given.
        let code = unsafe { fi_getname(raw.as_ptr(), address.as_mut_ptr().cast(), &mut len) };
        if code == -(FI_ETOOSMALL as i32) || len > address.len() {
            address = vec![0; len];
            continue;
        }
        check(library, "fi_getname", code)?;
        address.truncate(len);
        fork::note_rails(&[&address]);
        return Ok(address);
    }
    check(library, "fi_getname", -(FI_ETOOSMALL as i32))?;
    Ok(address)
}

fn open_enabled(
    domain: &Arc<Domain>,
    queue: &CompletionQueue,
    vector: &AddressVector,
    events: Option<&EventQueue>,
) -> Result<(NonNull<fid_ep>, CudaCalls), PortError> {
    let library = domain.library();
    if *domain.profile().crashes_without_descriptors {
        check_descriptors()?;
    }
    let mut raw = ptr::null_mut();
    let _gate = domain.gate().enter();
    // SAFETY: the domain is open, and the info is the one it was opened with.
    let code =
        unsafe { fi_endpoint(domain.as_ptr(), domain.info().as_ptr(), &mut raw, ptr::null_mut()) };
    check(library, "fi_endpoint", code)?;
    let opened = opened(raw, "fi_endpoint")?;
    let enable = || {
        let mut cuda_calls = CudaCalls::NotAsked;
        // SAFETY: endpoint, queues and vector are open and of one fabric.
        unsafe {
            check(
                library,
                "fi_ep_bind (cq)",
                fi_ep_bind(raw, queue.as_fid(), FI_TRANSMIT | FI_RECV),
            )?;
            check(library, "fi_ep_bind (av)", fi_ep_bind(raw, vector.as_fid(), 0))?;
            if let Some(events) = events {
                check(library, "fi_ep_bind (eq)", fi_ep_bind(raw, events.as_fid(), 0))?;
            }
            if domain.forbids_cuda() {
                cuda_calls = CudaCalls::forbid(library, raw);
            }
            if *domain.profile().forbids_sharing {
                forbid_sharing(library, raw);
            }
            check(library, ENABLE, fi_enable(raw))?;
        }
        Ok(cuda_calls)
    };
    enable().map(|cuda_calls| (opened, cuda_calls)).inspect_err(|_| {
        // SAFETY: open, and nobody else has it.
        unsafe { close(library, "endpoint", raw.cast()) };
    })
}

/// Sees whether descriptors are left for an endpoint: its socket, and some for what other threads
/// open meanwhile.
///
/// # Errors
/// There are too few.
fn check_descriptors() -> Result<(), PortError> {
    const SPARE: usize = 4;
    let spare: Result<Vec<File>, io::Error> = (0..SPARE).map(|_| File::open("/dev/null")).collect();
    match spare {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(PortError {
            call: "opening an endpoint",
            code: libc::EMFILE,
            text: String::from("no descriptor is left for its socket (ulimit -n)"),
        }),
        // What else goes wrong is no lack of descriptors.
        _ => Ok(()),
    }
}

/// Has an endpoint leave its NIC for no other process of the host
/// (`FI_OPT_SHARED_MEMORY_PERMITTED`).
///
/// # Safety
/// The endpoint is open and not enabled yet, inside the domain's gate.
unsafe fn forbid_sharing(library: &'static Library, endpoint: *mut fid_ep) {
    let permitted = false;
    let value = (&raw const permitted).cast();
    let (level, option) = (FI_OPT_ENDPOINT as i32, FI_OPT_SHARED_MEMORY_PERMITTED as i32);
    // SAFETY: the caller's promise; the option is a `bool`, read during the call.
    let code = unsafe { fi_setopt(endpoint, level, option, value, size_of::<bool>()) };
    // Libraries before 1.21 do not know it.
    if let Err(error) = check(library, "fi_setopt(FI_OPT_SHARED_MEMORY_PERMITTED)", code) {
        debug!("PEs of a host may share memory below the fabric: {error}");
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
