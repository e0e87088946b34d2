//! libfabric alone, for comparison: the thinnest program that moves the same bytes by the plugin's
//! own choices: hints, ladder of progress and threading, a queue in `FI_CQ_FORMAT_CONTEXT` read 32
//! entries at a time, one context per operation in flight, and the rule for giving up the core.
//! There are no handles, no bounds, no counters.

use std::ffi::{CStr, CString, c_void};
use std::iter;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use libfabric_sys as fi;
use libfabric_sys::{Library, Padded};
use nvshmem_sim::BoxError;
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, BoxError>;

const POLL_BATCH: usize = 32;

const SPINS: u32 = 8;

/// Bytes of [`Raw::record`], and of its part before the address.
pub(crate) const RECORD: usize = 256;
const RECORD_HEAD: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RawOptions {
    pub library: String,
    pub provider: String,
    /// The address to open; empty where devices have none.
    pub source: String,
    /// Whether a completion says that the data is at the target (`FI_DELIVERY_COMPLETE`).
    pub delivered: bool,
}

/// An object of libfabric's, closed when dropped.
struct Object<T>(*mut T);

impl<T> Object<T> {
    fn open(library: &Library, call: &str, open: impl FnOnce(*mut *mut T) -> i32) -> Result<Self> {
        let mut object = ptr::null_mut();
        check(library, call, open(&mut object) as isize)?;
        Ok(Self(object))
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: open, and closed once; `Raw` drops its fields in libfabric's order. A failure
        // leaves the object open until the process ends, soon after.
        let _ = unsafe { fi::fi_close(self.0.cast()) };
    }
}

fn check(library: &Library, call: &str, code: isize) -> Result<()> {
    if code < 0 {
        return Err(format!("raw {call}: {} ({code})", library.strerror(code as i32)).into());
    }
    Ok(())
}

struct Info {
    library: &'static Library,
    raw: NonNull<fi::fi_info>,
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from the same library, freed once.
        unsafe { (self.library.freeinfo)(self.raw.as_ptr()) };
    }
}

impl Info {
    /// Asks for the most that the provider grants of progress and threading, as the plugin does.
    fn choose(library: &'static Library, options: &RawOptions) -> Result<Self> {
        let ladder = [
            (fi::FI_PROGRESS_AUTO, fi::FI_THREAD_COMPLETION),
            (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_COMPLETION),
            (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_DOMAIN),
            (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_SAFE),
        ];
        // The plugin does not ask for a thread over rxm's progress (decision 27).
        let skipped = usize::from(options.provider.ends_with(";ofi_rxm"));
        let name = CString::new(options.provider.as_str())?;
        let source = CString::new(options.source.as_str())?;
        let (node, flags) = match options.source.is_empty() {
            true => (ptr::null(), 0),
            false => (source.as_ptr(), fi::FI_SOURCE | fi::FI_NUMERICHOST),
        };
        // SAFETY: null is allowed.
        let hints =
            NonNull::new(unsafe { (library.dupinfo)(ptr::null()) }).ok_or("out of memory")?;
        let hints = Self { library, raw: hints };
        let info = hints.raw.as_ptr();
        let mut last = format!("no answer from {}", options.provider).into();
        // SAFETY: an info from fi_dupinfo(NULL) has all its attributes. The name is from malloc, as
        // fi_freeinfo wants it. A list is freed once, after its entry was copied.
        unsafe {
            (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            (*info).caps = fi::FI_MSG | fi::FI_RMA;
            (*info).mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
            (*(*info).ep_attr).type_ = fi::FI_EP_RDM;
            let delivered = if options.delivered { fi::FI_DELIVERY_COMPLETE } else { 0 };
            (*(*info).tx_attr).op_flags = delivered;
            let domain = (*info).domain_attr;
            (*domain).mr_mode = fi::FI_MR_LOCAL
                | fi::FI_MR_VIRT_ADDR
                | fi::FI_MR_ALLOCATED
                | fi::FI_MR_PROV_KEY
                | fi::FI_MR_ENDPOINT;
            for (progress, threading) in ladder.into_iter().skip(skipped) {
                (*domain).threading = threading;
                (*domain).control_progress = progress;
                (*domain).data_progress = progress;
                let mut list = ptr::null_mut();
                let code = library.getinfo(node, ptr::null(), flags, info, &mut list);
                if let Err(error) = check(library, "fi_getinfo", code as isize) {
                    last = error;
                    continue;
                }
                let mut entries =
                    iter::successors(NonNull::new(list), |entry| NonNull::new(entry.as_ref().next));
                let named = entries.find(|entry| {
                    let found = (*entry.as_ref().fabric_attr).prov_name;
                    !found.is_null() && CStr::from_ptr(found) == name.as_c_str()
                });
                let copy = named.and_then(|entry| NonNull::new((library.dupinfo)(entry.as_ptr())));
                (library.freeinfo)(list);
                if let Some(raw) = copy {
                    return Ok(Self { library, raw });
                }
            }
        }
        Err(last)
    }
}

/// Libfabric's context of an operation in flight, in a cache line of its own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Context(MaybeUninit<fi::fi_context2>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RawOp {
    Write,
    Read,
    Send,
    Receive,
}

