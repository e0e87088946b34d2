//! A PE's side of the bootstrap: collectives among all PEs of the job through the launcher.
//!
//! Scenarios call it from Rust; the plugin gets the same as NVSHMEM's bootstrap handle. Like
//! NVSHMEM's it takes one thread at a time, and says so when two come at once.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use nvshmem_abi::{BOOTSTRAP_VERSION, c};

use super::process::exit_now;
use crate::error::{Error, Result};
use crate::settings::Node;
use crate::socket::{Connection, STREAMS, await_end};
use crate::wire::{Collective, Frames, FromPe, ToPe, encode};

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

    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Collectives among all PEs.
///
/// # Threads
/// Any, but one at a time: a second one gets an error.
#[derive(Debug)]
pub struct Bootstrap {
    shared: Box<Shared>,
    handle: Box<Handle>,
}

/// What the C callbacks see through `comm_state`.
#[derive(Debug)]
struct Shared {
    pe: u32,
    n_pes: u32,
    deadline: Duration,
    link: Mutex<Link>,
    /// The launcher's reason for ending the job, kept for messages of those who come later.
    aborted: Mutex<Option<String>>,
    fatal: Fatal,
}

#[derive(Debug)]
struct Link {
    stream: Connection,
    frames: Frames,
}

/// The C handle. The plugin gets a mutable pointer to it, so it is in a cell.
#[derive(Debug)]
struct Handle(UnsafeCell<c::nvt_bootstrap_handle>);

// SAFETY: this crate writes the handle before it is shared and never again. What a plugin does
// with the pointer follows NVSHMEM's rule for it: read only.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Bootstrap {
    /// Connects to the launcher as one PE of `n_pes`.
    pub(crate) fn connect(
        socket: &str,
        pe: u32,
        n_pes: u32,
        node: Node,
        deadline: Duration,
    ) -> Result<Bootstrap> {
        let fail = |e: std::io::Error| Error::Bootstrap(format!("launcher's socket {socket}: {e}"));
        let mut stream = Connection::to(socket, SLICE, deadline).map_err(fail)?;
        if socket == STREAMS {
            let input = stream.input().map_err(fail)?;
            thread::spawn(move || {
                await_end(&input);
                eprintln!("nvshmem-sim: the launcher has closed PE {pe}'s input");
                exit_now(2);
            });
        }
        stream.write_all(&encode(&FromPe::Hello(pe))).map_err(fail)?;
        let shared = Box::new(Shared {
            pe,
            n_pes,
            deadline,
            link: Mutex::new(Link { stream, frames: Frames::default() }),
            aborted: Mutex::new(None),
            fatal: Fatal::default(),
        });
        let handle = c::nvt_bootstrap_handle {
            version: BOOTSTRAP_VERSION,
            pg_rank: pe as i32,
            pg_size: n_pes as i32,
            mype_node: (pe - node.first) as i32,
            npes_node: node.pes.min(n_pes - node.first) as i32,
            _pad: 0,
            allgather: Some(c_allgather),
            alltoall: Some(c_alltoall),
            barrier: Some(c_barrier),
            global_exit: Some(c_global_exit),
            finalize: Some(c_finalize),
            show_info: Some(c_show_info),
            pre_init_ops: std::ptr::null_mut(),
            comm_state: (&raw const *shared).cast_mut().cast(),
        };
        Ok(Bootstrap { shared, handle: Box::new(Handle(UnsafeCell::new(handle))) })
    }

    /// This PE's number among those of its (pretended) host.
    pub fn mype_node(&self) -> u32 {
        // SAFETY: nobody writes to the handle after `connect`.
        unsafe { (*self.handle.0.get()).mype_node as u32 }
    }

    /// Number of PEs on this PE's (pretended) host.
    pub fn npes_node(&self) -> u32 {
        // SAFETY: nobody writes to the handle after `connect`.
        unsafe { (*self.handle.0.get()).npes_node as u32 }
    }

    /// Waits until all PEs have come here.
    ///
    /// # Errors
    /// A PE is gone or late, or the proxy thread of this one has failed. The same for the others.
    pub fn barrier(&self) -> Result<()> {
        self.shared.join(Collective::Barrier, &[]).map(drop)
    }

    /// Everybody's `part`, in the order of PEs. All parts have the same length.
    ///
    /// # Errors
    /// See [`Bootstrap::barrier`].
    pub fn allgather(&self, part: &[u8]) -> Result<Vec<u8>> {
        self.shared.join(Collective::Allgather, part)
    }

    /// Everybody's number, in the order of PEs.
    ///
    /// # Errors
    /// See [`Bootstrap::barrier`].
    pub fn allgather_u64(&self, part: u64) -> Result<Vec<u64>> {
        let all = self.allgather(&part.to_le_bytes())?;
        Ok(all.chunks_exact(8).filter_map(|b| b.try_into().ok().map(u64::from_le_bytes)).collect())
    }

    /// The handle as the plugin gets it. It lives as long as this object does.
    pub fn handle(&self) -> *mut c::nvt_bootstrap_handle {
        self.handle.0.get()
    }

    /// Why the launcher has ended the job, when it has and this PE has been told.
    pub(crate) fn abort_reason(&self) -> Option<String> {
        lock(&self.shared.aborted).clone()
    }

    pub(crate) fn fatal(&self) -> Fatal {
        self.shared.fatal.clone()
    }

    /// Sends a message that has no answer.
    pub(crate) fn tell(&self, message: &FromPe) -> Result<()> {
        let mut link = lock(&self.shared.link);
        link.stream
            .write_all(&encode(message))
            .map_err(|e| Error::Bootstrap(format!("the launcher is gone: {e}")))
    }
}

