//! Raw libfabric: what the plugin is compared with.
//!
//! The thinnest program that does what the plugin promises, by the plugin's own choices: the same
//! hints, the same ladder of progress and threading, `FI_DELIVERY_COMPLETE` on the endpoint, a
//! queue in `FI_CQ_FORMAT_CONTEXT` read 32 entries at a time, one context per operation in flight,
//! and the same rule for giving up the core. There are no handles, no bounds, no counters.
//!
//! [`Messages`] is the same for a ping-pong of messages, which need not tell of their delivery.

mod info;
mod messages;
mod object;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use libfabric_sys as fi;
use libfabric_sys::{Library, Padded};

use crate::pe::window::Direction;
use info::{Info, choose};
use object::{Object, check, refused};

pub(crate) use messages::Messages;
pub(crate) use object::RawError;

/// Completions taken in one poll, as in the plugin.
const POLL_BATCH: usize = 32;

/// Empty polls before each further one gives up the core, as in the plugin.
const SPINS: u32 = 8;

/// Bytes of [`Raw::record`].
pub(crate) const RECORD: usize = 256;

/// Bytes of a record before the address.
const RECORD_HEAD: usize = 32;

/// What a completion of an outgoing operation says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Promise {
    /// That the data is at the target: `FI_DELIVERY_COMPLETE`.
    Delivered,
    /// No more than the provider says by default.
    Default,
}

/// What to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening<'a> {
    /// Path of the library.
    pub(crate) library: &'a str,
    /// The provider, of exactly this name.
    pub(crate) provider: &'a str,
    /// The address to open, if there is one.
    pub(crate) source: Option<&'a str>,
    pub(crate) promise: Promise,
    /// Most operations in flight.
    pub(crate) window: usize,
    /// Peers.
    pub(crate) peers: usize,
}

/// Room that a provider may use while an operation is in flight.
#[repr(C, align(64))]
struct Context([MaybeUninit<u8>; 64]);

const _: () = assert!(size_of::<fi::fi_context2>() <= size_of::<Context>());

/// A peer, as its record says.
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
    promise: Promise,
    contexts: Box<[Context]>,
    memory: usize,
    desc: usize,
    peers: Vec<Peer>,
    in_flight: u64,
    idle: u32,
}

// SAFETY: libfabric's objects may move between threads; `&mut self` keeps their use to one at a
// time, which is what FI_THREAD_DOMAIN, the least that is asked for, wants.
unsafe impl Send for Raw {}

impl Raw {
    /// Opens an endpoint.
    pub(crate) fn open(opening: &Opening<'_>) -> Result<Self, RawError> {
        let library =
            Library::load(opening.library).map_err(|e| refused("loading", e.to_string()))?;
        let info = choose(library, opening)?;
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
            attr.count = opening.peers;
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
                promise: opening.promise,
                contexts: (0..opening.window).map(context).collect(),
                memory: 0,
                desc: 0,
                peers: Vec::with_capacity(opening.peers),
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
        attr.mr_iov = &memory;
        attr.iov_count = 1;
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

    /// Makes the next peer known.
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
        self.peers.push(Peer { address, key: word(8)?, base: word(16)? });
        Ok(())
    }

    /// Posts one operation between our memory and the first peer's, at these offsets in each.
    /// Whether the provider has taken it.
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
        let (Some(&peer), Some(context)) = (self.peers.first(), self.contexts.get_mut(slot)) else {
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
        let taken = self.taken("posting", code)?;
        self.in_flight += u64::from(taken);
        Ok(taken)
    }

    /// Whether a call was successful, or is to be tried again.
    #[inline]
    fn taken(&self, call: &'static str, code: isize) -> Result<bool, RawError> {
        if code == 0 {
            Ok(true)
        } else if code == -(fi::FI_EAGAIN as isize) {
            Ok(false)
        } else {
            Err(self.error(call, code))
        }
    }

    /// Operations posted and not completed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Takes completions, and gives up the core when there have been none for a while.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<(), RawError> {
        let mut entries = [const { MaybeUninit::uninit() }; POLL_BATCH];
        self.in_flight -= self.poll(&mut entries)?.len() as u64;
        Ok(())
    }

    /// What has completed, and gives up the core when nothing has for a while.
    #[inline]
    fn poll<'a>(
        &mut self,
        entries: &'a mut [MaybeUninit<fi::fi_cq_entry>; POLL_BATCH],
    ) -> Result<&'a [fi::fi_cq_entry], RawError> {
        // SAFETY: the queue is open; entries are of its format, and their number is given.
        let code = unsafe {
            fi::fi_cq_read(self.queue.as_ptr(), entries.as_mut_ptr().cast(), entries.len())
        };
        let mut count = 0;
        if code > 0 {
            count = code as usize;
            self.idle = 0;
        } else if code == 0 || code == -(fi::FI_EAGAIN as isize) {
            self.idle = self.idle.saturating_add(1);
            if self.idle >= SPINS {
                std::thread::yield_now();
            }
        } else {
            return Err(self.error("fi_cq_read", code));
        }
        let filled = &entries[..count.min(POLL_BATCH)];
        // SAFETY: the queue has filled so many entries, and `MaybeUninit` has the layout of what is
        // in it.
        Ok(unsafe { std::slice::from_raw_parts(filled.as_ptr().cast(), filled.len()) })
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
            let progress = (*domain).data_progress;
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