/// One endpoint on one device, with one region and one peer. Fields are closed in the order in
/// which they stand here.
pub(crate) struct Raw {
    region: Object<fi::fid_mr>,
    endpoint: Object<fi::fid_ep>,
    vector: Object<fi::fid_av>,
    queue: Object<fi::fid_cq>,
    _domain: Object<fi::fid_domain>,
    _fabric: Object<fi::fid_fabric>,
    library: &'static Library,
    /// One for each slot of a window, and one for the message that is waited for.
    contexts: Box<[Context]>,
    memory: usize,
    desc: usize,
    /// The address by which peers name the first byte of the memory.
    base: u64,
    inject: usize,
    /// The peer's address and key, and what names the first byte of its memory.
    peer: (fi::fi_addr_t, u64, u64),
    /// Operations posted and not completed, but for receives.
    pub(crate) in_flight: u64,
    /// A message has arrived; the receiver clears it.
    pub(crate) arrived: bool,
    idle: u32,
}

// SAFETY: libfabric's objects may move between threads; `&mut self` keeps their use to one at a
// time, which FI_THREAD_DOMAIN, the least that is asked for, wants.
unsafe impl Send for Raw {}

impl Raw {
    /// Opens an endpoint for `window` operations in flight in `len` bytes of memory at `start`.
    ///
    /// # Safety
    /// The memory is valid for as long as this value lives.
    pub(crate) unsafe fn open(
        options: &RawOptions,
        window: usize,
        start: *mut u8,
        len: usize,
    ) -> Result<Self> {
        let library = Library::load(&options.library)?;
        let info = Info::choose(library, options)?;
        let (raw, nothing) = (info.raw.as_ptr(), ptr::null_mut());
        // SAFETY: an info of fi_getinfo has its parts. Every object is made from one that is open,
        // attributes are padded, and results are checked before use. The caller vouches for the
        // memory.
        unsafe {
            let fabric = Object::open(library, "fi_fabric", |fabric| {
                (library.fabric)((*raw).fabric_attr, fabric, nothing)
            })?;
            let domain = Object::open(library, "fi_domain", |domain| {
                fi::fi_domain(fabric.0, raw, domain, nothing)
            })?;
            let mut attr = Padded::<fi::fi_cq_attr>::zeroed();
            attr.size = (*(*raw).tx_attr).size.min(4096) + 256;
            attr.format = fi::FI_CQ_FORMAT_CONTEXT;
            attr.wait_obj = fi::FI_WAIT_NONE;
            let queue = Object::open(library, "fi_cq_open", |queue| {
                fi::fi_cq_open(domain.0, attr.as_mut_ptr(), queue, nothing)
            })?;
            let mut attr = Padded::<fi::fi_av_attr>::zeroed();
            (attr.type_, attr.count) = (fi::FI_AV_TABLE, 1);
            let vector = Object::open(library, "fi_av_open", |vector| {
                fi::fi_av_open(domain.0, attr.as_mut_ptr(), vector, nothing)
            })?;
            let endpoint = Object::open(library, "fi_endpoint", |endpoint| {
                fi::fi_endpoint(domain.0, raw, endpoint, nothing)
            })?;
            let (ep, both) = (endpoint.0, fi::FI_TRANSMIT | fi::FI_RECV);
            check(library, "fi_ep_bind", fi::fi_ep_bind(ep, queue.0.cast(), both) as isize)?;
            check(library, "fi_ep_bind", fi::fi_ep_bind(ep, vector.0.cast(), 0) as isize)?;
            check(library, "fi_enable", fi::fi_enable(ep) as isize)?;

            let memory = fi::iovec { iov_base: start.cast(), iov_len: len };
            let mut attr = Padded::<fi::fi_mr_attr>::zeroed();
            (attr.mr_iov, attr.iov_count, attr.requested_key) = (&memory, 1, 1);
            let remote = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
            attr.access = fi::FI_READ | fi::FI_WRITE | fi::FI_SEND | fi::FI_RECV | remote;
            let region = Object::open(library, "fi_mr_regattr", |region| {
                fi::fi_mr_regattr(domain.0, attr.as_mut_ptr(), 0, region)
            })?;
            let mr_mode = (*(*raw).domain_attr).mr_mode;
            if mr_mode & fi::FI_MR_ENDPOINT != 0 {
                check(library, "fi_mr_bind", fi::fi_mr_bind(region.0, ep.cast(), 0) as isize)?;
                check(library, "fi_mr_enable", fi::fi_mr_enable(region.0) as isize)?;
            }
            let needs_desc = mr_mode & fi::FI_MR_LOCAL != 0;
            let desc = if needs_desc { (*region.0).mem_desc as usize } else { 0 };
            let by_address = mr_mode & fi::FI_MR_VIRT_ADDR != 0;
            Ok(Self {
                region,
                endpoint,
                vector,
                queue,
                _domain: domain,
                _fabric: fabric,
                library,
                contexts: vec![Context(MaybeUninit::uninit()); window + 1].into(),
                memory: start as usize,
                desc,
                base: if by_address { start as u64 } else { 0 },
                inject: (*(*raw).tx_attr).inject_size,
                peer: (fi::FI_ADDR_NOTAVAIL, 0, 0),
                in_flight: 0,
                arrived: false,
                idle: 0,
            })
        }
    }

