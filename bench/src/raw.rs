//! Raw libfabric: what the plugin is compared with.
//!
//! The thinnest program that does what the plugin promises, by the plugin's own choices: the same
//! hints, the same ladder of progress and threading, `FI_DELIVERY_COMPLETE` on the endpoint, a
//! queue in `FI_CQ_FORMAT_CONTEXT` read 32 entries at a time, one context per operation in flight,
//! and the same rule for giving up the core. There are no handles, no bounds, no counters.

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use libfabric_sys as fi;
use libfabric_sys::{Library, Padded};

use crate::case::Direction;

/// Completions taken in one poll, as in the plugin.
const POLL_BATCH: usize = 32;

/// Empty polls before each further one gives up the core, as in the plugin.
const SPINS: u32 = 8;

/// Bytes of [`Raw::record`].
pub(crate) const RECORD: usize = 256;

/// Bytes of a record before the address.
const RECORD_HEAD: usize = 32;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("raw libfabric: {call} failed: {text}")]
pub(crate) struct RawError {
    call: &'static str,
    text: String,
}

fn refused(call: &'static str, text: impl Into<String>) -> RawError {
    RawError { call, text: text.into() }
}

/// Owner of any libfabric object: all of them begin with a `fid`.
#[derive(Debug)]
struct Object<T>(NonNull<T>);

impl<T> Object<T> {
    fn new(
        library: &Library,
        call: &'static str,
        code: i32,
        raw: *mut T,
    ) -> Result<Self, RawError> {
        check(library, call, code.into())?;
        NonNull::new(raw).map(Self).ok_or_else(|| refused(call, "success without an object"))
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
        // SAFETY: open, and closed once. `Raw` drops its fields in the order libfabric asks for.
        // A failure leaves the object open until the process ends, soon after.
        let _ = unsafe { fi::fi_close(self.as_fid()) };
    }
}

/// Owner of an `fi_info`.
#[derive(Debug)]
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

fn check(library: &Library, call: &'static str, code: i64) -> Result<(), RawError> {
    if code < 0 {
        return Err(refused(call, format!("{} ({code})", library.strerror(code as i32))));
    }
    Ok(())
}

/// Room that a provider may use while an operation is in flight.
#[repr(C, align(64))]
struct Context([MaybeUninit<u8>; 64]);

const _: () = assert!(size_of::<fi::fi_context2>() <= size_of::<Context>());

/// The peer, as its record says.
#[derive(Clone, Copy, Debug)]
struct Peer {
    address: fi::fi_addr_t,
    key: u64,
    /// What to add to an offset in the peer's memory to name it.
    base: u64,
}

/// One endpoint, on one device, with one region. Fields are closed in the order in which they
/// stand here.
pub(crate) struct Raw {
    region: Option<Object<fi::fid_mr>>,
    endpoint: Object<fi::fid_ep>,
    vector: Object<fi::fid_av>,
    queue: Object<fi::fid_cq>,
    domain: Object<fi::fid_domain>,
    _fabric: Object<fi::fid_fabric>,
    info: Info,
    contexts: Box<[Context]>,
    memory: usize,
    desc: usize,
    peer: Option<Peer>,
    in_flight: u64,
    idle: u32,
}

// SAFETY: libfabric's objects may move between threads; `&mut self` keeps their use to one at a
// time, which is what FI_THREAD_DOMAIN, the least that is asked for, wants.
unsafe impl Send for Raw {}