impl Shared {
    fn join(&self, op: Collective, part: &[u8]) -> Result<Vec<u8>> {
        let mut link = match self.link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text = format!("{} while another thread is in a collective", op.name());
                return Err(Error::Bootstrap(text));
            }
        };
        if let Some(text) = lock(&self.aborted).clone() {
            return Err(Error::Bootstrap(text));
        }
        if let Some(text) = self.fatal.get() {
            return Err(Error::Proxy(text.to_string()));
        }
        let answer = link.exchange(self, op, part);
        if let Err(Error::Bootstrap(text)) = &answer {
            // The stream may hold half an exchange: nobody may use it for another.
            lock(&self.aborted).get_or_insert_with(|| text.clone());
        }
        answer
    }
}

impl Link {
    fn exchange(&mut self, shared: &Shared, op: Collective, part: &[u8]) -> Result<Vec<u8>> {
        let gone = |e: std::io::Error| Error::Bootstrap(format!("the launcher is gone: {e}"));
        let start = Instant::now();
        self.stream.write_all(&encode(&FromPe::Join(op, part.to_vec()))).map_err(gone)?;
        loop {
            if let Some(answer) = self.frames.next().map_err(gone)? {
                return match answer {
                    ToPe::Result(data) => Ok(data),
                    ToPe::Abort(text) => Err(Error::Bootstrap(text)),
                };
            }
            if let Some(text) = shared.fatal.get() {
                return Err(Error::Proxy(text.to_string()));
            }
            if start.elapsed() > shared.deadline {
                let name = op.name();
                let text = format!("{name} is not complete after {:?}", shared.deadline);
                return Err(Error::Bootstrap(text));
            }
            let mut buffer = [0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Bootstrap("the launcher is gone".into())),
                Ok(n) => self.frames.push(&buffer[..n]),
                Err(e) => match e.kind() {
                    std::io::ErrorKind::WouldBlock
                    | std::io::ErrorKind::TimedOut
                    | std::io::ErrorKind::Interrupted => {}
                    _ => return Err(gone(e)),
                },
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a callback's body for the handle that the plugin passed back. Nothing unwinds into it.
///
/// # Safety
/// `handle` is null or one that [`Bootstrap::handle`] returned, of a bootstrap that still lives.
unsafe fn callback(
    name: &str,
    handle: *mut c::nvt_bootstrap_handle,
    body: impl FnOnce(&Shared) -> Result<()>,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(|| {
        if handle.is_null() {
            return Err(Error::Usage("the bootstrap handle is NULL".into()));
        }
        // SAFETY: the caller vouches for the handle; its comm_state points to the bootstrap's
        // Shared, which is boxed and lives as long.
        let shared = unsafe { &*(*handle).comm_state.cast::<Shared>() };
        body(shared)
    }));
    match result {
        Ok(Ok(())) => c::NVT_STATUS_SUCCESS,
        Ok(Err(e)) => {
            eprintln!("nvshmem-sim: bootstrap {name}: {e}");
            c::NVT_STATUS_INTERNAL
        }
        Err(_) => c::NVT_STATUS_INTERNAL,
    }
}

/// The callbacks' common part: checks the arguments, joins, and stores what came back.
///
/// # Safety
/// As [`callback`]; `send` and `recv` are valid for `send_len` and `recv_len` bytes.
unsafe fn collective(
    op: Collective,
    send: *const c_void,
    recv: *mut c_void,
    bytes: c_int,
    handle: *mut c::nvt_bootstrap_handle,
) -> c_int {
    let body = |shared: &Shared| {
        let bytes =
            usize::try_from(bytes).map_err(|_| Error::Usage(format!("{bytes} bytes per PE")))?;
        let all = bytes * shared.n_pes as usize;
        if (send.is_null() || recv.is_null()) && bytes > 0 {
            return Err(Error::Usage(format!("a NULL buffer from PE {}", shared.pe)));
        }
        if bytes == 0 {
            return shared.join(op, &[]).map(drop);
        }
        let send_len = if op == Collective::Alltoall { all } else { bytes };
        // SAFETY: the caller vouches for the buffer.
        let part = unsafe { std::slice::from_raw_parts(send.cast::<u8>(), send_len) }.to_vec();
        let data = shared.join(op, &part)?;
        // SAFETY: the result is `all` bytes, which is what `recv` has room for; the part was
        // copied, so the buffers may overlap as they do with an in-place allgather.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), recv.cast(), data.len()) };
        Ok(())
    };
    // SAFETY: the caller vouches for the handle.
    unsafe { callback(op.name(), handle, body) }
}

unsafe extern "C" fn c_allgather(
    send: *const c_void,
    recv: *mut c_void,
    bytes: c_int,
    handle: *mut c::nvt_bootstrap_handle,
) -> c_int {
    // SAFETY: the plugin calls as the interface says: `bytes` to send, room for them from each PE.
    unsafe { collective(Collective::Allgather, send, recv, bytes, handle) }
}

unsafe extern "C" fn c_alltoall(
    send: *const c_void,
    recv: *mut c_void,
    bytes: c_int,
    handle: *mut c::nvt_bootstrap_handle,
) -> c_int {
    // SAFETY: the plugin calls as the interface says: `bytes` for each PE and from each PE.
    unsafe { collective(Collective::Alltoall, send, recv, bytes, handle) }
}

unsafe extern "C" fn c_barrier(handle: *mut c::nvt_bootstrap_handle) -> c_int {
    // SAFETY: the plugin passes the handle it was given.
    unsafe { callback("barrier", handle, |s| s.join(Collective::Barrier, &[]).map(drop)) }
}

extern "C" fn c_global_exit(status: c_int) {
    eprintln!("nvshmem-sim: the plugin asked for a global exit with status {status}");
    exit_now(if status == 0 { 1 } else { status });
}

extern "C" fn c_finalize(_: *mut c::nvt_bootstrap_handle) -> c_int {
    eprintln!("nvshmem-sim: the plugin tried to finalize the host's bootstrap");
    c::NVT_STATUS_INTERNAL
}

extern "C" fn c_show_info(_: *mut c::nvt_bootstrap_handle, _: c_int) -> c_int {
    c::NVT_STATUS_SUCCESS
}
