//! The C interface of the device channel; `include/nvshmem_libfabric.h` documents it.
//!
//! # What callers promise, on which the `unsafe` here rests
//! 1. A channel is one that `nlf_init_*` gave out and `nlf_finalize` has not had, and no call on it
//!    is under way in another thread when `nlf_finalize` is called.
//! 2. Other pointers are valid for the call, as the header says, or NULL where it allows that.
//!
//! Nothing unwinds into C: every function goes through [`guard`].

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use channel_sys::nlf_context;
use nvshmem_transport_libfabric::bootstrap::{
    Bootstrap, BootstrapError, Callback, TcpBootstrap, TcpOptions,
};
use nvshmem_transport_libfabric::channel::{Channel, ChannelError, MemoryLocation, Options};
use thiserror::Error;

#[derive(Debug)]
pub struct NlfChannel(Channel);

/// `nlf_options` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NlfOptions {
    size: usize,
    rings: u32,
    slots: u32,
    spins: u64,
    drain_ms: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<NlfOptions>() == 32);

type Allgather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, *mut c_void) -> c_int;

#[derive(Debug, Error)]
enum Error {
    #[error("{0}")]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Bootstrap(#[from] BootstrapError),
    #[error("argument {0} is NULL")]
    Null(&'static str),
    #[error("no address: none was given, and NVSHMEM_LIBFABRIC_BOOTSTRAP is not set")]
    NoAddress,
    #[error("there is no such channel: it was finalized, or never made")]
    NoChannel,
    #[error("nlf_options.size is {found}: it is sizeof(nlf_options), {}", size_of::<NlfOptions>())]
    OptionsSize { found: usize },
    #[error("there is no memory of location {found}: it is NLF_ON_HOST or NLF_ON_DEVICE")]
    Location { found: u32 },
    #[error("the channel has failed: {0}")]
    Failed(String),
}

/// Most bytes of a text for [`nlf_strerror`], with the zero at its end. What is longer is cut off.
const TEXT: usize = 2048;

thread_local! {
    /// What went wrong last on this thread: a C string. It has nothing to drop, so it is there as
    /// long as the thread is: exit handlers run when what has something to drop has gone.
    static LAST: UnsafeCell<[u8; TEXT]> = const { UnsafeCell::new([0; TEXT]) };
}

fn say(text: &str) {
    let mut end = text.len().min(TEXT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    LAST.with(|last| {
        // SAFETY: this thread's alone; nobody has a reference to it: C has a pointer, and reads no
        // more from it once this thread makes another call.
        let last = unsafe { &mut *last.get() };
        for (to, byte) in last.iter_mut().zip(text[..end].bytes()) {
            *to = if byte == 0 { b' ' } else { byte };
        }
        last[end] = 0;
    });
}

/// Runs the body of a function. None if it has failed, which this thread's text then tells.
fn guard<T>(body: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => String::from("internal error, please report it"),
    };
    say(&text);
    None
}

fn status(outcome: Option<()>) -> c_int {
    outcome.map_or(-1, |()| 0)
}

static CHANNELS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn channels() -> MutexGuard<'static, Vec<usize>> {
    // Each change of it is one call.
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// Promise 1. What is not a channel any more is told from one as long as no other has come to its
/// place.
unsafe fn channel<'a>(channel: *const NlfChannel) -> Result<&'a Channel, Error> {
    if channel.is_null() {
        return Err(Error::Null("channel"));
    }
    if !channels().contains(&(channel as usize)) {
        return Err(Error::NoChannel);
    }
    // SAFETY: made by `open`, and there still; the caller's promise for the time of the call.
    Ok(unsafe { &(*channel).0 })
}

/// # Safety
/// NULL or valid.
unsafe fn read_options(options: *const NlfOptions) -> Result<Options, Error> {
    let mut read = Options::from_env()?;
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { options.as_ref() }) else { return Ok(read) };
    if given.size != size_of::<NlfOptions>() {
        return Err(Error::OptionsSize { found: given.size });
    }
    if given.rings != 0 {
        read.rings = given.rings;
    }
    if given.slots != 0 {
        read.slots = given.slots.into();
    }
    read.spins = given.spins;
    if given.drain_ms != 0 {
        read.drain = Duration::from_millis(given.drain_ms.into());
    }
    Ok(read)
}

fn open(
    out: *mut *mut NlfChannel,
    bootstrap: Box<dyn Bootstrap>,
    options: &Options,
) -> Result<(), Error> {
    let channel = Box::into_raw(Box::new(NlfChannel(Channel::new(bootstrap, options)?)));
    channels().push(channel as usize);
    // SAFETY: checked not to be NULL by the callers; promise 2.
    unsafe { out.write(channel) };
    Ok(())
}