impl Raw {
    /// Opens the provider of exactly this name, at the source address if there is one, for a
    /// window of operations in flight.
    pub(crate) fn open(
        path: &str,
        provider: &str,
        source: Option<&str>,
        window: usize,
    ) -> Result<Self, RawError> {
        let library = Library::load(path).map_err(|e| refused("loading", e.to_string()))?;
        let info = choose(library, provider, source)?;
        let raw_info = info.raw.as_ptr();
        // SAFETY: `choose` has seen to it that the info's parts exist. Every object is made from
        // one that is open, attributes are padded, and results are checked before use.
        unsafe {
            let mut fabric = ptr::null_mut();
            let code = library.fabric((*raw_info).fabric_attr, &mut fabric, ptr::null_mut());
            let fabric = Object::new(library, "fi_fabric", code, fabric)?;

            let mut domain = ptr::null_mut();
            let code = fi::fi_domain(fabric.as_ptr(), raw_info, &mut domain, ptr::null_mut());
            let domain = Object::new(library, "fi_domain", code, domain)?;

            let mut attr = Padded::<fi::fi_cq_attr>::new();
            attr.size = (*(*raw_info).tx_attr).size.min(4096) + 256;
            attr.format = fi::FI_CQ_FORMAT_CONTEXT;
            attr.wait_obj = fi::FI_WAIT_NONE;
            let mut queue = ptr::null_mut();
            let code =
                fi::fi_cq_open(domain.as_ptr(), attr.as_mut_ptr(), &mut queue, ptr::null_mut());
            let queue = Object::new(library, "fi_cq_open", code, queue)?;

            let mut attr = Padded::<fi::fi_av_attr>::new();
            attr.type_ = fi::FI_AV_TABLE;
            attr.count = 2;
            let mut vector = ptr::null_mut();
            let code =
                fi::fi_av_open(domain.as_ptr(), attr.as_mut_ptr(), &mut vector, ptr::null_mut());
            let vector = Object::new(library, "fi_av_open", code, vector)?;

            let mut endpoint = ptr::null_mut();
            let code = fi::fi_endpoint(domain.as_ptr(), raw_info, &mut endpoint, ptr::null_mut());
            let endpoint = Object::new(library, "fi_endpoint", code, endpoint)?;
            let ep = endpoint.as_ptr();
            let code = fi::fi_ep_bind(ep, queue.as_fid(), fi::FI_TRANSMIT | fi::FI_RECV);
            check(library, "fi_ep_bind (cq)", code.into())?;
            check(library, "fi_ep_bind (av)", fi::fi_ep_bind(ep, vector.as_fid(), 0).into())?;
            check(library, "fi_enable", fi::fi_enable(ep).into())?;

            let context = |_| Context([MaybeUninit::uninit(); 64]);
            Ok(Self {
                region: None,
                endpoint,
                vector,
                queue,
                domain,
                _fabric: fabric,
                info,
                contexts: (0..window).map(context).collect(),
                memory: 0,
                desc: 0,
                peer: None,
                in_flight: 0,
                idle: 0,
            })
        }
    }

