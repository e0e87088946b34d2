//! An endpoint with its completion queue and its address vector.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::Arc;

use libfabric_sys::{
    FI_COMPLETION, FI_EINVAL, FI_OPT_CUDA_API_PERMITTED, FI_OPT_ENDPOINT,
    FI_OPT_SHARED_MEMORY_PERMITTED, FI_RECV, FI_TRANSMIT, Padded, fi_addr_t, fi_enable,
    fi_endpoint, fi_ep_bind, fi_getname, fi_getopt, fi_msg, fi_sendmsg, fi_setopt, fi_writedata,
    fid, fid_av, fid_cq, fid_ep, fid_eq, iovec,
};
use log::debug;

use crate::error::{check, with_help};
use crate::fork;
use crate::objects::domain::Domain;
use crate::objects::object::Object;
use engine::port::PortError;
use engine::wire::handshake::MAX_ADDRESS;

mod endpoint_ops;
mod events;
pub(crate) mod queue;
mod vector;

pub(crate) use endpoint_ops::EndpointOps;

/// An enabled endpoint, and the objects bound to it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    // Declared first: closed before the objects bound to it.
    object: Object<fid_ep>,
    queue: Object<fid_cq>,
    vector: Object<fid_av>,
    /// Event queue for errors of the endpoint, if the provider reports any.
    events: Option<Object<fid_eq>>,
    pub(crate) ops: EndpointOps,
    pub(crate) address: Vec<u8>,
    /// The provider's refusal to do without copies by CUDA, or to know of the request.
    ///
    /// A provider may copy device memory with CUDA instead of by the NIC. A copy on the default
    /// stream waits for kernels that run on blocking streams, and NVSHMEM kernels may run until the
    /// transport has done its work.
    pub(crate) needs_cuda: Option<String>,
    pub(crate) domain: Arc<Domain>,
}

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

// SAFETY: addresses, used only by unsafe calls, whose callers promise one thread at a time.
unsafe impl Send for MessageBuffer {}

impl Endpoint {
    /// Opens an endpoint with a completion queue of `completions` entries, for about `peers`. If
    /// `wakes`, a thread may sleep until the queue's descriptor is readable.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        completions: usize,
        peers: usize,
        wakes: bool,
    ) -> Result<Self, PortError> {
        // An early return drops in reverse order.
        let queue = queue::open(domain, completions, wakes)?;
        let vector = vector::open(domain, peers)?;
        let events = domain.profile.events.then(|| events::open(domain)).transpose()?;
        if *domain.profile.crashes_without_descriptors {
            check_descriptors()?;
        }
        let kind = ("endpoint", "fi_endpoint");
        // SAFETY: the domain is open, and was opened with this info. Objects bound to an endpoint
        // are closed after it, regions bound to it before.
        let object = unsafe {
            Object::open(kind, domain.library(), &domain.gate, |endpoint| {
                fi_endpoint(domain.as_ptr(), domain.info.as_ptr(), endpoint, ptr::null_mut())
            })
        }?;
        let events_fid = events.as_ref().map(Object::as_fid);
        let needs_cuda = enable(domain, &object, queue.as_fid(), vector.as_fid(), events_fid)?;
        let ops = EndpointOps::new(object.as_ptr(), domain)?;
        let address = name_of(domain, object.as_ptr())?;
        let domain = Arc::clone(domain);
        Ok(Self { object, queue, vector, events, ops, address, needs_cuda, domain })
    }

    /// Closes the endpoint before the objects bound to it. Contexts of operations in flight must
    /// outlive the call.
    pub(crate) fn close(&mut self) {
        self.object.end();
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.object.as_fid()
    }

    #[cfg(test)]
    pub(crate) fn queue_fid(&self) -> *mut fid {
        self.queue.as_fid()
    }

    pub(crate) fn option(&self, option: i32) -> Option<bool> {
        let (mut value, mut len) = (0_u8, size_of::<u8>());
        let _gate = self.domain.gate.enter();
        // SAFETY: open; the value has the length given.
        let code = unsafe {
            let (ep, value) = (self.object.as_ptr(), (&raw mut value).cast());
            fi_getopt(ep, FI_OPT_ENDPOINT as i32, option, value, &raw mut len)
        };
        (code == 0).then_some(value != 0)
    }

    /// Writes as [`EndpointOps::write`] does, and reports `data` in the target's completion queue
    /// once the written bytes are visible there.
    ///
    /// # Safety
    /// As [`EndpointOps::write`].
    #[inline]
    pub(crate) unsafe fn write_data(&self, op: &Rma, data: u64) -> isize {
        let ep = self.object.as_ptr();
        let Rma { buf, len, desc, peer, remote, key, context } = *op;
        // SAFETY: enabled; the rest is the caller's promise.
        unsafe { fi_writedata(ep, buf, len, desc, data, peer, remote, key, context) }
    }

    /// Sends a message that completes when its buffer is free again.
    ///
    /// Not with `fi_send`, which takes the endpoint's flags: with `FI_DELIVERY_COMPLETE` the peer's
    /// tcp provider answers each message, and native tcp then moves 180 thousand messages of 32
    /// bytes a second instead of 610 thousand (libfabric 2.5.1, both ends on one core). The engine
    /// has acknowledgements of its own.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate. Buffer and context are valid, the buffer
    /// unchanged, until the operation completes or the endpoint is closed.
    #[inline]
    pub(crate) unsafe fn send(&self, buffer: &MessageBuffer, peer: fi_addr_t) -> isize {
        let memory = iovec { iov_base: buffer.buf, iov_len: buffer.len };
        let mut desc = buffer.desc;
        let mut message = Padded::<fi_msg>::zeroed();
        message.msg_iov = &memory;
        message.desc = &mut desc;
        message.iov_count = 1;
        message.addr = peer;
        message.context = buffer.context;
        // SAFETY: enabled; the structures are only read during the call; the rest is the caller's
        // promise.
        unsafe { fi_sendmsg(self.object.as_ptr(), message.as_mut_ptr(), FI_COMPLETION) }
    }
}

