//! The messages of an endpoint: what is posted for them, what has come before, and the match
//! entries of the NIC that both take.
//!
//! The carrier's own receives take in all that comes, as a NIC does, whatever the caller has
//! posted; matching is done here.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{env, ptr};

use libfabric_sys::{
    FI_EAGAIN, FI_MSG, FI_RECV, fi_context2, fi_cq_data_entry, fi_ops_msg, fid_cq, fid_ep,
};

use crate::devices::Cuda;
use crate::hook::{Hook, State};
use crate::persona::{broken, flag, number};

/// Receives of the carrier, and bytes of each.
const RECEIVES: usize = 64;
const LONGEST: usize = 16 << 10;
const MATCH_ENTRIES: usize = 16 << 10;
const OVERFLOW: usize = 12 << 20;

#[repr(C)]
struct Receive {
    context: fi_context2,
    bytes: [u8; LONGEST],
}

#[derive(Debug, Default)]
pub(crate) struct Messages(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    /// The carrier's receives, by address, and the endpoint that they are posted to.
    receives: Vec<usize>,
    endpoint: usize,
    /// The caller's receives: buffer, bytes and context.
    posted: VecDeque<(usize, usize, usize)>,
    unexpected: VecDeque<Vec<u8>>,
    /// Bytes of unexpected messages since an overflow buffer was used up.
    overflow: usize,
    /// Completions that were read and not yet handed out: contexts, flags, bytes and data.
    due: VecDeque<(usize, u64, usize, u64)>,
}

impl Messages {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to take in messages.
    ///
    /// # Safety
    /// An endpoint of the persona, enabled, with the state that this is of.
    pub(crate) unsafe fn start(&self, endpoint: *mut fid_ep) {
        let mut lists = self.lists();
        lists.endpoint = endpoint as usize;
        for _ in 0..RECEIVES {
            let context = fi_context2 { internal: [ptr::null_mut(); 8] };
            // It lives as long as the process.
            let receive = Box::into_raw(Box::new(Receive { context, bytes: [0; LONGEST] }));
            lists.receives.push(receive as usize);
            // SAFETY: by contract.
            unsafe { post(endpoint, receive) };
        }
        lists.receives.sort_unstable();
    }

    pub(crate) fn receive(
        &self,
        state: &State,
        buf: *mut c_void,
        len: usize,
        context: *mut c_void,
    ) {
        let mut lists = self.lists();
        lists.posted.push_back((buf as usize, len, context as usize));
        lists.match_all(state);
    }

    /// Reads a queue: what the carrier gives, with the caller's receives in place of its own.
    ///
    /// # Safety
    /// As `fi_cq(3)` says, of a queue of the persona's in `FI_CQ_FORMAT_DATA`.
    pub(crate) unsafe fn read(
        &self,
        state: &State,
        queue: *mut fid_cq,
        read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
        entries: *mut c_void,
        count: usize,
    ) -> isize {
        const NONE: fi_cq_data_entry = fi_cq_data_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
        };
        let mut lists = self.lists();
        // All there is, as the NIC does not wait for anybody to look.
        let code = loop {
            let mut found = [NONE; RECEIVES];
            // SAFETY: by contract; there is room for so many.
            let code = unsafe { read(queue, found.as_mut_ptr().cast(), RECEIVES) };
            if code <= 0 {
                break code;
            }
            for entry in &found[..code as usize] {
                let context = entry.op_context as usize;
                if lists.receives.binary_search(&context).is_err() {
                    lists.due.push_back((context, entry.flags, entry.len, entry.data));
                    continue;
                }
                let receive = context as *mut Receive;
                // SAFETY: a receive of ours that the carrier has given back.
                let bytes = unsafe { (&raw const (*receive).bytes).as_ref() };
                let bytes = bytes.map_or(&[][..], |bytes| &bytes[..entry.len]).to_vec();
                lists.take_in(state, bytes);
                // SAFETY: as above; the endpoint is open, since its queue is read.
                unsafe { post(lists.endpoint as *mut fid_ep, receive) };
            }
        };
        let (waiting, room) = (lists.due.len(), state.completions.load(Ordering::Acquire));
        if waiting > room {
            broken(&format!(
                "{}: {waiting} completions are in a queue of {room}, and the NIC drops what peers send",
                state.nic
            ));
        }
        let ready = waiting.min(count);
        for (at, (context, flags, len, data)) in lists.due.drain(..ready).enumerate() {
            let entry = fi_cq_data_entry {
                op_context: context as *mut c_void,
                flags,
                len,
                buf: ptr::null_mut(),
                data,
            };
            // SAFETY: by contract there is room for `count` entries.
            unsafe { entries.cast::<fi_cq_data_entry>().add(at).write(entry) };
        }
        match (ready, code) {
            (0, 0) => -(FI_EAGAIN as isize),
            (0, code) => code,
            (ready, _) => ready as isize,
        }
    }
}