    fn library(&self) -> &'static Library {
        self.info.library
    }

    fn mr_mode(&self) -> i32 {
        // SAFETY: the info's parts exist (see `choose`) and live as long as it does.
        unsafe { (*(*self.info.raw.as_ptr()).domain_attr).mr_mode }
    }

    /// Registers the memory that both sides of every operation are in.
    ///
    /// # Safety
    /// The memory is valid for as long as this value lives.
    pub(crate) unsafe fn register(&mut self, start: *mut u8, len: usize) -> Result<(), RawError> {
        let library = self.library();
        let memory = fi::iovec { iov_base: start.cast(), iov_len: len };
        let mut attr = Padded::<fi::fi_mr_attr>::new();
        fi::mr_attr_set_iov(&mut attr, &memory, 1);
        attr.access = fi::FI_READ
            | fi::FI_WRITE
            | fi::FI_SEND
            | fi::FI_RECV
            | fi::FI_REMOTE_READ
            | fi::FI_REMOTE_WRITE;
        attr.requested_key = 1;
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open and the attributes padded; the caller vouches for the memory.
        unsafe {
            let code = fi::fi_mr_regattr(self.domain.as_ptr(), attr.as_mut_ptr(), 0, &mut region);
            let region = Object::new(library, "fi_mr_regattr", code, region)?;
            if self.mr_mode() & fi::FI_MR_ENDPOINT != 0 {
                let code = fi::fi_mr_bind(region.as_ptr(), self.endpoint.as_fid(), 0);
                check(library, "fi_mr_bind", code.into())?;
                check(library, "fi_mr_enable", fi::fi_mr_enable(region.as_ptr()).into())?;
            }
            if self.mr_mode() & fi::FI_MR_LOCAL != 0 {
                self.desc = fi::fi_mr_desc(region.as_ptr()) as usize;
            }
            self.region = Some(region);
        }
        self.memory = start as usize;
        Ok(())
    }

    /// Address and key, for the peer's [`Self::connect`].
    pub(crate) fn record(&self) -> Result<[u8; RECORD], RawError> {
        let region = self.region.as_ref();
        let region = region.ok_or_else(|| refused("record", "no memory is registered"))?;
        let mut record = [0; RECORD];
        let mut len = RECORD - RECORD_HEAD;
        // SAFETY: the endpoint is enabled; the buffer has the length given.
        let code = unsafe {
            let room = record[RECORD_HEAD..].as_mut_ptr().cast();
            fi::fi_getname(self.endpoint.as_ptr(), room, &mut len)
        };
        check(self.library(), "fi_getname", code.into())?;
        // SAFETY: the region is open.
        let key = unsafe { fi::fi_mr_key(region.as_ptr()) };
        let base = if self.mr_mode() & fi::FI_MR_VIRT_ADDR != 0 { self.memory as u64 } else { 0 };
        record[0..8].copy_from_slice(&(len as u64).to_le_bytes());
        record[8..16].copy_from_slice(&key.to_le_bytes());
        record[16..24].copy_from_slice(&base.to_le_bytes());
        Ok(record)
    }

    /// Makes the peer known.
    pub(crate) fn connect(&mut self, record: &[u8]) -> Result<(), RawError> {
        let word = |at: usize| {
            let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(|| refused("connect", "the record is short"))
        };
        let mut address = fi::FI_ADDR_NOTAVAIL;
        // A string address ends in the record's zeros at the latest.
        let packed = &record[RECORD_HEAD.min(record.len())..];
        if word(0)? as usize >= packed.len() {
            return Err(refused("connect", "the record has no whole address"));
        }
        // SAFETY: the vector is open; `packed` holds one whole address.
        let code = unsafe {
            let (vector, packed) = (self.vector.as_ptr(), packed.as_ptr().cast());
            fi::fi_av_insert(vector, packed, 1, &mut address, 0, ptr::null_mut())
        };
        check(self.library(), "fi_av_insert", code.into())?;
        if address == fi::FI_ADDR_NOTAVAIL {
            return Err(refused("fi_av_insert", "the peer's address was refused"));
        }
        self.peer = Some(Peer { address, key: word(8)?, base: word(16)? });
        Ok(())
    }

    /// Posts one operation between our memory and the peer's, at these offsets in each. Whether
    /// the provider has taken it.
    ///
    /// # Safety
    /// Both ranges are inside the memory registered. Contexts are by `slot`: an operation that was
    /// posted with the same one has completed.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        direction: Direction,
        slot: usize,
        local: u64,
        remote: u64,
        len: usize,
    ) -> Result<bool, RawError> {
        let (Some(peer), Some(context)) = (self.peer, self.contexts.get_mut(slot)) else {
            return Err(refused("post", "no peer, or no such slot"));
        };
        let (ep, context) = (self.endpoint.as_ptr(), ptr::from_mut(context).cast::<c_void>());
        let (buf, desc) = ((self.memory + local as usize) as *mut c_void, self.desc as *mut c_void);
        let remote = peer.base + remote;
        // SAFETY: the endpoint is enabled, and the caller vouches for memory and context.
        let code = unsafe {
            match direction {
                Direction::Put => {
                    fi::fi_write(ep, buf, len, desc, peer.address, remote, peer.key, context)
                }
                Direction::Get => {
                    fi::fi_read(ep, buf, len, desc, peer.address, remote, peer.key, context)
                }
            }
        };
        if code == 0 {
            self.in_flight += 1;
            Ok(true)
        } else if code == -(fi::FI_EAGAIN as isize) {
            Ok(false)
        } else {
            Err(self.error("posting", code))
        }
    }

    /// Operations posted and not completed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Takes completions, and gives up the core when there have been none for a while.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<(), RawError> {
        let mut entries = [const { MaybeUninit::<fi::fi_cq_entry>::uninit() }; POLL_BATCH];
        // SAFETY: the queue is open; entries are of its format, and their number is given.
        let code = unsafe {
            fi::fi_cq_read(self.queue.as_ptr(), entries.as_mut_ptr().cast(), entries.len())
        };
        if code > 0 {
            self.in_flight -= code as u64;
            self.idle = 0;
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
    fn error(&self, call: &'static str, code: isize) -> RawError {
        let mut code = code as i32;
        if code == -(fi::FI_EAVAIL as i32) {
            let mut entry = Padded::<fi::fi_cq_err_entry>::new();
            // SAFETY: the queue is open, and the entry padded.
            let read = unsafe { fi::fi_cq_readerr(self.queue.as_ptr(), entry.as_mut_ptr(), 0) };
            if read > 0 {
                code = entry.err;
            }
        }
        refused(call, format!("{} ({code})", self.library().strerror(code)))
    }

    /// What was opened, for people: comparable with the plugin's own words.
    pub(crate) fn describe(&self) -> String {
        // SAFETY: the info's parts exist (see `choose`); the values have the types named.
        unsafe {
            let domain = (*self.info.raw.as_ptr()).domain_attr;
            let progress = fi::data_progress(domain);
            let threading = (*domain).threading;
            let library = self.library();
            format!(
                "libfabric {}, {}, {}, tx size {}",
                library.version(),
                library.tostr((&raw const progress).cast(), fi::FI_TYPE_PROGRESS),
                library.tostr((&raw const threading).cast(), fi::FI_TYPE_THREADING),
                (*(*self.info.raw.as_ptr()).tx_attr).size,
            )
        }
    }
}

