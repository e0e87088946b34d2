//! A completion queue.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{
    FI_CQ_FORMAT_DATA, FI_EAGAIN, FI_ENOSYS, FI_WAIT_FD, FI_WAIT_NONE, Padded, fi_cq_attr,
    fi_cq_data_entry, fi_cq_err_entry, fi_cq_open, fi_cq_readerr, fi_cq_strerror, fi_getwait,
    fi_trywait, fid, fid_cq,
};

use crate::error::{check, port_error};
use crate::objects::domain::Domain;
use crate::objects::fabric::{close, opened};
use engine::port::{POLL_BATCH, PortError};

/// Room for the entries of one poll.
#[derive(Debug)]
pub(crate) struct Entries(Box<[MaybeUninit<fi_cq_data_entry>; POLL_BATCH]>);

// SAFETY: plain numbers and addresses; nothing is done with the addresses here.
unsafe impl Send for Entries {}

impl Entries {
    pub(crate) fn new() -> Self {
        Self(Box::new([const { MaybeUninit::uninit() }; POLL_BATCH]))
    }

    /// The first `count` entries.
    ///
    /// # Safety
    /// They have been written: a read of a queue into this room has answered at least `count`,
    /// which is at most [`POLL_BATCH`].
    #[inline(always)]
    pub(crate) unsafe fn written(&self, count: usize) -> &[fi_cq_data_entry] {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }
}

/// Whether a thread may sleep until a queue has something to read, or progress to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wakes {
    /// It polls.
    Never,
    /// By a descriptor: see [`CompletionQueue::descriptor`].
    ByDescriptor,
}

/// An operation that failed, or the queue itself.
pub(crate) struct ErrorEntry {
    /// The context the operation was posted with. Null when no operation is meant.
    pub(crate) op_context: *mut c_void,
    pub(crate) error: PortError,
}

/// Owner of a `fid_cq` in `FI_CQ_FORMAT_DATA`, the shortest format with immediate data.
///
/// Its entries, three times as long as bare contexts, cost a write over shm 2 instructions of 3114.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<fid_cq>,
    domain: Arc<Domain>,
}

impl CompletionQueue {
    pub(crate) fn open(domain: &Arc<Domain>, size: usize, wakes: Wakes) -> Result<Self, PortError> {
        let mut attr = Padded::<fi_cq_attr>::new();
        attr.size = size;
        attr.format = FI_CQ_FORMAT_DATA;
        attr.wait_obj = match wakes {
            Wakes::Never => FI_WAIT_NONE,
            Wakes::ByDescriptor => FI_WAIT_FD,
        };
        let mut raw = ptr::null_mut();
        let gate = domain.gate().enter();
        // SAFETY: the domain is open; the attributes are padded for newer libraries.
        let code =
            unsafe { fi_cq_open(domain.as_ptr(), attr.as_mut_ptr(), &mut raw, ptr::null_mut()) };
        drop(gate);
        check(domain.library(), "fi_cq_open", code)?;
        Ok(Self { raw: opened(raw, "fi_cq_open")?, domain: Arc::clone(domain) })
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.as_ptr().cast()
    }

    fn as_ptr(&self) -> *mut fid_cq {
        self.raw.as_ptr()
    }

    /// The descriptor that can be read when there is something to do, of a queue that wakes. It is
    /// the queue's, and open as long as that is.
    pub(crate) fn descriptor(&self) -> Result<RawFd, PortError> {
        let mut fd: c_int = -1;
        // SAFETY: open; a queue with FI_WAIT_FD writes a descriptor.
        let code = unsafe { fi_getwait(self.as_fid(), (&raw mut fd).cast()) };
        check(self.domain.library(), "fi_control (FI_GETWAIT)", code)?;
        Ok(fd)
    }

