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

struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    fn open(library: &Library, call: &str, open: impl FnOnce(*mut *mut T) -> i32) -> Result<Self> {
        let mut object = ptr::null_mut();
        check(library, call, open(&mut object) as isize)?;
        Ok(NonNull::new(object).map(Self).ok_or("success without an object")?)
    }

    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    fn as_fid(&self) -> *mut fi::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: open, and closed once; `Raw` drops its fields in libfabric's order. A failure
        // leaves the object open until the process ends, soon after.
        let _ = unsafe { fi::fi_close(self.as_fid()) };
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
        unsafe { self.library.freeinfo(self.raw.as_ptr()) };
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
        let hints = NonNull::new(library.allocinfo()).ok_or("out of memory")?;
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
                let copy = named.and_then(|entry| NonNull::new(library.dupinfo(entry.as_ptr())));
                library.freeinfo(list);
                if let Some(raw) = copy {
                    return Ok(Self { library, raw });
                }
            }
        }
        Err(last)
    }
}

#[repr(C, align(64))]
struct Context([MaybeUninit<u8>; 64]);

const _: () = assert!(size_of::<fi::fi_context2>() <= size_of::<Context>());

/// An operation of [`Raw::post`].
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
    info: Info,
    /// One for each slot of a window, and one for the message that is waited for.
    contexts: Box<[Context]>,
    memory: usize,
    desc: usize,
    /// The peer's address, key, and what to add to an offset in its memory to name it.
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
                library.fabric((*raw).fabric_attr, fabric, nothing)
            })?;
            let domain = Object::open(library, "fi_domain", |domain| {
                fi::fi_domain(fabric.as_ptr(), raw, domain, nothing)
            })?;
            let mut attr = Padded::<fi::fi_cq_attr>::new();
            attr.size = (*(*raw).tx_attr).size.min(4096) + 256;
            attr.format = fi::FI_CQ_FORMAT_CONTEXT;
            attr.wait_obj = fi::FI_WAIT_NONE;
            let queue = Object::open(library, "fi_cq_open", |queue| {
                fi::fi_cq_open(domain.as_ptr(), attr.as_mut_ptr(), queue, nothing)
            })?;
            let mut attr = Padded::<fi::fi_av_attr>::new();
            (attr.type_, attr.count) = (fi::FI_AV_TABLE, 1);
            let vector = Object::open(library, "fi_av_open", |vector| {
                fi::fi_av_open(domain.as_ptr(), attr.as_mut_ptr(), vector, nothing)
            })?;
            let endpoint = Object::open(library, "fi_endpoint", |endpoint| {
                fi::fi_endpoint(domain.as_ptr(), raw, endpoint, nothing)
            })?;
            let ep = endpoint.as_ptr();
            let both = fi::FI_TRANSMIT | fi::FI_RECV;
            check(library, "fi_ep_bind", fi::fi_ep_bind(ep, queue.as_fid(), both) as isize)?;
            check(library, "fi_ep_bind", fi::fi_ep_bind(ep, vector.as_fid(), 0) as isize)?;
            check(library, "fi_enable", fi::fi_enable(ep) as isize)?;

            let memory = fi::iovec { iov_base: start.cast(), iov_len: len };
            let mut attr = Padded::<fi::fi_mr_attr>::new();
            (attr.mr_iov, attr.iov_count, attr.requested_key) = (&memory, 1, 1);
            attr.access = fi::FI_READ
                | fi::FI_WRITE
                | fi::FI_SEND
                | fi::FI_RECV
                | fi::FI_REMOTE_READ
                | fi::FI_REMOTE_WRITE;
            let region = Object::open(library, "fi_mr_regattr", |region| {
                fi::fi_mr_regattr(domain.as_ptr(), attr.as_mut_ptr(), 0, region)
            })?;
            let mr_mode = (*(*raw).domain_attr).mr_mode;
            if mr_mode & fi::FI_MR_ENDPOINT != 0 {
                let code = fi::fi_mr_bind(region.as_ptr(), endpoint.as_fid(), 0);
                check(library, "fi_mr_bind", code as isize)?;
                check(library, "fi_mr_enable", fi::fi_mr_enable(region.as_ptr()) as isize)?;
            }
            let needs_desc = mr_mode & fi::FI_MR_LOCAL != 0;
            let desc = if needs_desc { fi::fi_mr_desc(region.as_ptr()) as usize } else { 0 };
            let context = |_| Context([MaybeUninit::uninit(); 64]);
            Ok(Self {
                region,
                endpoint,
                vector,
                queue,
                _domain: domain,
                _fabric: fabric,
                info,
                contexts: (0..=window).map(context).collect(),
                memory: start as usize,
                desc,
                peer: (fi::FI_ADDR_NOTAVAIL, 0, 0),
                in_flight: 0,
                arrived: false,
                idle: 0,
            })
        }
    }

    /// Returns address and key, for the peer's [`Self::connect`].
    pub(crate) fn record(&self) -> Result<[u8; RECORD]> {
        let mut record = [0; RECORD];
        let mut len = RECORD - RECORD_HEAD;
        // SAFETY: endpoint, region and info are open; the buffer has the length given.
        let (code, key, mr_mode) = unsafe {
            let room = record[RECORD_HEAD..].as_mut_ptr().cast();
            let code = fi::fi_getname(self.endpoint.as_ptr(), room, &mut len);
            let key = fi::fi_mr_key(self.region.as_ptr());
            (code, key, (*(*self.info.raw.as_ptr()).domain_attr).mr_mode)
        };
        check(self.info.library, "fi_getname", code as isize)?;
        let base = if mr_mode & fi::FI_MR_VIRT_ADDR != 0 { self.memory as u64 } else { 0 };
        record[..8].copy_from_slice(&key.to_le_bytes());
        record[8..16].copy_from_slice(&base.to_le_bytes());
        Ok(record)
    }

    pub(crate) fn connect(&mut self, record: &[u8; RECORD]) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| record[at + i]));
        let (mut address, packed) = (fi::FI_ADDR_NOTAVAIL, record[RECORD_HEAD..].as_ptr().cast());
        // SAFETY: the vector is open; `packed` holds one whole address, which fi_getname has put
        // there, and zeros.
        let code = unsafe {
            fi::fi_av_insert(self.vector.as_ptr(), packed, 1, &mut address, 0, ptr::null_mut())
        };
        check(self.info.library, "fi_av_insert", code as isize)?;
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
        let (ep, (to, key, base)) = (self.endpoint.as_ptr(), self.peer);
        let (buf, desc) = ((self.memory + local as usize) as *mut c_void, self.desc as *mut c_void);
        let remote = base + remote;
        loop {
            // SAFETY: the endpoint is enabled, the info has its parts, and the caller vouches for
            // memory and context.
            let (code, completes) = unsafe {
                match op {
                    RawOp::Write => {
                        (fi::fi_write(ep, buf, len, desc, to, remote, key, context), true)
                    }
                    RawOp::Read => {
                        (fi::fi_read(ep, buf, len, desc, to, remote, key, context), true)
                    }
                    RawOp::Send => {
                        if len <= (*(*self.info.raw.as_ptr()).tx_attr).inject_size {
                            (fi::fi_inject(ep, buf, len, to), false)
                        } else {
                            (fi::fi_send(ep, buf, len, desc, to, context), true)
                        }
                    }
                    RawOp::Receive => {
                        (fi::fi_recv(ep, buf, len, desc, fi::FI_ADDR_UNSPEC, context), false)
                    }
                }
            };
            if code == 0 {
                self.in_flight += u64::from(completes);
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
        let code =
            unsafe { fi::fi_cq_read(self.queue.as_ptr(), entries.as_mut_ptr().cast(), POLL_BATCH) };
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
        let mut entry = Padded::<fi::fi_cq_err_entry>::new();
        // SAFETY: the queue is open, and the entry padded.
        if unsafe { fi::fi_cq_readerr(self.queue.as_ptr(), entry.as_mut_ptr(), 0) } > 0 {
            code = -(entry.err as isize);
        }
        check(self.info.library, call, code).err().unwrap_or_else(|| call.into())
    }
}