/// The first answer of the provider on the plugin's ladder.
fn choose(
    library: &'static Library,
    provider: &str,
    source: Option<&str>,
) -> Result<Info, RawError> {
    let ladder = [
        (fi::FI_PROGRESS_AUTO, fi::FI_THREAD_COMPLETION),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_COMPLETION),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_DOMAIN),
        (fi::FI_PROGRESS_MANUAL, fi::FI_THREAD_SAFE),
    ];
    let mut last = refused("fi_getinfo", "nothing was asked");
    for (progress, threading) in ladder {
        match query(library, provider, source, progress, threading) {
            Ok(info) => return Ok(info),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn query(
    library: &'static Library,
    provider: &str,
    source: Option<&str>,
    progress: fi::fi_progress,
    threading: fi::fi_threading,
) -> Result<Info, RawError> {
    const CALL: &str = "fi_getinfo";
    let text = |text: &str| CString::new(text).map_err(|e| refused(CALL, e.to_string()));
    let name = text(provider)?;
    let source = source.map(text).transpose()?;
    let no_memory = || refused("fi_dupinfo", "out of memory");
    let hints = Info { library, raw: NonNull::new(library.allocinfo()).ok_or_else(no_memory)? };
    // SAFETY: an info from fi_dupinfo(NULL) has all its attributes. The name is from malloc, as
    // fi_freeinfo wants it. The list is freed once, after its entries were copied.
    unsafe {
        let info = hints.raw.as_ptr();
        (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*info).caps = fi::FI_MSG | fi::FI_RMA;
        (*info).mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
        (*(*info).ep_attr).type_ = fi::FI_EP_RDM;
        (*(*info).tx_attr).op_flags = fi::FI_DELIVERY_COMPLETE;
        let domain = (*info).domain_attr;
        (*domain).mr_mode = fi::FI_MR_LOCAL
            | fi::FI_MR_VIRT_ADDR
            | fi::FI_MR_ALLOCATED
            | fi::FI_MR_PROV_KEY
            | fi::FI_MR_ENDPOINT;
        (*domain).threading = threading;
        fi::set_progress(domain, progress, progress);

        let (node, flags) = match &source {
            Some(source) => (source.as_ptr(), fi::FI_SOURCE | fi::FI_NUMERICHOST),
            None => (ptr::null(), 0),
        };
        let mut list: *mut fi::fi_info = ptr::null_mut();
        let code = library.getinfo(node, ptr::null(), flags, info, &mut list);
        check(library, CALL, code.into())?;
        let mut found = None;
        let mut entry = list;
        while !entry.is_null() && found.is_none() {
            let fabric = (*entry).fabric_attr;
            if !fabric.is_null()
                && !(*fabric).prov_name.is_null()
                && std::ffi::CStr::from_ptr((*fabric).prov_name) == name.as_c_str()
                && !(*entry).domain_attr.is_null()
                && !(*entry).tx_attr.is_null()
            {
                found = NonNull::new(library.dupinfo(entry)).map(|raw| Info { library, raw });
            }
            entry = (*entry).next;
        }
        library.freeinfo(list);
        found.ok_or_else(|| refused(CALL, format!("no answer from provider {provider}")))
    }
}