    /// Whether a thread may sleep until the descriptor can be read. If not, there is something to
    /// do.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    pub(crate) unsafe fn may_sleep(&self) -> bool {
        let mut object = self.as_fid();
        // SAFETY: both open, and of one another.
        unsafe { fi_trywait(self.domain.fabric().as_ptr(), &raw mut object, 1) == 0 }
    }

    /// Takes completions; the result of `fi_cq_read`. That many entries are written.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    #[cfg(test)]
    pub(crate) unsafe fn read(&self, entries: &mut Entries) -> isize {
        // SAFETY: open; the rest is the caller's promise.
        unsafe { self.direct().read(entries) }
    }

    pub(crate) fn direct(&self) -> DirectQueue {
        // SAFETY: open, and so is its table of operations, which does not change.
        let read = unsafe { (*(*self.as_ptr()).ops).read };
        DirectQueue { raw: self.as_ptr(), read: read.unwrap_or(no_read) }
    }

    /// Takes an error, after `read` has answered `-FI_EAVAIL`. None when there is none
    /// after all.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate.
    #[cold]
    pub(crate) unsafe fn read_error(&self) -> Option<ErrorEntry> {
        let library = self.domain.library();
        let mut entry = Padded::<fi_cq_err_entry>::new();
        // SAFETY: open; the entry is padded. A zero `err_data_size` leaves the provider's details
        // in its own memory, valid until the queue is read next.
        let code = unsafe { fi_cq_readerr(self.as_ptr(), entry.as_mut_ptr(), 0) };
        if code == -(FI_EAGAIN as isize) || code == 0 {
            return None;
        }
        if code < 0 {
            let error = port_error(library, "fi_cq_readerr", code as i64);
            return Some(ErrorEntry { op_context: ptr::null_mut(), error });
        }
        let mut error = port_error(library, "completion", entry.err.into());
        let mut buffer = [0 as c_char; 256];
        // SAFETY: open; err_data comes from the entry just read; the buffer has the size given.
        let detail = unsafe {
            fi_cq_strerror(
                self.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        if !detail.is_null() {
            // SAFETY: not null; a string that lives at least until the queue is used again.
            let detail = unsafe { CStr::from_ptr(detail) }.to_string_lossy();
            if !detail.is_empty() && *detail != *error.text {
                error.text = format!("{}; the provider: {detail}", error.text);
            }
        }
        Some(ErrorEntry { op_context: entry.op_context, error })
    }
}

/// The way to read a queue, resolved once: what `fi_cq_read` looks up at each call.
///
/// It does not keep the queue open; [`crate::data_path::port`] keeps both together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectQueue {
    raw: *mut fid_cq,
    read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
}

// SAFETY: as for `CompletionQueue`.
unsafe impl Send for DirectQueue {}
// SAFETY: as for `CompletionQueue`.
unsafe impl Sync for DirectQueue {}

impl DirectQueue {
    /// Something else that is read as a queue is, at an address that the function is given.
    ///
    /// # Safety
    /// The function may be called with the address, and with room for that many entries, by
    /// whoever may read this queue, as long as it may be read.
    pub(crate) unsafe fn standing_for(
        address: *mut c_void,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    ) -> Self {
        Self { raw: address.cast(), read }
    }

    /// As [`Self::read`], into any room for `count` entries.
    ///
    /// # Safety
    /// As there, and there is room.
    #[inline(always)]
    pub(crate) unsafe fn read_into(&self, entries: *mut fi_cq_data_entry, count: usize) -> isize {
        // SAFETY: open; the queue's format is that of the entries; the rest is the caller's
        // promise.
        unsafe { (self.read)(self.raw, entries.cast(), count) }
    }

    /// Takes completions; the result of `fi_cq_read`. That many entries are written.
    ///
    /// # Safety
    /// One thread at a time, inside the domain's gate, while the queue is open.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, entries: &mut Entries) -> isize {
        // SAFETY: open; the queue's format is that of the entries, and their number is given.
        unsafe { (self.read)(self.raw, entries.0.as_mut_ptr().cast(), POLL_BATCH) }
    }
}