impl Lists {
    fn take_in(&mut self, state: &State, bytes: Vec<u8>) {
        let limits = Limits::get();
        let len = bytes.len();
        self.unexpected.push_back(bytes);
        self.match_all(state);
        if !self.unexpected.is_empty() {
            self.overflow += len;
            if self.overflow >= limits.overflow {
                self.overflow = 0;
                register_buffer(state);
            }
        }
    }

    fn match_all(&mut self, state: &State) {
        while let (Some(bytes), Some(&(buf, len, context))) =
            (self.unexpected.front(), self.posted.front())
        {
            if bytes.len() > len {
                broken(&format!("a message of {} bytes meets a receive of {len}", bytes.len()));
            }
            // SAFETY: the caller has posted this memory, of more bytes.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buf as *mut u8, bytes.len()) };
            self.due.push_back((context, FI_MSG | FI_RECV, bytes.len(), 0));
            self.unexpected.pop_front();
            self.posted.pop_front();
        }
        let limits = Limits::get();
        if limits.hardware && self.posted.len() + self.unexpected.len() > limits.match_entries {
            broken(&format!(
                "{}: LE resources not recovered during flow control. \
                 FI_CXI_RX_MATCH_MODE=[hybrid|software] is required",
                state.nic
            ));
        }
    }
}

struct Limits {
    hardware: bool,
    match_entries: usize,
    overflow: usize,
}

impl Limits {
    fn get() -> &'static Self {
        static LIMITS: OnceLock<Limits> = OnceLock::new();
        LIMITS.get_or_init(|| Self {
            hardware: env::var("FI_CXI_RX_MATCH_MODE").map_or(true, |mode| mode == "hardware"),
            match_entries: number("CXI_LAB_MATCH_ENTRIES", MATCH_ENTRIES),
            overflow: number("CXI_LAB_OVERFLOW_BYTES", OVERFLOW),
        })
    }
}

pub(crate) fn register_buffer(state: &State) {
    if state.devices && !flag("FI_CXI_DISABLE_HOST_REGISTER", false) {
        if let Some(cuda) = Cuda::get() {
            cuda.register_host("a buffer for unexpected messages");
        }
    }
}

/// Posts a receive of the carrier's.
///
/// # Safety
/// The endpoint is open, and the receive not posted.
unsafe fn post(endpoint: *mut fid_ep, receive: *mut Receive) {
    // SAFETY: by contract; the table is the persona's.
    unsafe {
        let Some(recv) = Hook::<fi_ops_msg>::of((*endpoint).msg).inner.recv else { return };
        let (bytes, nobody) = ((&raw mut (*receive).bytes).cast(), u64::MAX);
        let code = recv(endpoint, bytes, LONGEST, ptr::null_mut(), nobody, receive.cast());
        if code != 0 {
            broken(&format!("the carrier takes no receive: {code}"));
        }
    }
}