    pub(crate) fn record(&self) -> Result<[u8; RECORD]> {
        let mut record = [0; RECORD];
        let (head, address) = record.split_at_mut(RECORD_HEAD);
        let mut len = address.len();
        // SAFETY: endpoint and region are open; the buffer has the length given.
        let (code, key) = unsafe {
            let code = fi::fi_getname(self.endpoint.0, address.as_mut_ptr().cast(), &mut len);
            (code, (*self.region.0).key)
        };
        check(self.library, "fi_getname", code as isize)?;
        head.copy_from_slice(&[key.to_le_bytes(), self.base.to_le_bytes()].concat());
        Ok(record)
    }

    pub(crate) fn connect(&mut self, record: &[u8; RECORD]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| record[at + i]));
        let (mut address, packed) = (fi::FI_ADDR_NOTAVAIL, record[RECORD_HEAD..].as_ptr().cast());
        // SAFETY: the vector is open; `packed` holds one whole address, which fi_getname has put
        // there, and zeros.
        let code =
            unsafe { fi::fi_av_insert(self.vector.0, packed, 1, &mut address, 0, ptr::null_mut()) };
        check(self.library, "fi_av_insert", code as isize)?;
        self.peer = (address, word(0), word(8));
        Ok(())
    }

    /// Posts an operation on `len` bytes at the offset `local` of our memory, and of the peer's at
    /// `remote`. Polls while the provider has no room. A message that fits goes out with
    /// `fi_inject`, as in the plugin.
    ///
    /// # Safety
    /// Both ranges are inside the memory registered, and no operation posted with this slot is in
    /// flight.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        op: RawOp,
        slot: usize,
        local: u64,
        remote: u64,
        len: usize,
    ) -> Result<()> {
        let slot = if op == RawOp::Receive { self.contexts.len() - 1 } else { slot };
        let context = ptr::from_mut(&mut self.contexts[slot]).cast::<c_void>();
        let (ep, (to, key, base)) = (self.endpoint.0, self.peer);
        let (buf, desc) = ((self.memory + local as usize) as *mut c_void, self.desc as *mut c_void);
        let remote = base + remote;
        let is_injected = op == RawOp::Send && len <= self.inject;
        loop {
            // SAFETY: the endpoint is enabled, and the caller vouches for memory and context.
            let code = unsafe {
                match op {
                    RawOp::Write => fi::fi_write(ep, buf, len, desc, to, remote, key, context),
                    RawOp::Read => fi::fi_read(ep, buf, len, desc, to, remote, key, context),
                    RawOp::Send if is_injected => fi::fi_inject(ep, buf, len, to),
                    RawOp::Send => fi::fi_send(ep, buf, len, desc, to, context),
                    RawOp::Receive => fi::fi_recv(ep, buf, len, desc, fi::FI_ADDR_UNSPEC, context),
                }
            };
            if code == 0 {
                self.in_flight += u64::from(!is_injected && op != RawOp::Receive);
                return Ok(());
            }
            if code != -(fi::FI_EAGAIN as isize) {
                return Err(self.error("posting", code));
            }
            self.turn()?;
        }
    }

    #[inline]
    pub(crate) fn turn(&mut self) -> Result<()> {
        let mut entries = [const { MaybeUninit::<fi::fi_cq_entry>::uninit() }; POLL_BATCH];
        // SAFETY: the queue is open; entries are of its format, and their number is given.
        let code = unsafe { fi::fi_cq_read(self.queue.0, entries.as_mut_ptr().cast(), POLL_BATCH) };
        if code > 0 {
            self.idle = 0;
            let received = ptr::from_ref(&self.contexts[self.contexts.len() - 1]).cast::<c_void>();
            for entry in &entries[..code as usize] {
                // SAFETY: the queue has filled so many entries.
                if ptr::eq(unsafe { entry.assume_init_ref() }.op_context, received) {
                    self.arrived = true;
                } else {
                    self.in_flight -= 1;
                }
            }
        } else if code == 0 || code == -(fi::FI_EAGAIN as isize) {
            self.idle = self.idle.saturating_add(1);
            if self.idle >= SPINS {
                std::thread::yield_now();
            }
        } else {
            return Err(self.error("fi_cq_read", code));
        }
        Ok(())
    }

    #[cold]
    fn error(&self, call: &str, mut code: isize) -> BoxError {
        let mut entry = Padded::<fi::fi_cq_err_entry>::zeroed();
        // SAFETY: the queue is open, and the entry padded.
        if unsafe { fi::fi_cq_readerr(self.queue.0, entry.as_mut_ptr(), 0) } > 0 {
            code = -(entry.err as isize);
        }
        check(self.library, call, code).err().unwrap_or_else(|| call.into())
    }
}