/// Stands in for a call that the provider does not have.
unsafe extern "C" fn no_read(_: *mut fid_cq, _: *mut c_void, _: usize) -> isize {
    -(FI_ENOSYS as isize)
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let _gate = self.domain.gate().enter();
        // SAFETY: open, and the endpoint bound to it is closed: it owns this queue.
        unsafe { close(self.domain.library(), "completion queue", self.as_fid()) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use libfabric_sys::fid_fabric;

    use super::*;
    use crate::data_path::some_rail;
    use crate::objects::tables;
    use crate::provider::Provider;

    thread_local! {
        static ANSWER: Cell<isize> = const { Cell::new(0) };
        static WORDS: Cell<Option<&'static CStr>> = const { Cell::new(None) };
    }

    unsafe extern "C" fn readerr(_: *mut fid_cq, entry: *mut fi_cq_err_entry, _: u64) -> isize {
        // SAFETY: room for an entry.
        unsafe {
            ((*entry).err, (*entry).prov_errno) = (libc::EIO, 4711);
            (*entry).op_context = ptr::without_provenance_mut(64);
        }
        ANSWER.get()
    }

    unsafe extern "C" fn strerror(
        _: *mut fid_cq,
        number: c_int,
        _: *const c_void,
        _: *mut c_char,
        len: usize,
    ) -> *const c_char {
        assert_eq!((number, len), (4711, 256));
        WORDS.get().map_or(ptr::null(), CStr::as_ptr)
    }

    unsafe extern "C" fn trywait(_: *mut fid_fabric, _: *mut *mut fid, count: c_int) -> c_int {
        assert_eq!(count, 1);
        ANSWER.get() as c_int
    }

    #[test]
    fn an_error_has_the_words_of_the_provider_where_it_has_some_of_its_own() {
        let rail = some_rail(Provider::TcpRxm);
        let queue = rail.endpoint().queue();
        // SAFETY: open, and of this thread.
        unsafe {
            tables::change(&raw mut (*queue.as_ptr()).ops, |table| {
                table.readerr = Some(readerr);
                table.strerror = Some(strerror);
            });
        }
        let error = |answer, words| {
            ANSWER.set(answer);
            WORDS.set(words);
            // SAFETY: one thread, no gate with this threading level.
            unsafe { queue.read_error() }
        };
        let library = rail.domain().library();
        for none in [0, -(FI_EAGAIN as isize)] {
            assert!(error(none, None).is_none(), "{none}");
        }
        let broken = error(-(libc::EINVAL as isize), None).expect("the queue itself");
        assert_eq!((broken.error.call, broken.error.code), ("fi_cq_readerr", libc::EINVAL));
        assert!(broken.op_context.is_null());
        let plain = library.strerror(libc::EIO);
        let same = std::ffi::CString::new(plain.clone()).expect("no zero").into_boxed_c_str();
        let more = format!("{plain}; the provider: the cable is out");
        for (words, text) in [
            (None, &plain),
            (Some(c""), &plain),
            (Some(&*Box::leak(same)), &plain),
            (Some(c"the cable is out"), &more),
        ] {
            let entry = error(1, words).expect("there is one");
            assert_eq!((entry.op_context as usize, entry.error.code), (64, libc::EIO));
            assert_eq!(entry.error.text, *text, "{words:?}");
        }
    }

    #[test]
    fn who_has_something_to_read_may_not_sleep() {
        let rail = some_rail(Provider::TcpRxm);
        // SAFETY: open, and of this thread.
        unsafe {
            let fabric = rail.domain().fabric().as_ptr();
            tables::change(&raw mut (*fabric).ops, |table| table.trywait = Some(trywait));
        }
        for (answer, may_sleep) in [(0, true), (-(FI_EAGAIN as isize), false)] {
            ANSWER.set(answer);
            // SAFETY: one thread, no gate with this threading level.
            assert_eq!(unsafe { rail.endpoint().queue().may_sleep() }, may_sleep, "{answer}");
        }
    }

    #[test]
    fn a_provider_without_a_way_to_read_says_so() {
        let rail = some_rail(Provider::TcpRxm);
        let queue = rail.endpoint().queue();
        // SAFETY: open, and of this thread; no gate with this threading level.
        unsafe {
            tables::change(&raw mut (*queue.as_ptr()).ops, |table| table.read = None);
            assert_eq!(queue.read(&mut Entries::new()), -(FI_ENOSYS as isize));
        }
    }
}