/// # Safety
/// Promise 2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_init_tcp(
    out: *mut *mut NlfChannel,
    address: *const c_char,
    me: u32,
    n_pes: u32,
    job: u64,
    options: *const NlfOptions,
) -> c_int {
    status(guard(|| {
        if out.is_null() {
            return Err(Error::Null("channel"));
        }
        // SAFETY: promise 2.
        let options = unsafe { read_options(options)? };
        let address = if address.is_null() {
            options.settings.bootstrap.clone().ok_or(Error::NoAddress)?
        } else {
            // SAFETY: not NULL; a string, by promise 2.
            unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned()
        };
        let patience = options.settings.bootstrap_patience;
        let tcp = TcpOptions { address, me, n_pes, job, patience };
        open(out, Box::new(TcpBootstrap::join(tcp)?), &options)
    }))
}

/// # Safety
/// Promise 2; the function may be called until the channel is finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_init_allgather(
    out: *mut *mut NlfChannel,
    me: u32,
    n_pes: u32,
    allgather: Option<Allgather>,
    user: *mut c_void,
    options: *const NlfOptions,
) -> c_int {
    /// The user's pointer, which is the user's to use from any thread.
    struct User(*mut c_void);
    // SAFETY: the header says from which threads the function is called with it.
    unsafe impl Send for User {}
    status(guard(|| {
        if out.is_null() {
            return Err(Error::Null("channel"));
        }
        let allgather = allgather.ok_or(Error::Null("allgather"))?;
        // SAFETY: promise 2.
        let options = unsafe { read_options(options)? };
        let user = User(user);
        let gather = move |mine: &[u8], all: &mut [u8]| {
            let User(user) = &user;
            let (from, into) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            // SAFETY: `all` has room for as many bytes as `mine` from each PE; the rest is the
            // caller's promise.
            unsafe { allgather(from, into, mine.len(), *user) }
        };
        open(out, Box::new(Callback::new(n_pes, me, gather)?), &options)
    }))
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_get_context(of: *const NlfChannel) -> *const nlf_context {
    // SAFETY: promise 1.
    guard(|| Ok(unsafe { channel(of)? }.context())).unwrap_or(ptr::null())
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_alloc(of: *mut NlfChannel, bytes: usize) -> *mut c_void {
    // SAFETY: promise 1.
    guard(|| Ok(unsafe { channel(of)? }.allocate_symmetric(bytes)?.cast()))
        .unwrap_or(ptr::null_mut())
}

const LOCATIONS: [MemoryLocation; 2] = [MemoryLocation::Host, MemoryLocation::Device];

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_alloc_on(
    of: *mut NlfChannel,
    location: u32,
    bytes: usize,
) -> *mut c_void {
    guard(|| {
        let known = LOCATIONS.get(location as usize);
        let location = *known.ok_or(Error::Location { found: location })?;
        // SAFETY: promise 1.
        Ok(unsafe { channel(of)? }.allocate_symmetric_on(location, bytes)?.cast())
    })
    .unwrap_or(ptr::null_mut())
}

/// # Safety
/// Promise 1, and the memory stays until it is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_register(
    of: *mut NlfChannel,
    addr: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    status(guard(|| unsafe { Ok(channel(of)?.register_symmetric(addr.cast(), bytes)?) }))
}

/// # Safety
/// As [`nlf_register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_register_local(
    of: *mut NlfChannel,
    addr: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    status(guard(|| unsafe { Ok(channel(of)?.register_local(addr.cast(), bytes)?) }))
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_release(of: *mut NlfChannel, addr: *mut c_void) -> c_int {
    // SAFETY: promise 1.
    status(guard(|| Ok(unsafe { channel(of)? }.release(addr.cast())?)))
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_barrier(of: *mut NlfChannel) -> c_int {
    // SAFETY: promise 1.
    status(guard(|| Ok(unsafe { channel(of)? }.barrier()?)))
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_check(of: *const NlfChannel) -> c_int {
    // SAFETY: promise 1.
    status(guard(|| match unsafe { channel(of)? }.error() {
        None => Ok(()),
        Some(why) => Err(Error::Failed(why)),
    }))
}

/// # Safety
/// Promise 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nlf_finalize(of: *mut NlfChannel) -> c_int {
    status(guard(|| {
        if of.is_null() {
            return Err(Error::Null("channel"));
        }
        {
            let mut channels = channels();
            let at = channels.iter().position(|channel| *channel == of as usize);
            channels.swap_remove(at.ok_or(Error::NoChannel)?);
        }
        // SAFETY: made by `open`, and had by nobody else, as promise 1 says.
        let NlfChannel(channel) = *unsafe { Box::from_raw(of) };
        Ok(channel.stop()?)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn nlf_strerror() -> *const c_char {
    LAST.with(|last| last.get().cast::<c_char>().cast_const())
}
