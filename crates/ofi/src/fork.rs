//! Children of fork: processes with a copy of this one's memory and descriptors, but no threads.
//!
//! A child must not touch its parent's rails: it uses, closes and frees nothing, and its copies of
//! the rails' sockets are replaced. With them, peers would not notice that the parent has ended,
//! and its ports would stay in use. Children that execute another program at once, as those of
//! `posix_spawn`, do not run this code, so the sockets are also set close-on-exec.

use std::collections::HashSet;
use std::fs::{self, File};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

static JOBS: AtomicUsize = AtomicUsize::new(0);

static CHILD: AtomicBool = AtomicBool::new(false);

type SocketEnd = (IpAddr, u16);

static RAILS: Mutex<Option<HashSet<SocketEnd>>> = Mutex::new(None);

/// Returns true if this process is a child of fork, whose jobs are its parent's.
#[inline(always)]
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Counts a job of this process until dropped.
#[derive(Debug)]
pub struct JobGuard(());

impl JobGuard {
    pub fn enter() -> Self {
        static ONCE: Once = Once::new();
        // SAFETY: the function may run in a child. The C library unregisters it when we are
        // unloaded.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        });
        JOBS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        if !is_child() && JOBS.fetch_sub(1, Ordering::Relaxed) == 1 {
            *rails() = None;
        }
    }
}

/// Registers the addresses of rails, in libfabric's format. Addresses other than of sockets are
/// ignored.
pub fn register_rails<A: AsRef<[u8]>>(addresses: &[A]) {
    let found = addresses.iter().filter_map(|address| socket_address(address.as_ref()));
    rails().get_or_insert_default().extend(found);
}

/// Registers an address of a job's sockets, at either end.
pub fn register(at: SocketAddr) {
    rails().get_or_insert_default().insert((at.ip(), at.port()));
}

fn rails() -> MutexGuard<'static, Option<HashSet<SocketEnd>>> {
    // Also if poisoned: each change is one call.
    RAILS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the sockets of rails close-on-exec.
pub fn close_on_exec() {
    let rails = rails();
    let Some(rails) = rails.as_ref() else { return };
    for fd in sockets_of(rails) {
        // SAFETY: changes only a descriptor's flag. If it was closed meanwhile, and a library has
        // just reused the number for a file to be inherited, that cannot be detected.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
                libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
            }
        }
    }
}

/// Runs first in a child of fork, which has one thread; glibc lets it allocate.
extern "C" fn in_child() {
    if JOBS.load(Ordering::Relaxed) == 0 {
        return;
    }
    CHILD.store(true, Ordering::Relaxed);
    let rails = match RAILS.try_lock() {
        Ok(rails) => rails,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // A thread that does not exist in the child held the lock: the sockets stay.
        Err(TryLockError::WouldBlock) => return,
    };
    let (Some(rails), Ok(nothing)) = (rails.as_ref(), File::open("/dev/null")) else { return };
    for fd in sockets_of(rails) {
        // Replaced, not closed: the holder of the number may close it later, when it could be
        // another file's.
        // SAFETY: descriptors of this process, in its only thread, independent of the parent's.
        unsafe { libc::dup3(nothing.as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
}

fn sockets_of(rails: &HashSet<SocketEnd>) -> Vec<RawFd> {
    let Ok(files) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
    let is_of_rail = |fd: &RawFd| {
        let ends = [end(*fd, libc::getsockname), end(*fd, libc::getpeername)];
        ends.iter().flatten().any(|end| rails.contains(end))
    };
    numbers.filter(is_of_rail).collect()
}

type NameOf = unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn end(fd: RawFd, name_of: NameOf) -> Option<SocketEnd> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: a buffer of `len` bytes. Any number is answered.
    if unsafe { name_of(fd, address.as_mut_ptr().cast(), &raw mut len) } != 0 {
        return None;
    }
    // SAFETY: zeroed at first, so all bytes are initialised.
    let bytes: [u8; size_of::<libc::sockaddr_storage>()] = unsafe { std::mem::transmute(address) };
    socket_address(bytes.get(..len as usize)?)
}

/// Returns address and port of a socket address of the Internet.
pub(crate) fn socket_address(bytes: &[u8]) -> Option<SocketEnd> {
    let (family, rest) = bytes.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Some((IpAddr::from(*rest.first_chunk::<4>()?), port)),
        libc::AF_INET6 => {
            // After the flow label.
            let ip = rest.get(4..)?.first_chunk::<16>()?;
            Some((IpAddr::from(*ip), port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_are_known_by_either_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other =
            TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).unwrap();
        let rail = listener.local_addr().unwrap();
        let out = TcpStream::connect(rail).unwrap();
        let (inward, _) = listener.accept().unwrap();
        let mut found = sockets_of(&HashSet::from([(rail.ip(), rail.port())]));
        found.sort_unstable();
        let mut expected = [listener.as_raw_fd(), out.as_raw_fd(), inward.as_raw_fd()];
        expected.sort_unstable();
        assert_eq!(found, expected);
        let at = other.local_addr().unwrap();
        assert_eq!(sockets_of(&HashSet::from([(at.ip(), at.port())])), [other.as_raw_fd()]);
    }

    fn is_marked(socket: &TcpListener) -> bool {
        // SAFETY: flags of a descriptor alone.
        unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
    }

    #[test]
    fn sockets_are_rails_during_jobs() {
        let socket = || {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            // SAFETY: as above.
            unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, 0) };
            socket
        };
        let at = |socket: &TcpListener| socket.local_addr().unwrap();
        let is_known = |socket: &TcpListener| {
            let end = (at(socket).ip(), at(socket).port());
            rails().as_ref().is_some_and(|rails| rails.contains(&end))
        };
        // The port may have been that of a rail of another test.
        let fresh = || std::iter::repeat_with(socket).find(|socket| !is_known(socket)).unwrap();
        let sockets = [socket(), socket(), fresh()];
        let [rail, noted, other] = sockets.each_ref();
        let (first, second) = (JobGuard::enter(), JobGuard::enter());
        let port = at(rail).port().to_be_bytes();
        let address = [&2_u16.to_ne_bytes()[..], &port, &[127, 0, 0, 1]].concat();
        register_rails(&[&address[..], b"fi_shm://1:2"]);
        register(at(noted));
        assert!(is_known(rail) && is_known(noted) && !is_known(other));
        close_on_exec();
        assert_eq!(sockets.each_ref().map(is_marked), [true, true, false]);
        drop(first);
        assert!(is_known(rail), "there is another job");
        drop(second);
        assert!(!is_known(rail) && !is_known(noted));
    }

    #[test]
    fn other_addresses_are_no_ends() {
        let ip4 = [&2_u16.to_ne_bytes()[..], &[0x12, 0x67, 127, 0, 0, 1]].concat();
        assert_eq!(socket_address(&ip4), Some((IpAddr::from([127, 0, 0, 1]), 4711)));
        assert_eq!(socket_address(&ip4[..7]), None);
        for other in [&[][..], b"fi_shm://1:2", &[0; 32]] {
            assert_eq!(socket_address(other), None);
        }
    }
}
