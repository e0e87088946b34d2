//! Sockets by which PEs of one host pass descriptors to each other.
//!
//! A PE listens under one random name in two places: among the abstract names of its network
//! namespace, and in `/dev/shm`, for peers that only share that. Nobody waits for anybody: all
//! connect and send between two collectives, and read what was sent after the second one. Of the
//! peer the kernel tells the user and, unless a PID namespace hides it, the process.

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use engine::ids::Pe;

const ABSTRACT: &str = "nvshmem-libfabric-";
const IN_FILES: &str = "/dev/shm/nvshmem-libfabric-";

/// Most connections that are accepted at once, as anybody may make some.
const MAX_ACCEPTED: usize = 4096;

/// The sockets at which a PE listens.
#[derive(Debug)]
pub(super) struct Meeting {
    name: u64,
    listeners: Vec<UnixListener>,
    /// Connections of peers, which send one descriptor each.
    peers: Vec<UnixStream>,
}

impl Meeting {
    pub(super) fn new(name: u64) -> Self {
        let abstract_name = SocketAddr::from_abstract_name(format!("{ABSTRACT}{name:016x}"));
        let file = UnixListener::bind(format!("{IN_FILES}{name:016x}"));
        let all = [abstract_name.and_then(|name| UnixListener::bind_addr(&name)), file];
        let listeners =
            all.into_iter().flatten().filter(|one| one.set_nonblocking(true).is_ok()).collect();
        Self { name, listeners, peers: Vec::new() }
    }

    /// Returns what has arrived, each with the PE that it claims to be from.
    pub(super) fn receive(&mut self) -> Vec<(Pe, OwnedFd)> {
        for listener in &self.listeners {
            let accepted = (0..MAX_ACCEPTED).map_while(|_| listener.accept().ok());
            self.peers.extend(accepted.map(|(peer, _)| peer));
        }
        self.peers.iter().filter_map(|peer| receive(peer.as_raw_fd())).collect()
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // It is not there if it could not be made.
        let _ = std::fs::remove_file(format!("{IN_FILES}{:016x}", self.name));
    }
}

/// Connection to a peer's sockets.
#[derive(Debug)]
pub(super) struct Connection(OwnedFd);

impl Connection {
    /// # Errors
    /// The system's: the PEs share neither a network namespace nor `/dev/shm`.
    pub(super) fn to(name: u64) -> io::Result<Self> {
        connect(&format!("\0{ABSTRACT}{name:016x}"))
            .or_else(|_| connect(&format!("{IN_FILES}{name:016x}")))
            .map(Self)
    }

    /// Returns the peer's process and user, as this process would call them; process 0 if it is in
    /// a PID namespace that this process does not see.
    pub(super) fn peer(&self) -> io::Result<(u32, u32)> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: an open socket, and a structure of ours with its length.
        let status = unsafe {
            let into = (&raw mut found).cast();
            libc::getsockopt(self.0.as_raw_fd(), level, option, into, &raw mut len)
        };
        let known = (found.pid as u32, found.uid);
        (status == 0).then_some(known).ok_or_else(io::Error::last_os_error)
    }

    /// Sends the descriptor as one of `me`. The peer has it even if this process ends.
    pub(super) fn send(&self, me: Pe, fd: RawFd) -> io::Result<()> {
        transfer(self.0.as_raw_fd(), &mut me.0.to_le_bytes(), Some(fd)).map(drop)
    }
}

/// Connects without waiting, which std's `connect` does while a listener's queue is full.
fn connect(path: &str) -> io::Result<OwnedFd> {
    // SAFETY: zeros are values of it.
    let mut to: libc::sockaddr_un = unsafe { zeroed() };
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    to.sun_path.iter_mut().zip(path.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    let len = (offset_of!(libc::sockaddr_un, sun_path) + path.len()) as libc::socklen_t;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a new socket, owned by nobody else, and an address of that length.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, kind, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        match libc::connect(socket.as_raw_fd(), (&raw const to).cast(), len) {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn receive(socket: RawFd) -> Option<(Pe, OwnedFd)> {
    let mut from = [0; 4];
    let received = transfer(socket, &mut from, None).ok()??;
    // SAFETY: just received, and owned by nobody else.
    Some((Pe(u32::from_le_bytes(from)), unsafe { OwnedFd::from_raw_fd(received) }))
}

/// A header and one descriptor; the kernel drops what does not fit.
#[repr(C)]
struct Control(libc::cmsghdr, RawFd);

/// Sends this descriptor, or receives one.
fn transfer(socket: RawFd, from: &mut [u8; 4], sent: Option<RawFd>) -> io::Result<Option<RawFd>> {
    const RECEIVE: i32 = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    const BYTES: usize = offset_of!(Control, 1) + size_of::<RawFd>();
    let mut part = libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: from.len() };
    // SAFETY: zeros are values of both.
    let (mut control, mut message): (Control, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let rights = (BYTES, libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if let Some(fd) = sent {
        (control.0.cmsg_len, control.0.cmsg_level, control.0.cmsg_type) = rights;
        control.1 = fd;
    }
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), BYTES);
    // SAFETY: an open socket, and buffers that outlive the call.
    let moved = unsafe {
        match sent {
            Some(_) => libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL),
            None => libc::recvmsg(socket, &raw mut message, RECEIVE),
        }
    };
    if moved < 0 {
        return Err(io::Error::last_os_error());
    }
    let header = (control.0.cmsg_len, control.0.cmsg_level, control.0.cmsg_type);
    Ok((header == rights).then_some(control.1))
}
