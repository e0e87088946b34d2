//! A PE's side of the bootstrap: collectives among all PEs of the job through the launcher.
//!
//! Scenarios call it from Rust; the plugin gets the same as NVSHMEM's bootstrap handle. Like
//! NVSHMEM's it takes one thread at a time, and says so when two come at once.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use nvshmem_abi::{BOOTSTRAP_VERSION, c};

use super::exit_now;
use crate::error::{Error, Result, error};
use crate::link::{self, FromPe, ToPe};
use crate::settings::JobSettings;

/// A wait looks at this rate whether the proxy thread has failed meanwhile.
const SLICE: Duration = Duration::from_millis(20);

/// Why this PE cannot go on, set once by whoever finds out first. Waits end when it is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fatal(Arc<OnceLock<String>>);

impl Fatal {
    pub(crate) fn set(&self, text: String) {
        // The first reason stays: the later ones mostly follow from it.
        let _ = self.0.set(text);
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |text| Err(error!("the proxy thread has failed: {text}")))
    }
}

/// # Threads
/// Any, but one at a time: a second one gets an error.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    shared: &'static Shared,
    pub(crate) handle: *mut c::nvt_bootstrap_handle,
    pub(crate) fatal: Fatal,
}

// SAFETY: this crate writes the handle before it is shared and never again. What a plugin does
// with the pointer follows NVSHMEM's rule for it: read only.
unsafe impl Send for Bootstrap {}
// SAFETY: as above.
unsafe impl Sync for Bootstrap {}

#[derive(Debug)]
struct Shared {
    n_pes: u32,
    deadline: Duration,
    to_launcher: File,
    /// What the launcher has sent; and what has failed in a collective, after which that may be of
    /// another one.
    answers: Mutex<(Receiver<ToPe>, Option<Error>)>,
    fatal: Fatal,
}

impl Bootstrap {
    pub(crate) fn connect(pe: u32, settings: &JobSettings, is_remote: bool) -> Result<Bootstrap> {
        let at_end = move || {
            // Nothing else ends it when the launcher has gone, or what has started it there.
            if is_remote {
                eprintln!("nvshmem-sim: the launcher has closed PE {pe}'s input");
                exit_now(2);
            }
        };
        let (to_launcher, answers) = link::of_process(at_end).map_err(gone)?;
        let ((first, pes), fatal) = (settings.node_of(pe), Fatal::default());
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            n_pes: settings.n_pes,
            deadline: settings.step_deadline,
            to_launcher,
            answers: Mutex::new((answers, None)),
            fatal: fatal.clone(),
        }));
        let handle = c::nvt_bootstrap_handle {
            version: BOOTSTRAP_VERSION,
            pg_rank: pe as i32,
            pg_size: settings.n_pes as i32,
            mype_node: (pe - first) as i32,
            npes_node: pes as i32,
            _pad: 0,
            allgather: Some(c_allgather),
            // No remote transport of this project calls the others.
            alltoall: None,
            barrier: Some(c_barrier),
            global_exit: None,
            finalize: None,
            show_info: None,
            pre_init_ops: std::ptr::null_mut(),
            comm_state: (&raw const *shared).cast_mut().cast(),
        };
        Ok(Bootstrap { shared, handle: Box::leak(Box::new(handle)), fatal })
    }

    pub fn barrier(&self) -> Result<()> {
        self.shared.join(&[]).map(drop)
    }

    /// Everybody's `part`, in the order of PEs. All parts have the same length.
    pub fn allgather(&self, part: &[u8]) -> Result<Vec<u8>> {
        self.shared.join(part)
    }

    pub(crate) fn tell(&self, message: &FromPe) -> Result<()> {
        link::send(&self.shared.to_launcher, message).map_err(gone)
    }
}

fn gone(error: std::io::Error) -> Error {
    error!("bootstrap: the launcher is gone: {error}")
}

impl Shared {
    fn join(&self, part: &[u8]) -> Result<Vec<u8>> {
        let mut answers = match self.answers.try_lock() {
            Ok(answers) => answers,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(error!("bootstrap: another thread is in a collective"));
            }
        };
        let (answers, failed) = &mut *answers;
        if let Some(error) = failed {
            return Err(error.clone());
        }
        let answer = self.exchange(answers, part);
        *failed = answer.as_ref().err().cloned();
        answer
    }

    fn exchange(&self, answers: &Receiver<ToPe>, part: &[u8]) -> Result<Vec<u8>> {
        self.fatal.check()?;
        let start = Instant::now();
        link::send(&self.to_launcher, &FromPe::Join(part.to_vec())).map_err(gone)?;
        loop {
            match answers.recv_timeout(SLICE) {
                Ok(ToPe::Gathered(all)) => return Ok(all),
                Ok(ToPe::Abort(text)) => return Err(error!("bootstrap: {text}")),
                Err(RecvTimeoutError::Timeout) => self.fatal.check()?,
                Err(closed) => return Err(error!("bootstrap: the launcher is gone: {closed}")),
            }
            if start.elapsed() > self.deadline {
                let deadline = self.deadline;
                return Err(error!("bootstrap: a collective is not complete after {deadline:?}"));
            }
        }
    }
}

/// Runs a callback's body for the handle that the plugin passed back.
///
/// # Safety
/// `handle` is null or one that [`Bootstrap::handle`] returned.
unsafe fn callback(
    name: &str,
    handle: *mut c::nvt_bootstrap_handle,
    body: impl FnOnce(&Shared) -> Result<()>,
) -> c_int {
    if handle.is_null() {
        eprintln!("nvshmem-sim: bootstrap {name}: the handle is NULL");
        return c::NVT_STATUS_INTERNAL;
    }
    // SAFETY: the caller vouches for the handle; its comm_state points to the bootstrap's Shared,
    // which lives as long as the process.
    match body(unsafe { &*(*handle).comm_state.cast::<Shared>() }) {
        Ok(()) => c::NVT_STATUS_SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-sim: bootstrap {name}: {error}");
            c::NVT_STATUS_INTERNAL
        }
    }
}

unsafe extern "C" fn c_allgather(
    send: *const c_void,
    recv: *mut c_void,
    bytes: c_int,
    handle: *mut c::nvt_bootstrap_handle,
) -> c_int {
    let body = |shared: &Shared| {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes.filter(|_| !send.is_null() && !recv.is_null());
        let bytes = bytes.ok_or_else(|| error!("no bytes, or a NULL buffer"))?;
        // SAFETY: the plugin calls as the interface says: `bytes` to send.
        let part = unsafe { std::slice::from_raw_parts(send.cast::<u8>(), bytes) }.to_vec();
        let all = shared.join(&part)?;
        if all.len() != bytes * shared.n_pes as usize {
            return Err(error!("bootstrap: the launcher has gathered something else"));
        }
        // SAFETY: and room for them from each PE; the part was copied, so the buffers may overlap
        // as they do with an in-place allgather.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), recv.cast(), all.len()) };
        Ok(())
    };
    // SAFETY: the plugin passes the handle it was given.
    unsafe { callback("allgather", handle, body) }
}

unsafe extern "C" fn c_barrier(handle: *mut c::nvt_bootstrap_handle) -> c_int {
    // SAFETY: the plugin passes the handle it was given.
    unsafe { callback("barrier", handle, |shared| shared.join(&[]).map(drop)) }
}