fn name_of(domain: &Domain, endpoint: *mut fid_ep) -> Result<Vec<u8>, PortError> {
    // A longer address could not be sent to peers; those of providers have some tens of bytes.
    let mut address = vec![0_u8; MAX_ADDRESS];
    let mut len = address.len();
    // SAFETY: enabled; the buffer has the length given.
    let code = unsafe { fi_getname(endpoint, address.as_mut_ptr().cast(), &mut len) };
    check(domain.library(), "fi_getname", code)?;
    address.truncate(len);
    fork::register_rails(&[&address]);
    Ok(address)
}

/// Binds queue, vector and event queue to an endpoint, disables options that harm with its
/// provider, and enables it. Returns [`Endpoint::needs_cuda`].
fn enable(
    domain: &Domain,
    endpoint: &Object<fid_ep>,
    queue: *mut fid,
    vector: *mut fid,
    events: Option<*mut fid>,
) -> Result<Option<String>, PortError> {
    let (library, profile, raw) = (domain.library(), domain.profile, endpoint.as_ptr());
    let _gate = domain.gate.enter();
    // SAFETY: endpoint, queues and vector are open and of one fabric.
    let bind =
        |call, object, flags| check(library, call, unsafe { fi_ep_bind(raw, object, flags) });
    bind("fi_ep_bind (cq)", queue, FI_TRANSMIT | FI_RECV)?;
    bind("fi_ep_bind (av)", vector, 0)?;
    events.map_or(Ok(()), |events| bind("fi_ep_bind (eq)", events, 0))?;

    let forbid = |option: u32, call| {
        let (permitted, level) = (false, FI_OPT_ENDPOINT as i32);
        let value = (&raw const permitted).cast();
        // SAFETY: open and not enabled yet; the option is a `bool`, read during the call.
        let code = unsafe { fi_setopt(raw, level, option as i32, value, size_of::<bool>()) };
        check(library, call, code)
    };
    let mut needs_cuda = None;
    if domain.info.reaches_devices() && *profile.forbids_cuda {
        let call = "fi_setopt(FI_OPT_CUDA_API_PERMITTED)";
        if let Err(error) = forbid(FI_OPT_CUDA_API_PERMITTED, call) {
            // EINVAL: the library has no CUDA. Those before 1.18 do not know the option and copy.
            needs_cuda = (error.code != FI_EINVAL).then(|| error.to_string());
        }
    }
    if *profile.forbids_sharing {
        let call = "fi_setopt(FI_OPT_SHARED_MEMORY_PERMITTED)";
        // Libraries before 1.21 lack the option.
        if let Err(error) = forbid(FI_OPT_SHARED_MEMORY_PERMITTED, call) {
            debug!("PEs of a host may share memory below the fabric: {error}");
        }
    }
    // SAFETY: open, with everything bound to it.
    check(library, "fi_enable", unsafe { fi_enable(raw) })
        .map_err(|error| with_help(error, *profile.enabling_refused))?;
    Ok(needs_cuda)
}

/// Checks that descriptors are left for an endpoint's socket, and a few for other threads.
fn check_descriptors() -> Result<(), PortError> {
    const SPARE: usize = 4;
    let spare: Result<Vec<File>, io::Error> = (0..SPARE).map(|_| File::open("/dev/null")).collect();
    match spare {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(PortError {
            call: "opening an endpoint",
            code: libc::EMFILE,
            text: String::from("no descriptor is left for its socket (ulimit -n)"),
        }),
        // Other errors are no lack of descriptors.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
